"""Communication on streams of its own takes SMs and memory from the computation that overlaps with it while both run."""

import pytest
from activities import activity_of
from engine_cases import cluster, job
from flows import flow as flow_of
from hypothesis import given
from hypothesis import strategies as st
from random_steps import CAPACITY, Step, program, seconds, task
from sweep_cases import keywords

from clustersim.engine.compiled import loop
from clustersim.engine.fabric import Segment
from clustersim.engine.player import execute_together
from clustersim.engine.program import COMPUTE, UPDATE, Wait
from clustersim.engine.simulate import simulate
from clustersim.engine.times import Tasks
from clustersim.errors import ConfigError
from clustersim.simulation import run

LARGE = {"model__hidden": 2048, "training__seq": 8192}
BUCKETS = "dp=8 parallelism.overlap.grad_reduce=true parallelism.bucket=3000000"
CASES = {
    "sharded": "zero=3 dp=8",
    "buckets": BUCKETS,
    "gathered": f"{BUCKETS} zero=1 parallelism.overlap.param_gather=true",
    "messages": "pp=4 dp=2 parallelism.overlap.p2p=true",
    "all": f"{BUCKETS} tp=2 pp=2 dp=2 parallelism.overlap.p2p=true",
    "a late host": f"{BUCKETS} training.framework=megatron-deepspeed",
    "everything": f"{BUCKETS} model.layers=4 global_batch=8 training.framework=megatron-core model.experts=4 model.topk=2 "
    "model.shared_experts=1 tp=2 pp=2 vpp=2 dp=2 ep=2 schedule=interleaved parallelism.sequence_parallel=true "
    "parallelism.overlap.tp=ring parallelism.overlap.ep=shared parallelism.overlap.p2p=true",
}
CASES = {name: {**LARGE, **keywords(words)} for name, words in CASES.items()}
TAKEN, MEMORY = "parallelism__overlap.sms", "parallelism__overlap.memory"


def step(case, sms, engine="simpy", fold=True, **options):
    options = CASES[case] | ({TAKEN: sms} if sms is not None else {}) | options
    return run(cluster(2), job(**options), fold=fold, ignore_memory=True, engine=engine)


def step_seconds(result):
    return result.summary["step_time_s"]


@pytest.mark.parametrize("case", CASES)
def test_a_share_of_nothing_changes_nothing(case):
    for engine in ("simpy", "auto"):
        assert step_seconds(step(case, 0, engine)) == step_seconds(step(case, None, engine))


@pytest.mark.parametrize("case", CASES)
def test_the_more_sms_are_taken_the_longer_a_step(case):
    times = [step_seconds(step(case, sms)) for sms in (0, 12, 24, 100)]
    assert times == sorted(times)
    assert times[0] < times[1]


@pytest.mark.parametrize("case", CASES)
def test_a_pass_is_longer_by_the_share_of_the_time_in_which_both_run(case):
    record = step(case, 24, "auto").record
    shape = record.shape
    events = list(enumerate(zip(shape.event_rank.tolist(), shape.event_task.tolist(), strict=True)))
    moving = {}
    for event, (rank, number) in events:
        if record.shape.task(number).stream not in (COMPUTE, "host"):
            moving.setdefault(rank, []).append((record.starts[event], record.ends[event]))
    more, slowed = {}, 0
    for event, (rank, number) in events:
        one, leader = record.shape.task(number), int(record.leader[event])
        activity = record.tasks.activity(number)
        if one.stream == COMPUTE and one.kind not in UPDATE and leader not in record.segment_ends:
            begin, end = record.starts[event], record.ends[event]
            both = sum(max(0.0, min(end, over) - max(begin, start)) for start, over in moving.get(rank, ()))
            lost = 24 / 132 * both * activity.timing.compute / activity.timing.idle
            more[leader] = max(more.get(leader, (0.0,))[0], lost), end - begin - activity.timing.idle
    for lost, longer in more.values():
        assert longer == pytest.approx(lost, rel=1e-6, abs=1e-12)
        slowed += longer > 1e-9
    assert slowed


SHARES = st.one_of(st.just(0.0), st.floats(0.01, 0.95))


