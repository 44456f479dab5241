"""The best split: lower bounds that no simulation is below, and the answer of trying every point."""

from __future__ import annotations

import json
import math
import random
import re
import shlex
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, product
from typing import get_args

import numpy as np
import pytest
from bounds import bounds
from ctrl_c import press_ctrl_c
from engine_cases import cluster, job
from examples import examples
from hypothesis import HealthCheck, Phase, assume, given, reject, settings
from hypothesis import strategies as st
from step_cases import clusters, jobs
from sweep_cases import keywords, loaded, parsed, question, texts

import clustersim as cs
from clustersim.cli.options import ObjectiveName
from clustersim.errors import InputError, for_command
from clustersim.optimization.answer import wider
from clustersim.optimization.best import Answers, Best
from clustersim.optimization.objective import OBJECTIVES, Load, objective
from clustersim.optimization.search import Limits, search
from clustersim.optimization.space import TRAFFIC_KEYS, CandidateSpace
from clustersim.optimization.timeline import FORWARD, UnitSeconds, all_units, earliest, units
from clustersim.optimization.why import why
from clustersim.parallel.options import KEYS
from clustersim.schedules.check import misfit, pipeline
from clustersim.simulation import Simulator
from clustersim.sweeps import evaluate
from clustersim.sweeps.axes import space
from clustersim.sweeps.legal import EP_OVERLAP, OVERLAPS, TP_OVERLAP, legal
from clustersim.sweeps.space import SweepSpace

FREE = ("tp", "pp", "ep", "micro_batch", "recompute", "schedule", "vpp", "zero")
OVERLAPPED = " ".join(f"{key}=auto" for key in OVERLAPS)
CASES = {
    "gpt": "nvlink_h100_4 gpt3_xl global_batch=16",
    "llama": "superpod_h100_128 llama3_8b global_batch=128 cluster.nodes=2 predictor=roofline",
    "experts": "hgx_h100_8 mixtral_8x7b global_batch=16 model.layers=8 predictor=roofline",
    "overlap": "superpod_h100_128 llama3_8b global_batch=64 cluster.nodes=2 parallelism.overlap.p2p=true",
    "gathered": "superpod_h100_128 llama3_8b global_batch=64 cluster.nodes=4 predictor=roofline "
    "parallelism.overlap.grad_reduce=true parallelism.overlap.param_gather=true",
    "context": "superpod_h100_128 llama3_8b global_batch=32 seq=16384 model.max_positions=16384 cluster.nodes=2 "
    "predictor=roofline cp=2,4,8,16 parallelism.cp_type=all_gather,p2p,a2a parallelism.sequence_parallel=true "
    "parallelism.overlap.tp=none,bulk,ring,async",
    "beside": "superpod_h100_128 llama3_8b global_batch=32 cluster.nodes=2 predictor=roofline "
    f"parallelism.sequence_parallel=true {OVERLAPPED}",
    "experts beside": "superpod_h100_128 mixtral_8x7b global_batch=32 cluster.nodes=2 model.layers=8 "
    f"model.shared_experts=1 predictor=roofline {OVERLAPPED}",
    "scales": "hgx_h100_8 gpt3_xl global_batch=16 training.precision=fp8 model.layers=48 predictor=roofline",
    "unclipped": "superpod_h100_128 mixtral_8x7b global_batch=32 cluster.nodes=2 model.layers=8 predictor=roofline "
    "training.clip_gradients=false",
}


def free(given=()):
    """Return the axes of a search, all legal values of each, but for keys that are given."""
    return {KEYS[one]: "auto" for one in FREE if KEYS[one] not in given}


@lru_cache(1)
def inputs(name):
    """Return a case and its legal points; what one case keeps of its points goes when another is asked for."""
    case, rest = question(CASES[name])
    return case, legal(case, space(free(), texts(rest)))


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=examples(40) // 10, deadline=None, database=None, derandomize=True)
@given(place=st.integers(0, 10**6))
def test_no_step_is_shorter_than_its_bound_and_no_memory_smaller(name, place):
    case, points = inputs(name)
    point = points[place % len(points)]
    row = evaluate.evaluate(case, point)
    if row["status"] == "illegal":  # of lists of cp and its kinds, not all go together
        return
    simulator = case.cluster(point).simulator
    job = simulator.placed(case.job(point))
    found = bounds(simulator, job)
    peak = max(one.total for one in simulator.preparation.peaks(job))
    seconds, memory = found.any_order
    assert max(found.memory, memory) <= peak * (1 + 1e-12)
    if row["status"] == "ok":
        assert 0.5 * row["step_time_s"] < found.seconds <= row["step_time_s"]
        assert seconds <= row["step_time_s"]
    assert bounds(simulator, job, computed=True).seconds <= found.seconds * (1 + 1e-12)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink a job takes minutes and says little
)
@given(st.data())
def test_no_job_on_any_cluster_is_faster_than_its_bounds(data):
    topology = data.draw(clusters())
    simulator, one = Simulator(topology), data.draw(jobs(topology.gpus))
    try:
        placed = simulator.placed(one)
        step = simulator.seconds(placed)
    except InputError:
        reject()
    found = bounds(simulator, placed)
    assert max(found.seconds, found.any_order[0]) <= step * (1 + 1e-12)


