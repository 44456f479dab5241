"""Schedules: the published diagrams, the published bubbles and memory, and legality for every size."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim import plugins
from clustersim.engine.memory import moments
from clustersim.errors import InputError, SimulationError
from clustersim.schedules import check, draw, folded
from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.draw import schedule_text
from clustersim.schedules.pipeline import Pipeline, action_units
from clustersim.schedules.timing import time_actions

NAMES = sorted(plugins.names(check.ROOM))
FOLDED = ("zbv", "v_half", "v_min")
FORWARD, BACKWARD = 3.0, 5.0


def parsed(text: str) -> Schedule:
    """Return the schedule of a text in PyTorch's notation, one line for each rank."""
    cells = (re.findall(r"(\d+)([FBIW])(\d+)", line) for line in text.splitlines())
    return tuple(tuple(Action(int(stage), letter, int(i)) for stage, letter, i in row) for row in cells)


# Huang et al. 2019, figure 2c: four stages, four microbatches, a backward drawn as long as a forward.
GPIPE_FIGURE_2 = """\
0123......dcba
.0123....dcba.
..0123..dcba..
...0123dcba..."""

GPIPE = """\
01234567.........hhggffeeddccbbaa
.01234567......hhggffeeddccbbaa..
..01234567...hhggffeeddccbbaa....
...01234567hhggffeeddccbbaa......"""

# Narayanan et al. 2021, figure 4 top: PipeDream-Flush, four stages, eight microbatches, a backward twice a forward.
ONE_F_ONE_B = """\
0123......aa4bb5cc6dd7ee.ff.gg.hh
.012....aa3bb4cc5dd6ee7ff.gg.hh..
..01..aa2bb3cc4dd5ee6ff7gg.hh....
...0aa1bb2cc3dd4ee5ff6gg7hh......"""

# Qi et al. 2023, figure 3 top: ZB-H1, input and weight gradients as long as a forward each.
ZB_H1 = """\
0123...aA4bB5cC6dD7eEfFgGhH
.012..a3bA4cB5dC6eD7fEgFhGH
..01.a2b3cA4dB5eC6fD7gEhFGH
...0a1b2c3dA4eB5fC6gD7hEFGH"""


def span(schedule: Schedule, chunks: int = 1, forward: float = FORWARD, backward: float = BACKWARD) -> float:
    """The makespan when the chunks of a rank together take `forward` and `backward` a microbatch."""
    cost = {"F": forward / chunks, "B": backward / chunks, "I": backward / 2 / chunks, "W": backward / 2 / chunks}
    return max(row[-1].end for row in time_actions(schedule, Pipeline(len(schedule), chunks), cost))


