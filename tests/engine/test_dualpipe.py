"""DualPipe and DualPipeV as jobs: what the published order costs and keeps, kernels, messages and reductions simulated."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from expert_cases import WIDE, job, played
from law_cases import even, free
from script_cases import written

from clustersim.engine.groups import families
from clustersim.errors import ConfigError
from clustersim.parallel.stages import stages
from clustersim.schedules import check
from clustersim.schedules.timing import time_actions
from clustersim.simulation import Simulator

DUAL = {"pp": 4, "dp": 2, "ep": 2, "parallelism__schedule": "dualpipe", "training__global_batch": 32, **WIDE}
HALF = {**DUAL, "parallelism__schedule": "dualpipev", "parallelism__vpp": 2, "model__layers": 8}
BESIDE = [DUAL, HALF]
INTERLEAVED = {"parallelism__schedule": "interleaved"}


@pytest.mark.parametrize(("pp", "m"), [(2, 8), (4, 8), (8, 20)])
def test_a_step_takes_what_the_drawing_says(pp, m):
    """On a free network; as both passes of a pair are waited for, its parts are as long as the two."""
    result, forward, backward = even(pp, m, "dualpipe")
    inputs = max(s.end - s.start for s in result.record.spans if s.kind == "I" and s.stage == pp // 2 - 1)
    cost = {"F": forward, "B": backward, "I": inputs, "W": backward - inputs}
    drawn = time_actions(check.load("dualpipe", pp, m), check.pipeline("dualpipe", pp), cost)
    found = max(s.end for s in result.record.spans if s.kind in cost)
    assert found == pytest.approx(
        max(row[-1].end for row in drawn), rel=0.02
    )  # embedding and head are not quite nothing


@pytest.mark.parametrize("case", BESIDE)
def test_exchanges_move_while_the_other_microbatch_computes(case):
    apart, beside = (played(mode, 400, **case) for mode in ("none", "microbatch"))
    assert beside.summary["step_time_s"] < apart.summary["step_time_s"]
    assert beside.parts[0]["compute"] == pytest.approx(apart.parts[0]["compute"], rel=1e-9)
    assert beside.parts[0]["ep"] < apart.parts[0]["ep"] / 2


def test_memory_is_twice_the_parameters_and_one_microbatch_more():
    """deepseek-ai/DualPipe, README: 2 × parameters and pp + 1 microbatches, 1F1B having 1 and pp."""
    one, two = (played("none", 400, **{**DUAL, "parallelism__schedule": name}) for name in ("1f1b", "dualpipe"))
    before, after = (result.summary["memory"]["by_pipeline_rank"] for result in (one, two))
    for rank in range(4):
        own = before[rank]["parameters_bytes"] + before[3 - rank]["parameters_bytes"]
        assert after[rank]["parameters_bytes"] == pytest.approx(own, rel=1e-12)
    more = after[1]["activations_bytes"] - before[1]["activations_bytes"]
    assert more == pytest.approx((5 - 3) * stages(two.job)[1].saved_bytes)  # of 1F1B's ranks the second keeps three


def test_both_copies_reduce_their_gradients_together():
    one = job(**DUAL).place(8, 8)
    found = families(one, free(8), np.arange(8), [("dp", ("all_reduce",)), ("edp", ("all_reduce",))])
    groups = [{frozenset(group) for group in family.ranks.tolist()} for family in found]
    assert groups == [
        {frozenset({0, 1, 6, 7}), frozenset({2, 3, 4, 5})},
        {*map(frozenset, ((0, 6), (1, 7), (2, 4), (3, 5)))},
    ]


MUCH = {"model__vocab": 65_536}  # which makes the first stage and the last one larger than the others


@pytest.mark.parametrize("case", BESIDE)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"zero": 1},
        {"zero": 1, "parallelism__overlap__grad_reduce": True, "parallelism__overlap__param_gather": True},
        {"ep": 1, "zero": 1, "parallelism__optimizer_instances": 2},
    ],
)
def test_all_ranks_of_a_group_reduce_and_gather_the_same_stage_at_once(case, more):
    simulator = Simulator(free(8))
    _, record = simulator._simulate_cached(simulator.placed(job(**{**case, **MUCH, **more})), "auto")
    slots = [*((task,) for task in range(len(record.shape.line))), *record.shape.meetings.slots]
    called = [
        {tuple(record.tasks.carried(task).items()) for task in slot}
        for slot in slots
        if record.shape.task(slot[0]).stream not in ("compute", "host")
    ]
    assert any(len(slot) > 1 for slot in slots)
    assert {len(calls) for calls in called} == {1}


@pytest.mark.parametrize("case", BESIDE)
def test_a_rank_with_both_ends_holds_a_tied_embedding_once(case):
    tied, untied = (played("none", 400, model__tied_embeddings=how, **case) for how in (True, False))
    assert "embedding" not in {span.stream for span in tied.record.spans}
    held = [r.summary["memory"]["by_pipeline_rank"][0]["parameters_bytes"] for r in (untied, tied)]
    assert held[0] - held[1] == 2 * tied.job.vocab * tied.job.model.hidden


def test_the_turn_of_a_v_sends_nothing():
    """Eight stages on four ranks hand on seven times forward and seven back, but for the middle of each, on the last rank."""
    result = played("none", 400, **HALF)
    sent = Counter(s.stage for s in result.record.spans if s.kind == "send" and s.microbatch == 0)
    before = Counter(
        s.stage
        for s in played("none", 400, **{**HALF, **INTERLEAVED}).record.spans
        if s.kind == "send" and s.microbatch == 0
    )
    assert sent.total() == before.total() * 12 / 14


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"zero": 3, "parallelism__fsdp__no_sync": False},
            "parallelism.fsdp.no_sync: false reduces gradients for each pass, which dualpipe runs two by two; write true",
        ),
        ({"training__global_batch": 12}, "2 or more per stage, not 6 on 4; use 8"),
        ({"parallelism__vpp": 2, "model__layers": 8}, "one model chunk per rank"),
    ],
)
def test_what_it_cannot_do_is_said(change, said):
    with pytest.raises(ConfigError, match=said):
        played("none", 400, **{**DUAL, **change})


@pytest.mark.parametrize("case", BESIDE)
@pytest.mark.parametrize("beside", [False, True])
def test_gradients_are_reduced_once(case, beside):
    """With the last pass that yields any of a stage, though it has whole backward passes and some of weight gradients alone."""
    one = job(**{**case, "zero": 0, "parallelism__overlap__grad_reduce": beside}).place(8, 8)
    split, own = one.parallelism, stages(one)
    schedule = check.load(split.schedule, split.pp, one.microbatches, split.vpp)
    for rank, script in enumerate(written(one, own, schedule)):
        once = [line for part in (*script.layout.special.values(), script.layout.finish) for line in part]
        reduced = sum(line.collective.size for line in once if line.collective and line.collective.group == "dp")
        assert reduced == 4 * sum(own[stage].dense for stage in one.pipeline.rank_stages(rank))
