"""Tensor-parallel communication beside products: what it hides, what it takes from them, for both players."""

import numpy as np
import pytest
import simpy
from activities import activity_of
from engine_cases import cluster, job, simulate
from hypothesis import given
from hypothesis import strategies as st

from clustersim.engine.fabric import Fabric, Segment
from clustersim.engine.flows import Flow
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective
from clustersim.parallel.stages import stages
from clustersim.report.verdicts import slower_overlap
from clustersim.simulation import run

TIMES = st.floats(0.01, 10.0)
SHARES = st.floats(0.0, 0.9)


def flow(seconds, links=()):
    return Flow("tp", 0.0, seconds, 1.0, np.array(links, np.int64), np.ones(len(links)))


def played(*activities, capacity=(1.0,)):
    """Return when activities that begin at 0 end, played by SimPy."""
    env, ends = simpy.Environment(), {}
    fabric = Fabric(env, capacity)
    for number, activity in enumerate(activities):
        fabric.start(activity, lambda _, number=number: ends.setdefault(number, env.now))
    env.run()
    return [ends[number] for number in range(len(activities))]


@given(TIMES, TIMES)
def test_what_is_shorter_than_the_computation_beside_it_costs_nothing_and_what_is_longer_the_rest(moving, beside):
    activity = activity_of([Segment(1.0, flow(moving), overlapped=beside)])
    assert activity.timing.idle == pytest.approx(1.0 + max(moving, beside))
    assert activity.timing.compute == pytest.approx(1.0 + beside)
    assert activity.timing.exposed["tp"] == pytest.approx(max(moving - beside, 0.0), abs=1e-12)


@given(TIMES, TIMES, SHARES)
def test_computation_is_slowed_as_long_as_both_run(moving, beside, share):
    found = activity_of([Segment(0.0, flow(moving), overlapped=beside, share=share)]).timing.idle
    done = moving * (1 - share)  # of the computation, when the flow lands
    assert found == pytest.approx(moving if beside <= done else moving + (beside - done))


@given(st.integers(2, 16), TIMES, TIMES)
def test_a_ring_in_chunks_has_its_closed_form(t, chunk, step):
    ring = [Segment(0.0, flow(step), overlapped=chunk)] * (t - 1) + [Segment(chunk, None)]
    assert activity_of(ring).timing.idle == pytest.approx((t - 1) * max(chunk, step) + chunk)


@given(st.lists(st.tuples(TIMES, TIMES, TIMES, SHARES), min_size=1, max_size=4), st.booleans())
def test_simpy_plays_what_is_idle_and_what_shares_a_link(rows, meet):
    activity = activity_of([Segment(a, flow(b, (0,)), overlapped=c, share=d) for a, b, c, d in rows])
    [alone] = played(activity)
    assert alone == pytest.approx(activity.timing.idle)
    if meet:  # half of the rate: as if each flow took twice as long
        slow = activity_of([Segment(a, flow(2 * b), overlapped=c, share=d) for a, b, c, d in rows])
        ends = played(activity, activity)
        assert max(ends) <= slow.timing.idle * (1 + 1e-9)
        assert max(ends) >= activity.timing.idle * (1 - 1e-9)
        assert ends[0] == pytest.approx(ends[1])


def test_two_that_begin_together_on_one_link_take_twice_as_long_and_slow_what_is_beside_them_as_long():
    one = activity_of([Segment(0.0, flow(2.0, (0,)), overlapped=3.0, share=0.25)])
    assert played(one) == pytest.approx([3.5])
    assert played(one, one) == pytest.approx([4.0, 4.0])  # 4 s of moving leave 3 s of computation


COLUMNS = ("qkv", "fc1")
MODES = {"parallelism__tp": 4, "parallelism__dp": 2, "model__hidden": 2048, "training__seq": 1024}


def step(mode, fold=True, engine="simpy", **more):
    overrides = MODES | {"parallelism__overlap.tp": mode, "parallelism__sequence_parallel": True} | more
    return run(cluster(2), job(**overrides), fold=fold, ignore_memory=True, engine=engine).summary