def test_diagrams() -> None:
    assert draw.draw(check.load("gpipe", 4, 4), backward=1) == GPIPE_FIGURE_2
    assert draw.draw(check.load("gpipe", 4, 8)) == GPIPE
    assert draw.draw(check.load("1f1b", 4, 8)) == ONE_F_ONE_B
    assert draw.draw(check.load("zero_bubble", 4, 8)) == ZB_H1


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_is_legal_at_every_size(name: str) -> None:
    """Runs rely on this proof; a schedule may refuse a size only by an InputError."""
    done = 0
    for stages in range(1, 9):
        for microbatches in (*range(1, 17), *range(18, 33, 2)):
            for chunks in (1, 2, 3):
                try:
                    schedule = check.load(name, stages, microbatches, chunks)
                except InputError:
                    continue
                check.check(schedule, check.pipeline(name, stages, chunks), microbatches)
                assert parsed(draw.rows(schedule)) == schedule
                done += 1
    assert done >= 40


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 32), st.integers(1, 96), st.integers(1, 5))
@settings(max_examples=examples(20), deadline=None)
def test_large_schedules_are_legal(name: str, stages: int, microbatches: int, chunks: int) -> None:
    rounds = -(-microbatches // stages) * stages if chunks > 1 else microbatches
    if check.pipeline(name, stages).folded:
        stages, chunks = stages + stages % 2, 1 + (name != "dualpipe")
        rounds = 2 * (stages + microbatches)
    try:
        schedule = check.load(name, stages, rounds, chunks)
    except InputError:
        chunks = 1 if chunks > 1 else 2
        schedule = check.load(name, stages, rounds := -(-rounds // stages) * stages, chunks)
    check.check(schedule, check.pipeline(name, stages, chunks), rounds)


@given(st.integers(1, 16), st.integers(1, 48))
@settings(max_examples=examples(60), deadline=None)
def test_closed_forms(stages: int, microbatches: int) -> None:
    """Makespan (m+p-1)(f+b) for both; GPipe keeps m microbatches, 1F1B min(p - rank, m)."""
    gpipe, flush = (check.load(name, stages, microbatches) for name in ("gpipe", "1f1b"))
    assert span(gpipe) == span(flush) == (microbatches + stages - 1) * (FORWARD + BACKWARD)
    assert [check.in_flight(row) for row in gpipe] == [microbatches] * stages
    assert [check.in_flight(row) for row in flush] == [min(stages - rank, microbatches) for rank in range(stages)]


@given(st.integers(1, 12), st.integers(1, 4), st.integers(2, 6))
@settings(max_examples=examples(40), deadline=None)
def test_interleaved_bubble(stages: int, rounds: int, chunks: int) -> None:
    """(p-1)(f+b)/v on top of the work m(f+b) (Narayanan et al. 2021, section 2.2.2)."""
    schedule = check.load("interleaved", stages, stages * rounds, chunks)
    bubble = span(schedule, chunks) - stages * rounds * (FORWARD + BACKWARD)
    assert bubble == pytest.approx((stages - 1) * (FORWARD + BACKWARD) / chunks)


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("more", range(5))
def test_zero_bubble(stages: int, more: int) -> None:
    """Bubble (p-1)(f+i-w) with equal times, and never more than p microbatches in flight (Qi et al. 2023, table 1)."""
    schedule = check.load("zero_bubble", stages, stages + more)
    assert span(schedule, forward=1, backward=2) == 3 * (stages + more) + stages - 1
    assert max(map(check.in_flight, schedule)) <= stages


# DeepSeek-V3, figure 5, as deepseek-ai/DualPipe draws it for 8 ranks and 20 microbatches: forward, whole backward or gradients of
# inputs (one or two of b), and of weights; the second half of the ranks mirrors the first.
DUALPIPE = """\
FFFFFFFFbWFbWFbWFFbb...FbbFbbFbbFbbFbb.bbFbb.bbFbb.bbFbbbbbWbWbWbW
.FFFFFFFFbWFbWFFbb..FbbFbbFbbFbbFbbFbbFbb.bbFbb.bbFbb.bbbbbbWbWbWW
..FFFFFFFFbWFFbb.FbbFbbFbbFbbFbbFbbFbbFbbFbb.bbFbb.bb.bbbbbbbWbWWW
...FFFFFFFFFbbFbbFbbFbbFbbFbbFbbFbbFbbFbbFbbFbb.bb.bb.bbbbbbbbWWWW"""


def test_dualpipe_is_as_it_is_drawn() -> None:
    """In a cell of two the figure has the forward pass first; where a rank idles between two needs it draws it idle earlier."""
    drawn = DUALPIPE.splitlines()
    schedule, pipeline = check.load("dualpipe", 8, 20), check.pipeline("dualpipe", 8)
    for row, played, figure in zip(schedule, time_actions(schedule, pipeline), [*drawn, *drawn[::-1]], strict=True):
        units = action_units(row, pipeline.paired)
        signs = {"F": "F", "B": "bb", "I": "b", "W": "W"}
        text = "".join(signs[action.letter] for unit in units for action in reversed(unit))
        assert text == figure.replace(".", "")
        assert max(one.end for one in played) <= len(figure)
    assert max(row[-1].end for row in time_actions(schedule, pipeline)) == len(drawn[0]) == 66


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (6, 14), (8, 20), (16, 32), (16, 50)])
@pytest.mark.parametrize("weights", [0.5, 0.8, 1.0])
def test_dualpipe_has_the_published_bubble_and_memory(ranks: int, microbatches: int, weights: float) -> None:
    """(p/2-1)(f&b+b-3w) and p + 1 microbatches, with input gradients as long as a forward; both halves have them."""
    cost = {"F": 1.0, "B": 1.0 + weights, "I": 1.0, "W": weights}
    bubble = (ranks / 2 - 1) * (1 + 2 * (1 + weights) - 3 * weights)
    half = check.load("dualpipev", ranks // 2, microbatches // 2, 2), check.pipeline("dualpipev", ranks // 2, 2)
    for schedule, pipeline in ((check.load("dualpipe", ranks, microbatches), check.pipeline("dualpipe", ranks)), half):
        end = max(row[-1].end for row in time_actions(schedule, pipeline, cost))
        assert end == pytest.approx(microbatches * (2 + weights) + bubble)
        kept = [check.in_flight(row, pipeline.paired) for row in schedule]
        assert kept == [ranks + 1] * len(schedule)


@pytest.mark.parametrize("stages", range(1, 13))
def test_zb_h2_and_zb_v_have_no_bubble_but_how_far_apart_ranks_begin(stages: int) -> None:
    """Table 1 and section 6 of Qi et al. 2023: 2p-1 microbatches, and 1F1B's memory, which is 2p of half the layers."""
    microbatches = 2 * stages + 3
    wide, folded = check.load("zb_h2", stages, microbatches), check.load("zbv", stages, microbatches, 2)
    assert [check.in_flight(row) for row in wide] == [2 * stages - 1] * stages
    assert [check.in_flight(row) for row in folded] == [2 * stages] * stages
    for schedule, name, chunks in ((wide, "zb_h2", 1), (folded, "zbv", 2)):
        played = time_actions(schedule, check.pipeline(name, stages, chunks))
        assert [row[-1].end - row[0].start for row in played] == [3 * chunks * microbatches] * stages


@pytest.mark.parametrize("stages", range(2, 17))
def test_controllable_memory(stages: int) -> None:
    """Qi et al. 2024 (arXiv 2405.15362), table 1 and figure 6: memory of 1F1B's half and third, with less than its bubble.

    1F1B keeps p microbatches of a rank's layers, 2p of a stage's, and idles for 6(p-1) passes of a stage.
    """
    microbatches = 3 * stages + 2
    for name, memory, bubble in (("v_half", stages + 2, 0.55), ("v_min", 2 * (stages + 4) / 3, 0.75)):
        schedule, pipeline = check.load(name, stages, microbatches, 2), check.pipeline(name, stages, 2)
        assert max(check.in_flight(row) for row in schedule) <= memory
        end = max(row[-1].end for row in time_actions(schedule, pipeline))
        assert end - 6 * microbatches <= bubble * 6 * (stages - 1)


@pytest.mark.parametrize("name", ["v_half", "v_min"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 8, 11])
def test_more_microbatches_repeat_the_passes_of_one(monkeypatch, name, stages):
    repeated = [check.load(name, stages, microbatches, 2) for microbatches in range(1, 3 * stages + 9)]
    monkeypatch.setattr(folded, "FILLED", 1000)
    assert repeated == [check.load(name, stages, microbatches, 2) for microbatches in range(1, 3 * stages + 9)]


@pytest.mark.parametrize("name", ["zbv", "v_half", "v_min", "zb_h2", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6, 7, 9])
def test_a_further_microbatch_adds_a_period_in_the_middle(name: str, stages: int) -> None:
    chunks = 2 if name in FOLDED else 1
    least = check.peak_microbatches(name, stages, 10**6, chunks)
    for microbatches in (least, least + 3):
        fewer, more = (check.load(name, stages, n, chunks) for n in (microbatches, microbatches + 1))
        for short, long in zip(fewer, more, strict=True):
            later = [one._replace(microbatch=one.microbatch - 1) for one in long]
            begin = next((i for i, one in enumerate(short) if one != long[i]), len(short))
            assert list(short[begin:]) == later[len(long) - len(short) + begin :]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pytorch"),
    [
        ("interleaved", "ScheduleInterleaved1F1B"),
        ("zero_bubble", "ScheduleInterleavedZeroBubble"),
        ("zbv", "ScheduleZBVZeroBubble"),
    ],
)
def test_order_is_pytorchs(name: str, pytorch: str) -> None:
    from types import SimpleNamespace

    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    of_rank = getattr(getattr(schedules, pytorch), "_calculate_single_rank_operations", None)
    if of_rank is None:
        pytest.skip("this torch keeps its schedules elsewhere")
    for p, rounds, v in [
        (1, 3, 2),
        (2, 1, 2),
        (4, 2, 2),
        (8, 2, 2),
        *([] if name == "zbv" else [(4, 3, 3), (8, 2, 4)]),
    ]:
        job = SimpleNamespace(
            n_local_stages=v,
            microbatches_per_round=p,
            pp_group_size=p,
            _n_microbatches=p * rounds,
            _num_stages=p * v,
            num_stages=p * v,
        )
        theirs = ["".join(f"{a}," for a in of_rank(job, rank) if a is not None)[:-1] for rank in range(p)]
        assert draw.rows(check.load(name, p, p * rounds, v)).splitlines() == theirs


REFUSED = {
    ("gpipe", 4, 8, 2): "gpipe has one model chunk per rank, not 2; set vpp to 1 or use interleaved",
    ("interleaved", 4, 8, 1): "interleaved needs 2 or more model chunks per rank; set vpp to 2 or more, or use 1f1b",
    ("interleaved", 4, 10, 2): "interleaved: 10 microbatches are not a multiple of 4 pipeline stages; use, say, 8",
    ("zero_bubble", 4, 3, 2): "zero_bubble: 3 microbatches are not a multiple of 4 pipeline stages; use, say, 4",
    ("dualpipe", 3, 8, 1): "dualpipe needs an even number of pipeline stages, not 3; use 4",
    ("dualpipe", 4, 6, 1): "dualpipe needs an even number of microbatches, 2 or more per stage, not 6 on 4; use 8",
    ("zbv", 4, 8, 1): "zbv has 2 model chunks per rank, not 1; set vpp to 2",
    ("dualpipev", 4, 8, 1): "dualpipev has 2 model chunks per rank, not 1; set vpp to 2",
    ("dualpipev", 4, 7, 2): "dualpipev needs 2 or more microbatches for each of 4 pipeline ranks, not 7; use 8",
    ("1f1b", 0, 8, 1): "a schedule needs 1 or more stages, not 0",
    ("1f1b", 4, 0, 1): "a schedule needs 1 or more microbatches, not 0",
}


@pytest.mark.parametrize(("name", "stages", "microbatches", "chunks"), REFUSED)
def test_sizes_that_cannot_be_built(name: str, stages: int, microbatches: int, chunks: int) -> None:
    with pytest.raises(InputError) as caught:
        check.load(name, stages, microbatches, chunks)
    assert str(caught.value) == REFUSED[name, stages, microbatches, chunks]


ILLEGAL = {
    "0F0,0B0": "the schedule has 1 rows for 2 pipeline ranks; write one row per rank",
    "0F0,1B0\n1F0,1B0": "rank 0 runs 1B0, but its stages are 0",
    "0F0,0F1,0B0\n1F0,1B0": "rank 0 runs 0F1, but there are only 1 microbatches",
    "0F0,0F0,0B0\n1F0,1B0": "rank 0 runs 0F0 more than once; once is right",
    "0F0\n1F0,1B0": "rank 0 runs F of microbatch 0 on stage 0; it needs F and B, or F, I and W",
    "0F0,0B0,0W0\n1F0,1B0": "rank 0 runs F, B, W of microbatch 0 on stage 0; it needs F and B, or F, I and W",
    "0B0,0F0\n1F0,1B0": "the schedule deadlocks: rank 0 is at 0B0 and waits for 0F0, but rank 0 is at 0B0",
    "0F0,0B0\n1B0,1F0": "the schedule deadlocks: rank 0 is at 0B0 and waits for 1B0, but rank 1 is at 1B0",
    "0F0,0W0,0I0\n1F0,1B0": "the schedule deadlocks: rank 0 is at 0W0 and waits for 0I0, but rank 0 is at 0W0",
}


@pytest.mark.parametrize("text", ILLEGAL)
def test_illegal_schedules_name_rank_and_action(text: str) -> None:
    with pytest.raises(SimulationError) as caught:
        check.check(parsed(text), Pipeline(2), 1)
    assert str(caught.value) == ILLEGAL[text]


def test_a_wait_for_what_nobody_runs() -> None:
    with pytest.raises(SimulationError, match="rank 0 is at 1F0 and waits for 0F0, which no rank runs"):
        time_actions(((Action(1, "F", 0),),), Pipeline(2))


@given(st.data())
def test_any_order_either_plays_or_is_a_deadlock(data: st.DataObject) -> None:
    """Whatever the order of the rows, playing ends; what plays keeps every dependency in time."""
    rows = [[Action(s, letter, i) for letter in ("F", "B") for i in range(3)] for s in range(3)]
    schedule = tuple(tuple(data.draw(st.permutations(row))) for row in rows)
    try:
        check.check(schedule, Pipeline(3), 3)
    except SimulationError as error:
        assert "deadlocks: rank" in str(error)
        return
    spans = {played.action: played for row in time_actions(schedule, Pipeline(3)) for played in row}
    for (stage, letter, i), played in ((p.action, p) for p in spans.values()):
        if letter == "F" and stage:
            assert spans[Action(stage - 1, "F", i)].end <= played.start
        if letter == "B" and stage < 2:
            assert spans[Action(stage + 1, "B", i)].end <= played.start


def test_what_show_prints() -> None:
    text = schedule_text("1f1b", 4, 8)
    assert ONE_F_ONE_B in text
    assert "1f1b: 4 stages, 8 microbatches" in text
    assert "bubble: 9 of 33 units (27.3%)" in text
    assert "microbatches in flight, by rank: 4, 3, 2, 1" in text
    assert "3F0,3B0,3F1,3B1" in text
    assert "4 stages of 2 chunks, 8 microbatches" in schedule_text("interleaved", 4, 8, 2)


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zero_bubble", "zb_h2", "dualpipev", *FOLDED])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_more_microbatches_than_settle_fill_memory_no_further(name: str, stages: int, chunks: int) -> None:
    if name != "zero_bubble" and chunks not in {"interleaved": (2, 3), "1f1b": (1,), "zb_h2": (1,)}.get(name, (2,)):
        return
    enough = check.peak_microbatches(name, stages, 10**6, chunks)
    assert enough < 10**6
    for more in (1, 2, 5):
        count = enough + more * stages
        assert check.peak_microbatches(name, stages, count, chunks) == enough
        assert fullest(name, stages, count, chunks) == fullest(name, stages, enough, chunks)


def fullest(name: str, stages: int, microbatches: int, chunks: int) -> list[set[object]]:
    """Return, by rank, the moments that keep no less than any other one alike: stage, direction, kept, unreduced."""
    found = moments(check.load(name, stages, microbatches, chunks))
    columns = (
        found.at.tolist(),
        found.forward.tolist(),
        map(tuple, found.kept.tolist()),
        map(tuple, found.unreduced.tolist()),
    )
    every = list(zip(*columns, strict=True))
    ranks = [every[a:b] for a, b in pairwise(found.start.tolist())]
    return [{one for one in row if not any(_beyond(other, one) for other in row)} for row in ranks]


def _beyond(other: tuple, one: tuple) -> bool:
    pairs = [*zip(one[2], other[2], strict=True), *zip(one[3], other[3], strict=True)]
    return other != one and other[:2] == one[:2] and all(a <= b for a, b in pairs)


def test_a_schedule_that_does_not_settle_is_looked_at_whole() -> None:
    assert check.peak_microbatches("gpipe", 4, 100) == 100
    assert check.peak_microbatches("1f1b", 4, 3) == 3
