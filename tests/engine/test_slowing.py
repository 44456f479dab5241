"""Communication on streams of its own takes SMs and memory from the passes beside it while both run; both players agree."""

import numpy as np
import pytest
import simpy
from engine_cases import cluster, job

from clustersim.engine.contention import LinkUse
from clustersim.engine.fabric import Activity, Segment
from clustersim.engine.graph import StepGraph
from clustersim.engine.loop import loop
from clustersim.engine.loop_state import LoopJob, slot_flows
from clustersim.engine.program import COMPUTE, UPDATE
from clustersim.engine.simulate import simulate
from clustersim.engine.slowing import BesideRows, SlowedFabric, Slowing
from clustersim.engine.tasks import SlotKinds
from clustersim.errors import ConfigError
from clustersim.report.breakdown import breakdown
from clustersim.simulation import run

LARGE = {"model__hidden": 2048, "training__seq": 8192}
OVERLAP, BUCKET = "parallelism__overlap.grad_reduce", {"parallelism__bucket": 3_000_000}
CASES = {
    "sharded": {**LARGE, "parallelism__zero": 3, "parallelism__dp": 8},
    "buckets": {**LARGE, **BUCKET, "parallelism__dp": 8, OVERLAP: True},
    "gathered": {
        **LARGE,
        **BUCKET,
        "parallelism__dp": 8,
        "parallelism__zero": 1,
        OVERLAP: True,
        "parallelism__overlap.param_gather": True,
    },
    "messages": {**LARGE, "parallelism__pp": 4, "parallelism__dp": 2, "parallelism__overlap.p2p": True},
    "all": {
        **LARGE,
        **BUCKET,
        "parallelism__tp": 2,
        "parallelism__pp": 2,
        "parallelism__dp": 2,
        "parallelism__overlap.p2p": True,
        OVERLAP: True,
    },
    "a late host": {
        **LARGE,
        **BUCKET,
        "parallelism__dp": 8,
        OVERLAP: True,
        "training__framework": "megatron-deepspeed",
    },
    "everything": {
        **LARGE,
        **BUCKET,
        "model__layers": 4,
        "training__global_batch": 8,
        "training__framework": "megatron-core",
        "model__experts": 4,
        "model__topk": 2,
        "model__shared_experts": 1,
        "parallelism__tp": 2,
        "parallelism__pp": 2,
        "parallelism__vpp": 2,
        "parallelism__dp": 2,
        "parallelism__ep": 2,
        "parallelism__schedule": "interleaved",
        "parallelism__sequence_parallel": True,
        "parallelism__overlap.tp": "ring",
        "parallelism__overlap.ep": "shared",
        "parallelism__overlap.p2p": True,
        OVERLAP: True,
    },
}
TAKEN, MEMORY = "parallelism__overlap.sms", "parallelism__overlap.memory"


def step(case, sms, engine="simpy", fold=True, **options):
    options = CASES[case] | ({TAKEN: sms} if sms is not None else {}) | options
    return run(cluster(2), job(**options), fold=fold, ignore_memory=True, engine=engine)


def seconds(result):
    return result.summary["step_time_s"]


@pytest.mark.parametrize("case", CASES)
def test_a_share_of_nothing_changes_nothing(case):
    for engine in ("simpy", "auto"):
        assert seconds(step(case, 0, engine)) == seconds(step(case, None, engine))


@pytest.mark.parametrize("case", CASES)
def test_the_more_sms_are_taken_the_longer_a_step(case):
    times = [seconds(step(case, sms)) for sms in (0, 12, 24, 100)]
    assert times == sorted(times)
    assert times[0] < times[1]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sms", [24, 100])
def test_both_players_and_folding_agree(case, sms):
    reference = step(case, sms)
    assert seconds(step(case, sms, "auto")) == pytest.approx(seconds(reference), rel=1e-9)
    assert seconds(step(case, sms, fold=False)) == pytest.approx(seconds(reference), rel=1e-9)
    for parts in breakdown(reference.record):
        assert sum(parts.values()) == pytest.approx(seconds(reference), rel=1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ["simpy", "auto"])
def test_a_pass_is_longer_by_the_share_of_the_time_in_which_both_run(case, engine):
    record = step(case, 24, engine).record
    tasks, rows = record.tasks.own, record.graph.occurrences
    moving = {}
    for rank, node, task in zip(rows.rank.tolist(), rows.node.tolist(), rows.task.tolist(), strict=True):
        if tasks[task].stream not in (COMPUTE, "host"):
            moving.setdefault(rank, []).append((record.starts[node], record.ends[node]))
    more, slowed = {}, 0
    for rank, node, task in zip(rows.rank.tolist(), rows.node.tolist(), rows.task.tolist(), strict=True):
        one = tasks[task]
        if one.stream == COMPUTE and one.kind not in UPDATE and node not in record.segment_ends:
            begin, end = record.starts[node], record.ends[node]
            both = sum(max(0.0, min(end, over) - max(begin, start)) for start, over in moving.get(rank, ()))
            lost = 24 / 132 * both * one.activity.compute / one.activity.idle
            more[node] = max(more.get(node, (0.0,))[0], lost), end - begin - one.activity.idle
    for lost, longer in more.values():
        assert longer == pytest.approx(lost, rel=1e-6, abs=1e-12)
        slowed += longer > 1e-9
    assert slowed