@pytest.mark.parametrize("mode", ["bulk", "ring", "async"])
def test_a_slow_gpu_slows_what_its_peers_compute_beside_communication(mode):
    wide = MODES | {"model__hidden": 8192, "model__heads": 64, "training__seq": 4096, "parallelism__overlap.tp": mode}
    asked = job(**wide, parallelism__sequence_parallel=True)
    slow = cluster(2, extra="faults: [{gpu: 1, slowdown: 3}]")
    all_slow = cluster(2, extra="faults: [{node: 0, slowdown: 3}, {node: 1, slowdown: 3}]")
    one, every = (run(c, asked, ignore_memory=True).summary["step_time_s"] for c in (slow, all_slow))
    assert one == pytest.approx(every, rel=1e-3)  # in lock-step; the norm of all ranks begins with the slowest


def test_less_is_exposed_the_more_runs_beside_products():
    wide = {"model__hidden": 8192, "model__heads": 64, "training__seq": 4096}
    exposed = [step(mode, **wide)["breakdown_s"]["tp"] for mode in ("none", "bulk", "ring")]
    assert exposed[0] > exposed[1] > exposed[2] > 0


def test_chunks_move_and_multiply_what_the_whole_does():
    def sums(mode):
        placed = job(**MODES, **{"parallelism__overlap.tp": mode}, parallelism__sequence_parallel=True).place(8, 4)
        [stage] = stages(placed)
        steps = (*stage.forward, *stage.backward)
        products = sum(step.flop for step in steps if isinstance(step, Kernel) and step.kind == "linear")
        return products, sum(step.size for step in steps if isinstance(step, Collective))

    assert sums("ring") == pytest.approx(sums("none"))


def test_async_gathers_the_input_once_and_keeps_it():
    def sums(mode):
        placed = job(**MODES, **{"parallelism__overlap.tp": mode}, parallelism__sequence_parallel=True).place(8, 4)
        [stage] = stages(placed)
        blocks = [op for layer, count in stage.layers if layer.name == "block" for op in layer.operators * count]
        steps = [step for op in blocks for step in (*op.forward, *op.backward_input, *op.backward_weight)]
        products = sum(step.flop for step in steps if isinstance(step, Kernel) and step.kind == "linear")
        moved = sum(step.size for step in steps if isinstance(step, Collective))
        again = sum(
            step.size for op in blocks for step in op.forward if isinstance(step, Collective) and op.name in COLUMNS
        )
        kept = sum(op.saved_input for op in blocks if op.name in COLUMNS)
        return products, moved, again, kept

    (products, moved, gathered, kept), other = sums("none"), sums("async")
    assert other == pytest.approx((products, moved - gathered, gathered, 4 * kept))


def test_async_is_exposed_as_its_chunks_are():
    """Own chunk first where it gathers, last where it reduces: t products, and of each transfer what is longer than a product."""
    wide = {"model__hidden": 8192, "model__heads": 64, "training__seq": 4096}
    asked = step("async", **wide)
    assert asked["breakdown_s"]["tp"] < step("ring", **wide)["breakdown_s"]["tp"]
    assert step("async", **wide, parallelism__sequence_parallel=False) == step(
        "none", **wide, parallelism__sequence_parallel=False
    )


@pytest.mark.parametrize("how", ["ring", "async", "bulk", "none"])
@pytest.mark.parametrize("hidden", [512, 8192])
def test_overlap_that_makes_a_step_longer_is_said_in_one_line_with_both_steps(how, hidden):
    """Chunks of tiny layers cost more than they hide: the same job without is simulated too."""
    shape = {"model__hidden": hidden, "training__seq": 4096 if hidden > 512 else 256, "parallelism__tp": 4}
    with_it, without = (
        simulate(cluster(1), **shape, parallelism__sequence_parallel=True, **{"parallelism__overlap.tp": name}).summary
        for name in (how, "none")
    )
    lines = [line for line in with_it["warnings"] if line.startswith("parallelism.overlap.tp: ")]
    step, plain = with_it["step_time_s"], without["step_time_s"]
    longer = step > 1.005 * plain
    assert longer == (hidden == 512 and how in ("ring", "async"))
    assert lines == [slower_overlap(how, step, plain)] * longer
    if longer:
        assert lines[0].startswith(f"parallelism.overlap.tp: {how} makes the step {step / plain - 1:.1%} longer: ")
