"""Sharded parameters (zero: 3): the order of gathers and reductions, their bytes, their time, and the memory."""

import math
import re

import numpy as np
import pytest
from engine_cases import cluster, job
from fsdp_cases import kernels, parameters_of, sent
from law_cases import free
from sweep_cases import parsed

from clustersim.engine.memory import memory_by_rank
from clustersim.errors import ConfigError
from clustersim.parallel.fsdp import order
from clustersim.parallel.memory import at_rest
from clustersim.parallel.stages import stages
from clustersim.schedules.check import load
from clustersim.simulation import Simulator, run

ZERO3 = {"parallelism__zero": 3, "parallelism__algorithms__dp": "ring"}


def events(gathered, reduced, ahead):
    letters = {"gather": "G", "arrive": "A", "run": "r", "reduce": "S"}
    return " ".join(f"{letters[what]}{unit}" for what, unit in order(gathered, reduced, ahead))


def test_a_gather_is_asked_for_when_the_unit_so_many_ahead_begins():
    all_four, none = [True] * 4, [False] * 4
    assert events(all_four, none, 0) == "G0 A0 r0 G1 A1 r1 G2 A2 r2 G3 A3 r3"
    assert events(all_four, none, 1) == "G0 A0 G1 r0 A1 G2 r1 A2 G3 r2 A3 r3"
    assert events(all_four, none, 2) == "G0 G1 A0 G2 r0 A1 G3 r1 A2 r2 A3 r3"


def test_a_backward_pass_asks_for_the_next_block_before_it_reduces_the_last():
    """As FSDP2 issues them: the head needs no gather, the root is reduced last."""
    assert events([False, True, True, False], [False, True, True, True], 1) == "G1 r0 A1 G2 r1 S1 A2 r2 S2 r3 S3"


@pytest.mark.parametrize(
    ("fsdp", "gathers", "reductions"),
    [
        ({}, 2, 4),
        ({"forward_prefetch": 0, "backward_prefetch": 0}, 2, 4),
        ({"reshard_after_forward": False}, 1, 4),
        ({"no_sync": True}, 2, 1),
        ({"reshard_after_forward": False, "no_sync": True, "copy_in": False, "copy_out": False}, 1, 1),
    ],
)
def test_bytes_on_nics_are_those_of_the_closed_form(fsdp, gathers, reductions):
    """Each microbatch gathers blocks so often in 2 bytes, and the root once; reductions in 4 bytes; (n - 1) / n of each moves."""
    one = job(training__global_batch=16, **ZERO3, **{f"parallelism__fsdp__{key}": value for key, value in fsdp.items()})
    result = run(cluster(4, gpus=1, nics=1), one, ignore_memory=True)
    blocks, root = parameters_of(result.job)
    total = 4 * 2 * (gathers * blocks + root) + reductions * 4 * (blocks + root)
    assert sent(result) == pytest.approx(3 / 4 * total, rel=1e-12)


@pytest.mark.parametrize("under", [False, True])
@pytest.mark.parametrize("zero", [0, 2])
def test_gradients_reduced_in_every_microbatch_move_as_often(zero, under):
    """As ZeRO-2 does: m reductions of 4 bytes a parameter, and the gathering of 2 after the update."""
    split = {"zero": zero, "reduce_every_microbatch": True, "overlap__grad_reduce": under, "algorithms__dp": "ring"}
    one = job(training__global_batch=16, **{f"parallelism__{key}": value for key, value in split.items()})
    simulator = Simulator(cluster(4, gpus=1, nics=1))
    result = simulator.run(one, ignore_memory=True)
    parameters = sum(parameters_of(result.job))
    total = 4 * 4 * parameters * (1 if zero else 2) + (2 * parameters if zero else 0)
    assert sent(result) == pytest.approx(3 / 4 * total, rel=1e-12)
    quick, whole = (
        simulator.run(one, ignore_memory=True, engine="auto"),
        simulator.run(one, ignore_memory=True, fold=False),
    )
    assert quick.record.end == pytest.approx(result.record.end, rel=1e-12)
    assert whole.record.end == pytest.approx(result.record.end, rel=1e-9)


def test_hybrid_sharding_gathers_inside_a_node_and_reduces_shards_across():
    one = job(training__global_batch=32, **ZERO3, parallelism__fsdp__shard=4)
    result = run(cluster(4, gpus=4, nics=4), one, ignore_memory=True)
    blocks, root = parameters_of(result.job)
    shards = 2 * 4 * (blocks + root) / 4
    assert sent(result) == pytest.approx(2 * 3 / 4 * shards, rel=1e-12)
    assert sent(result, "nvlink") > 3 / 4 * 2 * 2 * (2 * blocks + root)