def test_messages_delay_computation_and_not_the_exchanges_beside_it():
    """With both behind messages the bound was 0.4 % above the step."""
    simulator = Simulator(cluster(8, fabric="{kind: switch, link: {rate: 50Gb/s}}"))
    words = "model.experts=4 model.topk=2 tp=2 pp=4 ep=4 vpp=2 schedule=interleaved global_batch=304 " + EXCHANGED
    placed = simulator.placed(job(**keywords(words)))
    assert 0.8 < bounds(simulator, placed).seconds / simulator.seconds(placed) <= 1


FOUR = "hgx_h100_8 gpt3_xl tp=2 pp=4 micro_batch=1"
MIXTURE = (
    f"superpod_h100_128 qwen3_30b_a3b cluster.nodes=4 tp=1 ep=8 global_batch=64 micro_batch=1 {EP_OVERLAP}=microbatch"
)
EXCHANGED = "parallelism.overlap__ep=microbatch parallelism.overlap__p2p=false parallelism.sequence_parallel=true"
BESIDE_EACH_OTHER = "tp=1 pp=1 schedule=1f1b vpp=1 micro_batch=1 parallelism.overlap.grad_reduce=true"
CLOSE = [
    # one stage, one GPU: what is left is the gradient norm's launch
    (1 - 1e-6, {}, "hgx_h100_8 gpt3_xl dp=1 global_batch=8"),
    # the scales of fp8 are those of a stage: with those of all layers a bound was 3 % above the step
    (
        0.9,
        {},
        "hgx_h100_8 gpt3_xl tp=1 pp=8 vpp=2 schedule=zbv training.precision=fp8 model.layers=96 model.hidden=256 "
        "micro_batch=1 global_batch=16",
    ),
    # one microbatch on eight stages goes there and back: split backward passes are bound by those of inputs
    *(
        (0.85, {}, f"hgx_h100_8 mixtral_8x7b tp=1 pp=8 ep=1 schedule=zero_bubble {more} model.layers=8 global_batch=4")
        for more in ("micro_batch=4 recompute=none", "micro_batch=4 recompute=full")
    ),
    # passes follow the order of their schedule: the work of the busiest rank alone is half of some of these steps
    *(
        (0.95, {}, f"{FOUR} schedule={schedule} global_batch={batch}")
        for schedule in ("zb_h2 vpp=1", "zbv vpp=2", "v_half vpp=2", "v_min vpp=2")
        for batch in (4, 8, 32)
    ),
    # microbatches enter at both ends
    *(
        (0.95, {}, f"{FOUR} schedule={schedule} global_batch={batch}")
        for schedule in ("dualpipe vpp=1", "dualpipev vpp=2")
        for batch in (8, 14, 32)
    ),
    # two microbatches per replica: before the first backward pass and after the last forward pass, passes run alone
    (0.9, {}, f"{MIXTURE} schedule=1f1b pp=1 vpp=1 recompute=none parallelism.expert_tp=1"),
    (0.85, {}, f"{MIXTURE} schedule=interleaved pp=2 vpp=4 recompute=none parallelism.expert_tp=1"),
    (0.8, {}, f"{MIXTURE} schedule=dualpipe pp=4 vpp=1 recompute=none parallelism.expert_tp=1"),
    # gradients of experts and of the rest have a stream each; with their sum a bound was up to 21 % above the step
    *(
        (0, {}, f"{cluster_and_model} {BESIDE_EACH_OTHER} parallelism.overlap.param_gather={bool(zero)} zero={zero}")
        for cluster_and_model in (
            "superpod_h100_128 qwen3_30b_a3b cluster.nodes=2 ep=8 seq=4096 global_batch=16",
            "superpod_h100_128 gpt_oss_20b cluster.nodes=2 ep=8 global_batch=16",
            "nvl72_16 qwen3_30b_a3b cluster.nodes=1 ep=2 model.layers=2 global_batch=72",
        )
        for zero in (0, 1)
    ),
    # a dispatcher sends a row to each of eight nodes once: with one for each GPU a bound was up to 22 % above the step
    *(
        (0.85, {}, f"superpod_h100_128 deepseek_v3 cluster.nodes=8 tp=1 pp=1 ep=64 schedule=1f1b vpp=1 {more}")
        for more in (f"global_batch=128 model.layers=8 {EP_OVERLAP}={kind}" for kind in ("none", "microbatch"))
    ),
    # one microbatch on 16 nodes: gradients and parameters on the wire take much of the step
    *(
        (0.95, {"dp_s": 0.3}, f"superpod_h100_128 llama3_8b cluster.nodes=16 tp=8 pp=1 zero=1 global_batch=16 {more}")
        for more in (
            f"seq=1024 parallelism.overlap.grad_reduce={beside} parallelism.overlap.param_gather={beside}"
            for beside in (False, True)
        )
    ),
    # sixteen parts of a sequence on two nodes: a tenth of the step and more is exposed
    *(
        (0.94, {"cp_s": 0.1}, f"superpod_h100_128 llama3_8b cluster.nodes=2 tp=1 cp=16 global_batch=8 {more}")
        for more in (
            f"model.layers=4 parallelism.sequence_parallel=false parallelism.cp_type={kind}"
            for kind in ("p2p", "all_gather", "a2a+p2p parallelism.cp_inner=4")
        )
    ),
    # of collectives beside products what sticks out counts; nothing else is on the links of a node
    *(
        (0.97, {}, f"hgx_h100_8 llama3_8b tp=8 global_batch=8 parallelism.sequence_parallel=true {more}")
        for more in (f"parallelism.overlap.tp={kind}" for kind in ("none", "bulk", "ring", "async"))
    ),
]
"""Share of a step that its bound reaches at least, shares of it that are exposed, and the question."""


