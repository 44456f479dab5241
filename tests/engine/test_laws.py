"""Laws of a training step that hold whatever the figures are."""

import pytest
from engine_cases import cluster, simulate
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from law_cases import even

RING = {"parallelism__algorithms__dp": "ring"}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 4), (4, 8), (8, 16), (8, 3)])
def test_bubble_is_p_minus_1_over_m_plus_p_minus_1(schedule, p, m):
    """Huang et al. 2019 (GPipe), section 2.3; Narayanan et al. 2021, section 2.2: 1F1B has the same bubble."""
    result, forward, backward = even(p, m, schedule)
    step = result.summary["step_time_s"]
    assert step == pytest.approx(
        (m + p - 1) * (forward + backward), rel=0.02
    )  # embedding and head are not quite nothing
    bubble = result.parts[p // 2]["bubble"] / step
    assert bubble == pytest.approx((p - 1) / (m + p - 1), rel=0.03)


@pytest.mark.parametrize(("schedule", "kept"), [("gpipe", 8), ("1f1b", 4)])
def test_in_flight_microbatches_are_m_for_gpipe_and_p_for_1f1b(schedule, kept):
    result, _, _ = even(4, 8, schedule)
    one, _, _ = even(4, 1, schedule)
    first, alone = (r.summary["memory"]["by_pipeline_rank"][0]["activations_bytes"] for r in (result, one))
    assert first / alone == pytest.approx(kept)


@given(st.integers(2, 8), st.floats(0.5, 400))
@settings(max_examples=examples(20), deadline=None)
def test_data_parallel_ring_takes_its_closed_form(nodes, gbit):
    """2(n-1)/n·S/B + 2(n-1)·a on an idle ring (Thakur et al. 2005), one NIC a rank."""
    fabric = f"{{kind: switch, link: {{rate: {gbit}Gb/s}}}}"
    topology = cluster(nodes, gpus=1, nics=1, fabric=fabric)
    result = simulate(topology, training__global_batch=nodes * 2, training__optimizer="none", **RING)
    stage_bytes = 4.0 * sum(s.parameters for s in _stages(result))
    route = topology.route([0], [1])
    narrow = topology.capacity[route.links].min()
    expected = 2 * (nodes - 1) / nodes * stage_bytes / narrow + 2 * (nodes - 1) * route.latency[0] + topology.launch
    assert result.parts[0]["dp"] == pytest.approx(expected, rel=1e-9)


def _stages(result):
    from clustersim.parallel.stages import stages

    return stages(result.job)


def scaled(factor, what):
    """Return a GPU file's text with its compute or memory rates times `factor`."""
    from clustersim.hardware import gpus

    gpu = gpus.load("h100-sxm")
    if what == "compute":
        return gpu.model_copy(
            update={k: {t: v * factor for t, v in getattr(gpu, k).items()} for k in ("matrix", "vector")}
        )
    return gpu.model_copy(update={"memory_bandwidth": gpu.memory_bandwidth * factor})


@given(st.floats(1, 4), st.sampled_from(["compute", "memory"]), st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 4)]))
@settings(max_examples=examples(25), deadline=None)
def test_a_faster_gpu_never_makes_the_step_slower(factor, what, split):
    from dataclasses import replace

    slow = cluster(2)
    fast = replace(slow, gpu=scaled(factor, what))
    options = {"parallelism__tp": split[0], "parallelism__pp": split[1]}
    one, two = simulate(slow, **options), simulate(fast, **options)
    assert two.summary["step_time_s"] <= one.summary["step_time_s"] * (1 + 1e-12)


@given(st.floats(1, 8), st.sampled_from([(1, 1), (2, 2), (4, 1), (1, 4)]), st.booleans())
@settings(max_examples=examples(25), deadline=None)
def test_a_faster_fabric_never_makes_the_step_slower(factor, split, overlap):
    from dataclasses import replace

    slow = cluster(4)
    fast = replace(slow, capacity=slow.capacity * factor)
    options = {
        "parallelism__tp": split[0],
        "parallelism__pp": split[1],
        "parallelism__overlap__grad_reduce": overlap,
        "parallelism__bucket": 1_000_000,
    }
    one, two = simulate(slow, **options), simulate(fast, **options)
    assert two.summary["step_time_s"] <= one.summary["step_time_s"] * (1 + 1e-12)


def test_overlap_hides_the_reduction_of_gradients():
    wide = {"model__hidden": 4096, "parallelism__tp": 4, "training__micro_batch": 4, "training__seq": 4096}
    wide["parallelism__bucket"] = 20_000_000
    plain = simulate(cluster(4), **wide)
    hidden = simulate(cluster(4), **wide, parallelism__overlap__grad_reduce=True)
    assert hidden.parts[0]["dp"] < 0.5 * plain.parts[0]["dp"]
    assert hidden.parts[0]["compute"] == pytest.approx(plain.parts[0]["compute"])


def test_replicas_that_share_one_nic_share_its_bandwidth():
    own = simulate(cluster(2), parallelism__tp=1)
    shared = simulate(cluster(2, nics=1, attach="shared"), parallelism__tp=4)
    alone = simulate(cluster(2), parallelism__tp=4)
    assert own.summary["simulated"]["ranks"] == 8
    launch_and_steps = 2 * 16.8e-6
    assert shared.parts[0]["dp"] - launch_and_steps == pytest.approx(
        4 * (alone.parts[0]["dp"] - launch_and_steps), rel=0.05
    )


def test_the_same_inputs_give_the_same_record():
    one, two = (simulate(cluster(4), parallelism__pp=4, parallelism__schedule="gpipe") for _ in range(2))
    strip = [[(s[:8]) for s in r.record.spans] for r in (one, two)]
    assert strip[0] == strip[1]


def contended(p2p, zero=0):
    """A job whose messages and gradients meet on scarce links, so that transfers are slowed and sped up on the way."""
    fabric = (
        "{kind: fat_tree, rails: none, tiers: [{down: 4, oversubscription: 4}, {radix: 64}], link: {rate: 100Gb/s}}"
    )
    return simulate(
        cluster(8, nics=1, attach="shared", fabric=fabric),
        model__hidden=2048,
        training__global_batch=64,
        parallelism__tp=2,
        parallelism__pp=4,
        parallelism__zero=zero,
        parallelism__overlap__p2p=p2p,
        parallelism__overlap__grad_reduce=True,
        parallelism__bucket=2_000_000,
    )


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("p2p", [False, True])
def test_the_step_ends_with_the_last_thing_that_is_done(p2p, zero):
    result = contended(p2p, zero)
    assert result.record.solves > 0
    assert result.summary["step_time_s"] == max(span.end for span in result.record.spans)


def test_sending_beside_computation_does_not_make_a_contended_step_longer():
    assert contended(True).summary["step_time_s"] <= contended(False).summary["step_time_s"] * 1.02