def test_an_all_reduce_of_shards_waits_for_their_reduction_and_not_for_the_compute_stream():
    one = job(training__global_batch=32, **ZERO3, parallelism__fsdp__shard=4)
    record = run(cluster(4, gpus=4, nics=4), one, ignore_memory=True).record
    spans = [s for s in record.spans if s.rank == 0]
    scatters = [s for s in spans if s.kind == "reduce_scatter"]
    copies = [s for s in spans if s.kind == "all_reduce" and s.stream == "dp"]
    assert len(scatters) == len(copies) > 8
    for scatter, copy in zip(scatters, copies, strict=True):
        assert copy.start >= scatter.end
    before = [copy.start == scatter.end for scatter, copy in zip(scatters, copies, strict=True)]
    assert any(before)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("kind", ["fused", "eager"])
def test_on_a_network_that_costs_nothing_it_is_zero_1_and_the_copies(recompute, kind):
    """Less what zero: 1 does with gradients that are added up, and the casts of weights behind the update."""
    same = {"training__kernels": kind, "training__recompute": recompute, "training__gradients": "bf16"}
    same |= {"parallelism__algorithms__dp": "ring", "parallelism__overlap__grad_reduce": True}
    model = {"model__hidden": 2048, "model__heads": 16, "training__seq": 2048}
    shards, whole = (run(free(4), job(**same, **model, parallelism__zero=zero), ignore_memory=True) for zero in (3, 1))
    gpu, microbatches = whole.topology.gpu, whole.job.microbatches
    blocks, root = parameters_of(whole.job)
    copied = (2 * 4 + 4) * blocks + (4 + 4) * root
    added = sum(kernel.bytes for kernel in kernels(stages(whole.job)[0].backward) if kernel.op == "accumulate")
    expected = whole.summary["breakdown_s"]["compute"] + microbatches * (copied - added) / gpu.memory_bandwidth
    assert shards.summary["breakdown_s"]["compute"] == pytest.approx(expected, rel=1e-9)
    assert shards.summary["step_time_s"] == pytest.approx(
        expected + shards.summary["breakdown_s"]["optimizer"], rel=1e-4
    )


def test_communication_hides_behind_computation_where_there_is_enough_and_one_gather_ahead_is_more_than_none():
    model = {"model__hidden": 4096, "model__heads": 32, "training__seq": 4096, "model__layers": 4}
    times = {
        ahead: run(
            cluster(2, gpus=4),
            job(
                **model, **ZERO3, parallelism__fsdp__forward_prefetch=ahead, parallelism__fsdp__backward_prefetch=ahead
            ),
            ignore_memory=True,
        ).summary
        for ahead in (0, 1, 2)
    }
    exposed = [times[ahead]["breakdown_s"]["dp"] for ahead in (0, 1, 2)]
    assert exposed[0] > 1.2 * exposed[1]
    assert exposed[1] >= exposed[2] * (1 - 1e-9)


def test_fsdp1_waits_for_no_reduction_before_the_last():
    """With slow links the compute stream of FSDP2 waits behind each block, that of FSDP1 only for parameters and at the end."""
    slow = cluster(4, gpus=1, nics=1, fabric="{kind: switch, link: {rate: 10Gb/s}}")
    times = [
        run(slow, job(**ZERO3, parallelism__fsdp__reduce_in_flight=most), ignore_memory=True).record.end
        for most in (0, 1)
    ]
    assert times[0] <= times[1]


def test_a_pipeline_gathers_in_its_first_pass_and_reduces_in_its_last():
    result = run(free(8), job(**ZERO3, parallelism__pp=2, training__global_batch=32), ignore_memory=True)
    assert result.job.microbatches == 8
    spans = [s for s in result.record.spans if s.rank == 0 and s.stream == "fsdp"]
    kinds = [s.kind for s in sorted(spans, key=lambda s: s.start)]
    assert kinds == ["all_gather"] * 5 + ["reduce_scatter"] * 5
    passes = [s for s in result.record.spans if s.rank == 0 and s.stream == "compute" and s.stage == 0]
    assert min(s.start for s in spans if s.kind == "reduce_scatter") > max(s.end for s in passes if s.kind == "F")


def test_experts_that_are_spread_are_sharded_over_the_ranks_that_hold_the_same():
    moe = {"model__experts": 8, "model__topk": 2, "parallelism__ep": 2, "training__global_batch": 32}
    one = job(**ZERO3, **moe)
    result = run(cluster(4, gpus=2, nics=2), one, ignore_memory=True)
    sums = {}
    plan = result.plan._replace(role=result.plan.role[:1])
    for (variant, _), size in plan.carried().items():
        sums[variant[:2]] = sums.get(variant[:2], 0.0) + size
    [stage] = stages(result.job)
    assert sums["efsdp", "reduce_scatter"] == 4 * 4 * stage.experts
    assert sums["efsdp", "all_gather"] == 4 * 2 * 2 * stage.experts
    assert sums["fsdp", "reduce_scatter"] == 4 * 4 * (stage.parameters - stage.experts)