@given(
    share=st.tuples(SHARES, SHARES),
    part=st.tuples(st.floats(0, 1), st.floats(0, 1)).filter(lambda part: 0.01 < sum(part) <= 1),
    begin=st.floats(0, 1.5),
    moving=st.floats(0.1, 50.0),
)
def test_a_second_of_computation_beside_a_transfer_has_a_closed_form(share, part, begin, moving):
    """What is left of the pass when the transfer begins loses the shares of its parts until one of both is over.

    part: of the pass, what computes, and what memory bounds; the rest of it waits.
    """
    left, lost = max(1.0 - begin, 0.0), share[0] * part[0] + max(share) * part[1]
    expected = lost * min(moving, left / (1.0 - lost))
    wait = flow_of("p", 1.0 - sum(part), 0.0, 1.0)
    passed = activity_of([Segment(sum(part), wait)], None, part[1])
    transfer = activity_of([Segment(moving, None, share=share[0], memory=share[1])])
    begun = task("wait", seconds(begin), stream="before")
    taking = task("send", transfer, Wait("before"), stream="dp")
    job = Step([program((begun, taking, task("F", passed)))], {}).job()
    for execute in (loop, simulate):
        [[found]] = execute(CAPACITY, [job])
        assert found.ends[2] == pytest.approx(1.0 + expected, abs=1e-12)
        if found.slowed is not None:
            assert found.slowed == pytest.approx([0.0, 0.0, expected], abs=1e-12)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("memory", ["nccl", 0.5])
def test_memory_is_missed_only_by_kernels_that_it_bounds(case, memory):
    alone, all_lose = step(case, 0), step(case, 66)
    reference = step(case, 0, **{MEMORY: memory})
    assert step_seconds(reference) >= step_seconds(alone)
    if memory == 0.5:
        assert step_seconds(alone) < step_seconds(reference) < step_seconds(all_lose)


def test_kernels_that_memory_bounds_miss_the_larger_of_both_shares():
    """Half of the SMs (66 of 132) are missed by all kernels: no share of the memory up to that changes anything."""
    for case in CASES:
        assert step_seconds(step(case, 66, **{MEMORY: 0.5})) == pytest.approx(step_seconds(step(case, 66)), rel=1e-12)


def test_nccl_moves_three_bytes_of_memory_for_each_that_a_gpu_receives():
    """A ring all-reduce of 8 GPUs receives 2 · 7/8 of its bytes; what it takes of the memory is that over the time it has."""
    result = step("buckets", 0, **{MEMORY: "nccl"})
    tasks = result.record.tasks
    numbers = (number for number in range(len(tasks.of_task)) if tasks.shape.task(number).stream == "dp")
    own = (tasks.activity(number) for number in numbers)
    reductions = [(call, activity) for activity in own for call in activity.calls]
    assert reductions
    for call, own in reductions:
        assert call.op == "all_reduce"
        [share] = {segment.memory for segment in own.segments}
        assert share == pytest.approx(3 * 2 * 7 / 8 * call.size / own.timing.idle / 3352e9, rel=2e-3)


def test_what_was_slowed_counts_as_computation():
    alone, slowed = (step("all", sms).summary["breakdown_s"] for sms in (0, 24))
    assert slowed["compute"] > alone["compute"]
    assert slowed["tp"] == pytest.approx(alone["tp"], rel=1e-3)


def test_each_step_of_several_is_slowed_alike():
    result = step("buckets", 24)
    [records] = execute_together([Tasks(result.plan)], "simpy", steps=3)
    lengths = [record.end - record.begin for record in records]
    assert lengths == pytest.approx([step_seconds(result)] * 3, rel=1e-9)


def test_nccl_says_how_many_channels_hold_an_sm_each():
    result = step("buckets", "nccl")
    [channels] = {
        plan.channels
        for call, plans in result.plan.network.plans.items()
        if call.group == "dp"
        for plan in plans.values()
    }
    assert channels > 0
    assert step_seconds(result) == pytest.approx(step_seconds(step("buckets", channels)), rel=1e-12)


def test_more_sms_than_a_gpu_has_are_an_error_at_their_place():
    with pytest.raises(ConfigError, match=r"parallelism\.overlap\.sms: 132 leave none of the 132 SMs of h100-sxm"):
        step("buckets", 132)