@pytest.mark.parametrize(("least", "exposed", "words"), CLOSE)
def test_a_bound_is_no_longer_than_its_step_and_close_to_it(least, exposed, words):
    case, rest = question(words)
    values = parsed(f"{rest} predictor=roofline")
    simulator = case.cluster(values).simulator
    job = simulator.placed(case.job(values))
    step = simulator.seconds(job)
    assert least * step < bounds(simulator, job).seconds <= step * (1 + 1e-12)
    row = evaluate.evaluate(case, values) if exposed else {}
    assert all(row[part] > share * step for part, share in exposed.items())


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("tp", "pp", "batch"), [(1, 8, 16), (2, 4, 4), (2, 4, 8), (4, 2, 8)])
def test_no_schedule_needs_less_memory_than_its_bound(tp, pp, batch, recompute):
    """A rank of a V has the first stage and the last, whose logits are kept for one microbatch at a time."""
    case, tried = loaded("hgx_h100_8", "gpt3_xl"), 0
    for schedule, vpp in product(("dualpipe", "dualpipev", "zbv", "v_half", "v_min", "zero_bubble", "zb_h2"), (1, 2)):
        words = (
            f"tp={tp} pp={pp} vpp={vpp} schedule={schedule} micro_batch=1 recompute={recompute} global_batch={batch}"
        )
        simulator = case.cluster({}).simulator
        with suppress(InputError):  # of a schedule that cannot have these stages, chunks or microbatches
            job = simulator.placed(case.job(parsed(words)))
            peak = max(one.total for one in simulator.preparation.peaks(job))
            found = bounds(simulator, job)
            assert max(found.memory, found.any_order[1]) <= peak
            tried += 1
    assert tried >= 4


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("kept", ["optimizer_states=1.0", "optimizer_states=0.5", "activations=1.0"])
def test_what_is_on_the_host_is_in_no_bound_of_memory(kept, zero):
    case, rest = question(f"hgx_h100_8 llama3_8b tp=2 zero={zero} recompute=full training.offload.{kept}")
    simulator = case.cluster({}).simulator
    job = simulator.placed(case.job(parsed(rest)))
    found = bounds(simulator, job)
    peak = max(rank.total for rank in simulator.preparation.peaks(job))
    assert max(found.memory, found.any_order[1]) <= peak * (1 + 1e-12)


REPEATING = [
    *((name, 1) for name in ("1f1b", "zero_bubble", "zb_h2", "dualpipe")),
    *((name, 2) for name in ("zero_bubble", "zbv", "v_half", "v_min", "dualpipev", "interleaved/7")),
    ("interleaved", 3),
]
"""Schedules and chunks whose order repeats."""


@settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
@given(
    st.sampled_from(REPEATING), st.integers(1, 7), st.integers(3, 12), st.booleans(), st.randoms(use_true_random=False)
)
def test_periods_that_are_left_out_take_no_longer_than_they_do(kind, ranks, times, beside, draw):
    """Random seconds of each stage, messages that ranks wait for or not, and passes that overlap by any share."""
    schedule, chunks = kind
    size = schedule, ranks, times * (7 if "/" in schedule else 2 * ranks), chunks, beside
    assume(not misfit(*size[:-1]))
    some, periods = units(*size)
    on = pipeline(schedule, ranks, chunks)
    stages = range(on.stages * on.copies)
    most = draw.choice([0.5, 0.9, 1.0])
    passes = np.array([[most_of * draw.uniform(1 - most, 1) for _ in stages] for most_of in (1, 2, 1, 1, 0)])
    messages = np.array([[draw.uniform(0, draw.choice([0.1, 3])) for _ in stages] for _ in range(2)])
    waits, share, gates = draw.random() < 0.5, draw.uniform(0.5, 1), np.array([draw.uniform(0, 9) for _ in stages])

    def ends(order, left_out):
        letter, stage = order.kinds[..., 0].T, order.kinds[..., 1].T
        pair, (first, second) = letter[1] == FORWARD, passes[letter, stage]
        sent = np.where(letter < 3, messages[np.minimum(letter, 1), stage], 0.0)
        whole = np.maximum.reduce([share * (first + second), first, second])
        late = on.paired | (stage[0] % 2 == 0)
        seconds = UnitSeconds(first, second, whole, sent, waits * sent.sum(axis=0), pair, late)
        begin, end, free = earliest(order, seconds, gates, on.paired, left_out)
        return np.concatenate([begin[order.closing], end[order.closing], end[order.returning], free])

    whole = ends(all_units(*size), 0)
    assert (ends(some, periods) <= whole * (1 + 1e-12)).all()
    assert (ends(some, periods) >= whole * 0.5).all()


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipev", "zero_bubble"])
def test_the_answer_among_splits_of_a_schedule_is_that_of_trying_each(schedule):
    """Those that split backward passes, or enter at both ends, have bounds of their own."""
    case, points = inputs("experts")
    points = [point for point in points if point[KEYS["schedule"]] == schedule][::4]
    rows = [evaluate.evaluate(case, point) for point in points]
    done = [(row["step_time_s"], place) for place, row in enumerate(rows) if row["status"] == "ok"]
    found = search(case, points, objective("soonest"), 2)
    assert [one.place for one in found.best] == [(places[0],) for _, places in grouped(done)[:2]]