def test_what_is_gathered_at_once_is_the_root_and_the_blocks_on_their_way():
    one = job(parallelism__zero=3, parallelism__dp=8).place(8, 8)
    blocks, root = parameters_of(one)
    block = blocks / one.model.layers
    [found] = memory_by_rank(one, [stages(one)], load("1f1b", 1, one.microbatches, 1))
    forward, backward = found.gathered[:2]
    assert forward == pytest.approx(2 * (root + 3 * block))
    assert backward == pytest.approx(2 * (root + 2 * block) + 2 * (root + block) + 4 * block)
    kept = job(parallelism__zero=3, parallelism__dp=8, parallelism__fsdp__reshard_after_forward=False).place(8, 8)
    [found] = memory_by_rank(kept, [stages(kept)], load("1f1b", 1, kept.microbatches, 1))
    assert found.gathered[0] == pytest.approx(2 * (root + blocks))
    assert np.all(found.gradients == math.fsum([4 * (root + blocks) / 8]))


REFUSED = {
    "parallelism.fsdp.shard=3 zero=3": (
        "parallelism.fsdp.shard: 3 does not divide the 8 ranks that hold the same parameters; use 2, 4, 8"
    ),
    "parallelism.fsdp.shard=16 zero=3": (
        "parallelism.fsdp.shard: 16 is more than the 8 ranks that hold the same parameters; use 2, 4, 8"
    ),
    "parallelism.fsdp.shard=2 zero=1": (
        "parallelism.fsdp: needs sharded parameters, and zero is 1; set parallelism.zero: 3 or leave it out"
    ),
    "zero=3 pp=4 schedule=zero_bubble parallelism.fsdp.no_sync=false": (
        "parallelism.fsdp.no_sync: false reduces behind each whole backward pass, which zero_bubble cuts in two; "
        "write true or zero: 1"
    ),
    "parallelism.reduce_every_microbatch=true pp=2": (
        "parallelism.reduce_every_microbatch: true needs replicas that neither pp nor zero: 3 divides; leave it out, "
        "or set parallelism.pp 2 to 1"
    ),
    "parallelism.fsdp.shard=1 zero=3": "parallelism.fsdp.shard: 1 must be at least 2",
    "zero=4": "parallelism.zero: 4 must be at most 3",
    "parallelism.optimizer_instances=2": "are copies of what zero shards, and zero is 0",
    "parallelism.optimizer_instances=3 zero=1": "3 does not divide the 8 ranks",
    "parallelism.optimizer_instances=2 zero=3 parallelism.fsdp.shard=2": "say the same; keep one of them",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_does_not_go_together_is_one_sentence(options):
    with pytest.raises(ConfigError, match=re.escape(REFUSED[options])):
        run(cluster(2), job(**parsed(options)), ignore_memory=True)


@pytest.mark.parametrize("under", [False, True])
def test_copies_of_the_optimizer_reduce_inside_a_node_and_shards_across(under):
    """4 nodes of 4, so 4 copies: fp32 gradients of P parameters as shards of P / 4 over NICs, the rest over NVLink."""
    overlap = {"parallelism__overlap__grad_reduce": under, "parallelism__overlap__param_gather": under}
    split = {"parallelism__zero": 1, "parallelism__algorithms__dp": "ring", "parallelism__optimizer_instances": 4}
    one, simulator = job(training__global_batch=32, **split, **overlap), Simulator(cluster(4, gpus=4, nics=4))
    result = simulator.run(one, ignore_memory=True)
    parameters = sum(parameters_of(result.job))
    assert sent(result) == pytest.approx(2 * 3 / 4 * 4 * parameters / 4, rel=1e-12)
    inside = 3 / 4 * (4 + 2) * parameters + sent(result)  # to the NICs it crosses no NVLink that the others do not
    assert inside - sent(result) <= sent(result, "nvlink") <= inside * (1 + 1e-12)
    ends = [simulator.run(one, ignore_memory=True, **how).record.end for how in ({"engine": "auto"}, {"fold": False})]
    assert ends == pytest.approx([result.record.end] * 2, rel=1e-9)


def test_each_copy_of_the_optimizer_holds_all_of_its_state():
    one, four = (job(parallelism__zero=1, parallelism__optimizer_instances=n).place(8, 8) for n in (1, 4))
    (kept, more) = (at_rest(each, stages(each)).optimizer for each in (one, four))
    assert more == pytest.approx(4 * kept, rel=1e-12)