def by_hand(share, part):
    """Return what slows node 3, of which `part` computes (else, bound by memory), while node 2 takes a share of the one rank."""
    rank = np.zeros(1, np.int64)
    takers = BesideRows(rank, np.array([2]), np.array([share]))
    return Slowing(takers, BesideRows(rank, np.array([3]), np.array([part])))


@pytest.mark.parametrize("share", [(0.0, 0.0), (0.25, 0.0), (0.9, 0.0), (0.0, 0.25), (0.1, 0.25), (0.25, 0.1)])
@pytest.mark.parametrize("part", [(1.0, 0.0), (0.5, 0.0), (0.0, 1.0), (0.5, 0.25)])
@pytest.mark.parametrize("begin", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("moving", [0.3, 1.0, 50.0])
def test_a_second_of_computation_beside_a_transfer_has_a_closed_form(share, part, begin, moving):
    """What is left of the pass when the transfer begins loses the shares of its parts until one of both is over."""
    left, lost = max(1.0 - begin, 0.0), share[0] * part[0] + max(share) * part[1]
    expected = lost * min(moving, left / (1.0 - lost))
    slowing = by_hand(share, part)
    done = [Activity([Segment(seconds, None)]) for seconds in (begin, moving, 1.0)]
    none, links = np.zeros(0, np.int64), np.zeros(0)
    graph = StepGraph(tuple(map(np.array, ([0, 0, 1, 0], [0, 0, 1, 0], [-1, 0, 1, 2]))), (), (), None, none, None, 1)
    use, seconds = LinkUse(graph, done, links), np.array([0.0, begin, moving, 1.0])
    [[found]] = loop(links, [LoopJob(graph, SlotKinds.found(done), slot_flows(done), use, seconds, slowing)])
    assert found.ends[3] == pytest.approx(1.0 + expected, abs=1e-12)
    assert found.slowed == pytest.approx([0.0, 0.0, 0.0, expected], abs=1e-12)
    env, over = simpy.Environment(), {}
    fabric = SlowedFabric(env, slowing)

    def play(node, at, seconds):
        yield env.timeout(at)
        done = fabric.begin(node, lambda _: over.setdefault(node, env.now))
        yield env.timeout(seconds)
        done(None)

    env.process(play(2, begin, moving))
    env.process(play(3, 0.0, 1.0))
    env.run()
    assert over[3] == pytest.approx(1.0 + expected, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("memory", ["nccl", 0.5])
def test_memory_is_missed_by_both_players_alike_and_only_by_kernels_that_it_bounds(case, memory):
    alone, all_lose = step(case, 0), step(case, 66)
    reference = step(case, 0, **{MEMORY: memory})
    assert seconds(reference) >= seconds(alone)
    if memory == 0.5:
        assert seconds(alone) < seconds(reference) < seconds(all_lose)
    assert seconds(step(case, 0, "auto", **{MEMORY: memory})) == pytest.approx(seconds(reference), rel=1e-9)
    assert seconds(step(case, 0, fold=False, **{MEMORY: memory})) == pytest.approx(seconds(reference), rel=1e-9)


def test_kernels_that_memory_bounds_miss_the_larger_of_both_shares():
    """Half of the SMs (66 of 132) are missed by all kernels: no share of the memory up to that changes anything."""
    for case in CASES:
        assert seconds(step(case, 66, **{MEMORY: 0.5})) == pytest.approx(seconds(step(case, 66)), rel=1e-12)


def test_nccl_moves_three_bytes_of_memory_for_each_that_a_gpu_receives():
    """A ring all-reduce of 8 GPUs receives 2 · 7/8 of its bytes; what it takes of the memory is that over the time it has."""
    result = step("buckets", 0, **{MEMORY: "nccl"})
    reductions = [(call, own) for own, (call, _) in result.plan.calls.items() if call.group == "dp"]
    assert reductions
    for call, own in reductions:
        assert call.op == "all_reduce"
        [share] = {segment.memory for segment in own.segments}
        assert share == pytest.approx(3 * 2 * 7 / 8 * call.size / own.idle / 3352e9, rel=2e-3)


def test_what_was_slowed_counts_as_computation():
    alone, slowed = (step("all", sms).summary["breakdown_s"] for sms in (0, 24))
    assert slowed["compute"] > alone["compute"]
    assert slowed["tp"] == pytest.approx(alone["tp"], rel=1e-3)


def test_each_step_of_several_is_slowed_alike():
    result = step("buckets", 24)
    [records] = simulate([result.plan], steps=3)
    lengths = [record.end - record.begin for record in records]
    assert lengths == pytest.approx([seconds(result)] * 3, rel=1e-9)


def test_nccl_says_how_many_channels_hold_an_sm_each():
    result = step("buckets", "nccl")
    [channels] = {
        plan.channels
        for call, plans in result.plan.network.plans.items()
        if call.group == "dp"
        for plan in plans.values()
    }
    assert channels > 0
    assert seconds(result) == pytest.approx(seconds(step("buckets", channels)), rel=1e-12)


def test_more_sms_than_a_gpu_has_are_an_error_at_their_place():
    with pytest.raises(ConfigError, match=r"parallelism\.overlap\.sms: 132 leave none of the 132 SMs of h100-sxm"):
        step("buckets", 132)