def test_a_larger_microbatch_keeps_no_less():
    """So what does not fit with a small one is not looked at with a larger one."""
    case, points = inputs("experts")
    known: dict[tuple[str, ...], float] = {}
    for point in points[::5]:
        simulator = case.cluster(point).simulator
        whole = bounds(simulator, simulator.placed(case.job(point))).memory
        key = tuple(str(value) for name, value in point.items() if name != KEYS["micro_batch"])
        assert known.get(key, 0.0) <= whole
        known[key] = whole


@pytest.fixture(scope="module")
def tried():
    """Return some points of a space, each simulated."""
    case, points = inputs("gpt")
    return [(evaluate.evaluate(case, point), point) for point in points[::12]]


def grouped(done):
    """Return what is minimized and the places of all points that have it, which are one answer, the simplest first."""
    values = dict.fromkeys(value for value, _ in sorted(done))
    return [(value, [place for other, place in done if other == value]) for value in values]


@pytest.mark.parametrize("wanted", ["soonest", "rent", "owned", "energy"])
def test_the_answer_is_that_of_trying_every_point(tried, wanted):
    case, points = inputs("gpt")[0], [point for _, point in tried]
    aim = objective(wanted)
    done = [
        (
            aim.value(
                case.cluster(point), Load(row["global_batch"] * row["seq"], row["ranks"], row["dp"]), row["step_time_s"]
            ),
            place,
        )
        for place, (row, point) in enumerate(tried)
        if row["status"] == "ok"
    ]
    found = search(case, points, aim, 4)
    assert [[one.value, [one.point, *one.same]] for one in found.best] == [
        [value, [points[place] for place in places]] for value, places in grouped(done)[:4]
    ]
    assert found.simulated < len(done)
    counted = found.simulated + found.bounded + found.twins + sum(found.refused.counts.values())
    assert counted == found.points == len(points)


WHOLE = {
    "dense": "rail_optimized gpt3_xl cluster.nodes=2 cluster.gpu=h100 model.layers=8 tp=1,2,4 "
    "schedule=1f1b,zero_bubble,interleaved",
    "mixture": "rail_optimized mixtral_8x7b cluster.nodes=2 cluster.gpu=h100 model.layers=4 tp=1,2,4 "
    "schedule=1f1b,zero_bubble,interleaved",
    "contended": "leaf_spine_32 llama3_8b cluster.nodes=8 fabric.oversubscription=4 model.layers=8 tp=1,2,4,8 "
    "schedule=1f1b,zero_bubble",
}
"""Spaces of 200 to 400 points. Transfers of the last one share links: its leaves are oversubscribed, and routes are hashed."""


@pytest.mark.parametrize("name", WHOLE)
def test_the_winner_of_a_whole_sweep_is_that_of_the_search(name):
    topology, workload, rest = WHOLE[name].split(" ", 2)
    case = loaded(topology, workload, unlikely=False)
    given = texts(f"{rest} recompute=none,full predictor=roofline global_batch=16 micro_batch=1,2 zero=1,3")
    given |= {**dict.fromkeys(OVERLAPS[:3], "true"), **dict.fromkeys(OVERLAPS[3:], "none")}
    asked = space(free(given), given)
    points = legal(case, asked)
    rows = [row for row in (evaluate.evaluate(case, point) for point in points) if row["status"] == "ok"]
    assert 200 <= len(rows) <= len(points) <= 400
    found = search(case, asked, objective("soonest"), 3)
    steps = sorted({one["step_time_s"] for one in rows})
    assert [one.row["step_time_s"] for one in found.best] == pytest.approx(steps[:3], rel=1e-9)
    assert found.points == len(points)
    assert found.simulated < len(rows) / 4


BESIDE = {
    "dense": "superpod_h100_128 llama3_8b cluster.nodes=2 global_batch=16 parallelism.sequence_parallel=true tp=2 pp=2 "
    "schedule=1f1b,zero_bubble micro_batch=1",
    "experts": "superpod_h100_128 mixtral_8x7b cluster.nodes=2 global_batch=32 model.layers=4 model.shared_experts=1 tp=1 "
    "pp=1,2 zero=1 micro_batch=1 ep=8",
}


def every(space):
    """Return all points of the tree of a space, the simplest first."""
    return [point for split in space.splits for _, point in space.fill(split.point, space.inner)]


@pytest.mark.parametrize("name", BESIDE)
def test_what_runs_beside_is_chosen_as_by_trying_each(name):
    """Where nobody gives overlap, each split has that which suits it best; the tree is never made whole."""
    case, rest = question(BESIDE[name])
    fixed = texts(f"{rest} recompute=none predictor=roofline")
    tree = CandidateSpace(case, space(free(fixed), fixed))
    points = every(tree)
    assert {*tree.chosen, EP_OVERLAP} == set(OVERLAPS)
    assert len(points) == tree.points > 80
    assert len({str(sorted(point.items(), key=str)) for point in points}) == len(points)
    rows = [evaluate.evaluate(case, point) for point in points]
    assert {row["status"] for row in rows} <= {"ok", "does not fit"}
    best = {}
    for row, point in zip(rows, points, strict=True):
        split = str([(key, value) for key, value in point.items() if key not in OVERLAPS])
        if row["status"] == "ok":
            best[split] = min(best.get(split, math.inf), row["step_time_s"])
    least = sorted(best.values())
    assert len(least) > 5
    distinct = [least[0], *(b for a, b in pairwise(least) if not math.isclose(a, b, rel_tol=1e-9))]
    found = search(case, tree, objective("soonest"), 4)
    assert [one.row["step_time_s"] for one in found.best] == pytest.approx(distinct[:4], rel=1e-9)
    assert found.simulated < len(points) / 2
    counted = found.simulated + found.bounded + found.twins + sum(found.refused.counts.values())
    assert counted == found.points == len(points)


@pytest.mark.parametrize("name", ["gpt", "experts beside"])
def test_traffic_beside_computation_changes_no_memory(name):
    """So of points that differ in it alone one says for all whether they fit."""
    case, points = inputs(name)
    for point in points[:: len(points) // 20]:
        peaks = set()
        for values in product((False, True), repeat=3):
            beside = dict(zip(TRAFFIC_KEYS, values, strict=True))
            simulator = case.cluster(point).simulator
            job = simulator.placed(case.job(point)).changed(beside)
            peaks.add(max(one.total for one in simulator.preparation.peaks(job)))
        assert len(peaks) == 1


def test_a_framework_says_what_may_be_chosen():
    """Megatron-Core has no messages beside passes without chunks; nanotron has one kind of overlap."""
    fixed = "cluster.nodes=2 parallelism.sequence_parallel=true global_batch=32 tp=2 pp=4 zero=1 training.framework="

    def chosen(framework):
        asked = space({KEYS["schedule"]: "auto", KEYS["vpp"]: "auto"}, texts(fixed + framework))
        tree = CandidateSpace(loaded("superpod_h100_128", "llama3_8b"), asked)
        values = {(key, point[key], point[KEYS["vpp"]] > 1) for point in every(tree) for key in tree.chosen}
        return tree.chosen, values

    keys, values = chosen("megatron-core")
    assert set(keys) == set(OVERLAPS) - {EP_OVERLAP}
    assert ("parallelism.overlap.p2p", True, True) in values
    assert ("parallelism.overlap.p2p", True, False) not in values
    assert {value for key, value, _ in values if key == "parallelism.overlap.tp"} == {"none", "bulk", "ring"}
    keys, values = chosen("nanotron")
    assert (keys, {value for _, value, _ in values}) == (("parallelism.overlap.tp",), {"none", "bulk"})
    assert chosen("megatron-2020")[0] == ()


def test_sharded_gradients_change_no_step():
    """So of zero 1 and 2 one is simulated: 2 frees gradients sooner, and sends the same."""
    case, points = inputs("gathered")
    pairs = [(point, {**point, KEYS["zero"]: 2}) for point in points if point[KEYS["zero"]] == 1]
    for pair in pairs[:: len(pairs) // 6]:
        one, two = (evaluate.evaluate(case, point) for point in pair)
        if one["status"] == "ok":
            assert two["step_time_s"] == one["step_time_s"]
            assert two["peak_memory_bytes"] <= one["peak_memory_bytes"]


@pytest.mark.parametrize(
    ("workload", "changes", "degrees"),
    [
        ("llama3_70b", {}, [1, 2, 4]),
        ("llama3_70b", {"training.seq": 32768}, [1, 2, 4, 8, 16]),
        ("gpt3", {}, None),
        ("llama3_70b", {KEYS["cp"]: 8}, None),
        ("t5_11b", {"training.seq": 8192}, None),
    ],
)
def test_context_parallelism_is_tried_where_a_part_has_enough_tokens(workload, changes, degrees):
    found = wider(loaded("superpod_h100_128", workload), SweepSpace({}, changes, frozenset(), (KEYS["tp"],)))
    assert found.axes.get(KEYS["cp"]) == degrees
    assert found.auto == (KEYS["tp"],)


def test_slices_of_experts_are_tried_and_the_best_is_that_of_all():
    case = loaded("hgx_h100_8", "mixtral_8x7b")
    fixed = parsed("global_batch=8 model.layers=2 predictor=roofline pp=1 zero=1 seq=4096 recompute=none micro_batch=1")
    fixed |= {"parallelism.sequence_parallel": True}
    asked = wider(case, SweepSpace({}, fixed, frozenset(), (KEYS["tp"], KEYS["ep"])))
    points = legal(case, asked)
    slices = {(point[KEYS["tp"]], point["parallelism.expert_tp"]) for point in points}
    assert {(4, 1), (4, 2), (4, 4), (2, 1), (2, 2)} <= slices
    assert {point[KEYS["cp"]] for point in points} == {1, 2}
    rows = [evaluate.evaluate(case, point) for point in points]
    assert {row["status"] for row in rows} <= {"ok", "does not fit"}
    least = min(row["step_time_s"] for row in rows if row["status"] == "ok")
    assert search(case, points, objective("soonest"), 1).best[0].row["step_time_s"] == least


def answers(top, *rows):
    found = Answers(top)
    for place, (value, verdict) in enumerate(rows):
        found.add(Best((value,), (place,), {"place": place}, {"memory_verdict": verdict}))
    return found


def test_of_equals_the_simplest_that_likely_fits_stands_for_all():
    """The first in the space is the simplest; runners-up are other answers."""
    rows = [(1.0, "likely"), (1.0, "likely"), (2.0, "unlikely"), (1.0, "unlikely"), (2.0 * (1 + 1e-12), "likely")]
    found = answers(2, *rows, (3.0, "likely"))
    assert [(*one.place, [other["place"] for other in one.same]) for one in found.best()] == [(0, [1, 3]), (4, [2])]
    assert found.worst == (2.0 * (1 + 1e-12),)
    assert answers(2, (1.0, "likely")).worst == (math.inf, math.inf)


def test_only_what_likely_fits_is_an_answer_unless_the_rest_is_asked_for_too():
    """On GPUs of which the fastest split takes 90 % its runner-up that likely fits is the best."""
    asked = space(
        {KEYS["tp"]: "1,2,4", KEYS["micro_batch"]: "1,2,4"}, texts("global_batch=16 predictor=roofline schedule=1f1b")
    )
    points = every(CandidateSpace(loaded("nvlink_h100_4", "gpt3_xl"), asked))

    def best(unlikely, memory):
        case = loaded("nvlink_h100_4", "gpt3_xl", unlikely)
        small = case.cluster({}).simulator.cluster
        small = replace(small, gpu=small.gpu.model_copy(update={"memory": memory}))
        case = evaluate.SweepInputs(small, case.workload, unlikely=unlikely)
        return (
            search(case, [{k: v for k, v in p.items() if "." in k} for p in points], objective("soonest"), 1)
            .best[0]
            .row
        )

    free = best(True, 1e15)
    narrow = free["peak_memory_bytes"] / 0.9
    assert best(True, narrow)["step_time_s"] == free["step_time_s"]
    other = best(False, narrow)
    assert other["memory_verdict"] == "likely" and other["step_time_s"] > free["step_time_s"]


def test_of_several_predictors_and_clocks_the_answer_is_that_of_trying_all():
    case = loaded("nvlink_h100_4", "gpt3_xl")
    keys = {"predictor": "neusight,roofline", "clocks": "0.5,sustained,0.7", KEYS["global_batch"]: "16"}
    tree = CandidateSpace(case, space({KEYS["tp"]: "auto", KEYS["micro_batch"]: "1,2"}, keys))
    points = every(tree)
    rows = [evaluate.evaluate(case, point) for point in points]
    assert {(point["predictor"], point["clocks"]) for point in points} == {
        *product(("neusight", "roofline"), ("0.5", "sustained", "0.7"))
    }
    times = sorted({row["step_time_s"] for row in rows if row["status"] == "ok"})
    found = search(case, tree, objective("soonest"), 1)
    assert found.best[0].row["step_time_s"] == times[0]
    assert found.simulated < len(points)


def test_values_are_the_same_as_text():
    """`--set parallelism.zero=1` is text where `--zero 1` is a number."""
    case = loaded("nvlink_h100_4", "gpt3_xl")
    axes = {KEYS["tp"]: "auto", KEYS["micro_batch"]: "1,2", KEYS["zero"]: "1"}
    given = {key: value for key, value in axes.items() if value != "auto"} | {"predictor": "roofline"}
    numbers = search(case, legal(case, space(axes, {"predictor": "roofline"})), objective("soonest"), 1)
    text = search(case, legal(case, space({KEYS["tp"]: "auto"}, given)), objective("soonest"), 1)
    assert text.best[0].row["step_time_s"] == numbers.best[0].row["step_time_s"]
    assert text.points == numbers.points


def test_the_fewest_gpus_for_a_speed_are_that_and_reach_it():
    case = loaded("rail_optimized", "llama3_8b")
    axes = {KEYS["tp"]: "auto", KEYS["pp"]: "1,2", "cluster.nodes": "1..8x2"}
    fixed = {"training.global_batch": "64", "predictor": "roofline", "parallelism.sequence_parallel": "false"}
    points = legal(case, space(axes, fixed))
    found = search(case, points, objective("gpus", 150_000), 1)
    reached = [
        row
        for row in (evaluate.evaluate(case, p) for p in points)
        if row["status"] == "ok" and row["tokens_per_s"] >= 150_000
    ]
    [best] = found.best
    assert best.row["ranks"] == min(row["ranks"] for row in reached)
    assert best.row["tokens_per_s"] == max(row["tokens_per_s"] for row in reached if row["ranks"] == best.row["ranks"])
    assert search(case, points, objective("gpus", 1e12), 1).best == []


@pytest.mark.parametrize(
    ("name", "target", "sentence"),
    [
        ("gpus", None, "--objective gpus: needs a speed to reach; add --target, in tokens/s above 0"),
        ("gpus", -1.0, "--objective gpus: needs a speed to reach"),
        ("speed", None, "--objective speed: is not an objective; use soonest, rent, owned, gpus or energy"),
    ],
)
def test_an_objective_that_is_none_is_one_sentence(name, target, sentence):
    with for_command(), pytest.raises(InputError, match=sentence):
        objective(name, target)


def test_the_objectives_of_the_command_are_those_of_a_search():
    assert get_args(ObjectiveName) == OBJECTIVES


@pytest.mark.parametrize("goal", ["rent", "owned"])
def test_an_objective_in_money_needs_a_price_of_some_cluster(command_line, goal):
    words = ("optimize", "hgx_h100_8", "gpt3_xl", "--predictor", "roofline", "--tp", "1", "--objective", goal)
    code, out, err = command_line(*words, "--gpu", "h800")
    assert (code, out) == (2, "")
    assert err.startswith(f"clustersim: --objective {goal}: the price of h800")
    code, out, _ = command_line(*words, "--gpu", "h800,h100", "--json")
    assert code == 0
    assert json.loads(out)["points_illegal"] > 0


def test_a_runner_up_is_told_what_costs_it_time():
    best = {"global_batch": 8, "seq": 1, "step_time_s": 10.0, "compute_s": 8.0, "bubble_s": 2.0}
    other = {"global_batch": 16, "seq": 1, "step_time_s": 24.0, "compute_s": 14.0, "bubble_s": 4.0, "tp_s": 6.0}
    assert why(best, other) == "+20.0% a token: 3 s more tensor-parallel communication, against 1 s less compute"
    assert why(best, other | {"zero": 2}) == why(best, other)


def test_the_parts_named_of_a_runner_up_add_up_to_about_its_difference():
    """Four parts of a split of GPT-3 come to 125 ms less for one that takes 129 ms more: the fifth is named too."""
    best = {"global_batch": 8, "seq": 1, "step_time_s": 10.0, "compute_s": 7.0, "bubble_s": 2.0, "pp_s": 1.0}
    more = {"tp": 0.9152, "compute": 0.6078, "dp": 0.254, "bubble": -1.225, "pp": -0.4234, "ep": 0.0004}
    other = {"step_time_s": 10.0 + sum(more.values())}
    other |= {f"{part}_s": best.get(f"{part}_s", 0.0) + change for part, change in more.items()}
    assert why(best, best | other) == (
        "+1.3% a token: 915.2 ms more tensor-parallel communication, 607.8 ms more compute and 254 ms more data-parallel "
        "communication, against 1.225 s less bubble and 423.4 ms less pipeline communication"
    )
    draw = random.Random(1)
    for _ in range(100):
        more = {part: draw.gauss(0, 0.3) for part in more}
        other = {"step_time_s": 10.0 + sum(more.values())}
        other |= {f"{part}_s": best.get(f"{part}_s", 0.0) + change for part, change in more.items()}
        parts = re.findall(r"([0-9.]+) (s|ms|us) (more|less)", why(best, best | other))
        named = sum(
            {"s": 1, "ms": 1e-3, "us": 1e-6}[unit] * float(n) * (1 if way == "more" else -1) for n, unit, way in parts
        )
        assert named == pytest.approx(sum(more.values()), rel=0.25, abs=5e-3)


def test_a_runner_up_in_dollars_is_told_what_costs_dollars():
    """Twice the GPUs, half the time: the parts are those of all GPUs, and of those without a rank."""
    best = {"global_batch": 8, "seq": 1, "step_time_s": 10.0, "compute_s": 8.0, "bubble_s": 2.0, "ranks": 8, "gpus": 8}
    other = best | {"step_time_s": 6.0, "compute_s": 4.0, "ranks": 12, "gpus": 16}
    dollars = best | {"usd_per_1t_tokens": 100.0}, other | {"usd_per_1t_tokens": 120.0}
    # 120 dollars of 16 GPUs: a quarter idle, and of the rest two thirds compute and a third bubble
    assert why(*dollars, "rent") == (
        "+20.0% USD a token: 30 USD more idle GPUs and 10 USD more bubble, against 20 USD less compute, for 10^12 tokens"
    )
    assert why(best, other, "gpus") == "4 GPUs more"


NONE = {
    "too slow": (
        ["hgx_h100_8", "gpt3_xl", "--objective", "gpus", "--target", "1e12", "--tp", "1,2"],
        "--target: no point is so fast; the fastest of ",
    ),
    "too large": (
        ["superpod_h100_128", "llama3_70b", "--nodes", "1", "--tp", "4,8"],
        " GiB, and h100-sxm has 79.65 GiB: none of 129 published mappings this full ran; give ",
    ),
    "no cluster": (["superpod_h100_128", "gpt3_xl", "--gpu", "h1000,b2000"], "unknown GPU '"),
    "unasked target": (
        ["hgx_h100_8", "gpt3_xl", "--target", "5"],
        "--target: is the speed that the fewest GPUs must reach; add --objective gpus, or leave it out",
    ),
}


FEW = ["--schedule", "1f1b", "--zero", "1", "--vpp", "1", "--predictor", "roofline"]


@pytest.mark.parametrize("name", NONE)
def test_a_search_without_an_answer_says_what_would_be_one(command_line, name):
    words, sentence = NONE[name]
    code, out, err = command_line("optimize", *words, *FEW)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.startswith("clustersim: ")


@pytest.mark.parametrize(("given", "said"), [([], True), (["--set", "parallelism.sequence_parallel=auto"], False)])
def test_an_answer_says_that_sequence_parallelism_was_not_tried(command_line, given, said):
    code, out, _ = command_line("optimize", "hgx_h100_8", "gpt3_xl", "--global-batch", "64", *FEW, *given)
    assert code == 0
    assert ("all without sequence parallelism" in out) == said


@pytest.mark.parametrize("command", ["optimize", "sweep"])
@pytest.mark.parametrize("given", ["training.micro_batch=1..4", "parallelism.tp=many", "training.seq=2k"])
def test_text_in_the_place_of_a_number_is_one_sentence(command_line, tmp_path, command, given):
    words = ["--vpp", "auto", "--micro-batch", "auto"] if command == "sweep" else []
    words = [*words[: 4 if "micro" not in given else 2], *(["--out", str(tmp_path / "none")] if words else [])]
    code, out, err = command_line(command, "superpod_h100_128", "gpt3", *words, "--set", given)
    key, value = given.split("=")
    assert (code, out) == (2, "")
    assert err.endswith(f"{key}: {value} must be a whole number\n")


def test_what_a_refusal_names_is_an_answer(command_line):
    words, _ = NONE["too slow"]
    _, _, err = command_line("optimize", *words, *FEW)
    would = re.search(r"ask for --target (\d+)", err)[1]
    code, out, _ = command_line("optimize", *words[:5], would, *words[6:], *FEW, "--json")
    assert code == 0
    assert json.loads(out)["rows"][0]["tokens_per_s"] >= float(would)
    words, _ = NONE["too large"]
    _, _, err = command_line("optimize", *words, *FEW)
    fits = re.search(r"give \d+ nodes \((.*) fits there\)", err)[1]
    code, out, _ = command_line("run", *words[:2], *shlex.split(fits), "--json", "--no-save")
    assert code == 0
    assert json.loads(out)["memory"]["verdict"] == "likely"


def test_clusters_that_are_none_are_counted_beside_those_that_are(command_line):
    few = [*FEW, "--global-batch", "16", "--micro-batch", "1", "--recompute", "none"]
    code, out, _ = command_line("optimize", "hgx_h100_8", "gpt3_xl", "--nodes", "2,1", *few)
    assert code == 0
    assert "1 illegal\n  illegal, such as: " in out
    assert "2 nodes need a network between them" in out


def test_the_command_gives_the_best_as_a_run(call):
    words = shlex.split(
        "optimize nvlink_h100_4 gpt3_xl --global-batch 16 --schedule 1f1b --zero 0 --predictor roofline"
    )
    found = json.loads(call(*words, "--json", "--top", "3")[1])
    assert len(found["rows"]) == 3
    counted = found["points_simulated"] + found["points_bounded"] + found["points_same"]
    assert counted + found.get("points_not_fitting", 0) == found["points"]
    alone = json.loads(call(*shlex.split(found["best_run"])[1:], "--json", "--no-save")[1])
    assert alone["step_time_s"] == found["rows"][0]["step_time_s"]
    text = call(*words)[1]
    assert "the best one alone:\n  clustersim run nvlink_h100_4 gpt3_xl --engine auto --tp" in text
    assert "why it is the best:\n  2. +" in text


INTERRUPTED = ("optimize", "hgx_h100_8", "gpt3_xl", "--predictor", "roofline", "--top", "8")


@pytest.mark.parametrize("after", [3, 6])
def test_ctrl_c_gives_the_best_so_far_and_what_is_open(command_line, monkeypatch, after):
    """Pressed before some simulation: what was found stands, and no point is better by more than is said."""
    whole = json.loads(command_line(*INTERRUPTED, "--json")[1])
    press_ctrl_c(monkeypatch, lambda done, _: done >= after)
    code, out, err = command_line(*INTERRUPTED, "--json")
    assert (code, err) == (130, "clustersim: interrupted\n")
    found = json.loads(out)
    assert found["points_open"] > 0
    assert found["points_simulated"] <= after
    best, least = found["rows"][0]["step_time_s"], whole["rows"][0]["step_time_s"]
    assert least <= best
    assert least >= best * (1 - found["gap"]) * (1 - 1e-9)
    press_ctrl_c(monkeypatch, lambda done, _: done >= after)
    code, out, err = command_line(*INTERRUPTED)
    assert (code, err) == (130, "clustersim: interrupted\n")
    assert "the best one alone:\n  clustersim run hgx_h100_8 gpt3_xl" in out
    assert f"\n{found['nearest_run']['said']}\n" in out
    assert found["nearest_run"]["said"].startswith("nearest published run: ")
    assert re.search(
        r"^ended early: [\d,]+ points? (was|were) not reached, of which none is better than", out, re.MULTILINE
    )


@pytest.mark.parametrize("simulations", [1, 5, 20])
@pytest.mark.parametrize("words", ["tp=1,2 micro_batch=1,2 recompute=none", "tp=2"])
@pytest.mark.parametrize("chosen", [True, False])
def test_a_search_that_ended_early_counts_each_point_once(words, simulations, chosen):
    """With fewer answers than were requested, only what a better one of its split stands for is known to be worse."""
    case, given = loaded("hgx_h100_8", "gpt3_xl", unlikely=False), texts(words)
    fixed = {} if chosen else {**dict.fromkeys(OVERLAPS, "auto"), TP_OVERLAP: "none,ring", EP_OVERLAP: "none"}
    asked = space(free(given), {"predictor": "roofline", **given, **fixed})
    found = search(case, asked, objective("soonest"), 100, limits=Limits(simulations=simulations))
    out = sum(found.refused.counts.values())
    assert found.simulated + found.bounded + found.twins + found.open_points + out == found.points
    assert found.open_points > 0
    assert found.bounded >= 0
    assert chosen or found.bounded == 0


def test_ctrl_c_before_anything_is_found_is_ctrl_c(command_line, monkeypatch):
    press_ctrl_c(monkeypatch, lambda *_: True)
    assert command_line(*INTERRUPTED) == (130, "", "clustersim: interrupted\n")


SMALL = {"tp": 2, "pp": 2, "micro_batch": 1, "recompute": "none", "schedule": "1f1b", "zero": 1, "vpp": 1}


@pytest.mark.parametrize("odd", [0, -1, {}, [1], "x", 10**18, None], ids=repr)
@pytest.mark.parametrize(
    "name", ["cp", "tp", "pp", "dp", "ep", "vpp", "micro_batch", "global_batch", "seq", "schedule", "zero", "recompute"]
)
def test_values_that_a_key_can_never_have_are_refused_before_any_rule_calculates_with_them(name, odd):
    """What a degree of 0 divides, and how many batches there are of -1 sequences, is never asked."""
    if name == "zero" and odd == 0:
        return  # which is one
    with pytest.raises(cs.ClustersimError):
        cs.optimize("hgx_h100_8", "gpt3_xl", predictor="roofline", **{**SMALL, name: [SMALL.get(name, 1), odd]})
