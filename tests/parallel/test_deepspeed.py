"""DeepSpeed's ZeRO-3: when modules are gathered and freed, the buckets of gradients, bytes, time and memory."""

import pytest
from engine_cases import cluster, job
from fsdp_cases import kernels, parameters_of, sent
from law_cases import free

from clustersim.config.workload import DeepSpeed
from clustersim.engine.memory import memory_by_rank
from clustersim.errors import ConfigError
from clustersim.parallel.deepspeed import TracedModule, _events, moments, persistent
from clustersim.parallel.memory import gathered
from clustersim.parallel.stages import stages
from clustersim.schedules.check import load
from clustersim.simulation import Simulator, run

ZERO3 = {"parallelism__zero": 3, "parallelism__algorithms__dp": "ring"}
ALWAYS = {"param_persistence_threshold": 0}
NOTHING_STAYS = {**ALWAYS, "max_reuse_distance": 0, "prefetch_bucket_size": 0}


def asked(**setting):
    return {f"parallelism__zero3__{key}": value for key, value in setting.items()}


def played(needs, setting):
    """Return the events of modules a, b, c, … forward and backward, each with so many parameters."""
    there = [TracedModule((), (0, i), each, 0) for i, each in enumerate(needs)]
    back = [one._replace(makes=one.needs) for one in reversed(there)]
    letters = {"gather": "G", "arrive": "A", "run": "r", "reduce": "S"}
    return " ".join(f"{letters[one.what]}{one.parameters or ''}" for one in _events([*there, *back], setting))


@pytest.mark.parametrize(
    ("setting", "events"),
    [
        # nothing is asked for ahead and nothing stays
        ({"prefetch_bucket_size": 0, "max_reuse_distance": 0}, "G5 A5 r G6 A6 r G6 A6 r G5 A5 r S6 S5"),
        # the second module stays: nothing is needed between its two uses
        ({"prefetch_bucket_size": 0, "max_reuse_distance": 1}, "G5 A5 r G6 A6 r r G5 A5 r S6 S5"),
        # all stay
        ({"prefetch_bucket_size": 0, "max_reuse_distance": 99}, "G5 A5 r G6 A6 r r r S6 S5"),
        # the next one is asked for before the first runs, and waited for before it runs itself
        ({"prefetch_bucket_size": 1, "max_reuse_distance": 99}, "G5 A5 G6 r A6 r r r S6 S5"),
        # no room for it
        ({"max_live_parameters": 5, "max_reuse_distance": 0}, "G5 A5 r G6 A6 r G6 A6 r G5 A5 r S6 S5"),
        # one bucket holds both
        ({"prefetch_bucket_size": 0, "max_reuse_distance": 99, "reduce_bucket_size": 11}, "G5 A5 r G6 A6 r r r S11"),
    ],
)
def test_modules_are_gathered_and_freed_as_deepspeed_does(setting, events):
    whole = {"reduce_bucket_size": 1, "max_live_parameters": 1000, **setting}
    assert played([5, 6], DeepSpeed(**whole)) == events


@pytest.mark.parametrize(("setting", "gathers"), [(NOTHING_STAYS, 2), ({**ALWAYS, "max_reuse_distance": 10**12}, 1)])
def test_bytes_on_nics_are_those_of_the_closed_form(setting, gathers):
    """Each of 4 microbatches gathers all parameters so often in 2 bytes and reduces them in 4; (n - 1) / n of each moves."""
    one = job(training__global_batch=16, model__tied_embeddings=False, **ZERO3, **asked(**setting))
    simulator = Simulator(cluster(4, gpus=1, nics=1))
    result = simulator.run(one, ignore_memory=True)
    parameters = sum(parameters_of(result.job))
    assert sent(result) == pytest.approx(3 / 4 * 4 * (2 * gathers + 4) * parameters, rel=1e-12)
    ends = [simulator.run(one, ignore_memory=True, **how).record.end for how in ({"engine": "auto"}, {"fold": False})]
    assert ends == pytest.approx([result.record.end] * 2, rel=1e-9)


def test_small_weights_are_gathered_after_the_update_alone():
    one = job(training__global_batch=16, model__tied_embeddings=False, **ZERO3, **asked(**NOTHING_STAYS))
    large = {**NOTHING_STAYS, "param_persistence_threshold": 10**12}
    other = job(training__global_batch=16, model__tied_embeddings=False, **ZERO3, **asked(**large))
    every, small = (run(cluster(4, gpus=1, nics=1), each, ignore_memory=True) for each in (one, other))
    parameters = sum(parameters_of(every.job))
    [stage] = stages(small.job)
    assert persistent(stage, small.job.parallelism.zero3) == parameters
    assert sent(every) - sent(small) == pytest.approx(3 / 4 * 2 * parameters * (2 * 4 - 1), rel=1e-12)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_on_a_network_that_costs_nothing_it_is_zero_1_and_the_copies(recompute):
    """Less what zero: 1 does with gradients that are added up, and the casts of weights behind the update."""
    same = {"training__recompute": recompute, "training__gradients": "bf16", "model__tied_embeddings": False}
    same |= {"model__hidden": 2048, "model__heads": 16, "training__seq": 2048, "parallelism__algorithms__dp": "ring"}
    shards, whole = (
        run(free(4), job(**same, parallelism__zero=zero, **more), ignore_memory=True)
        for zero, more in ((3, asked(**ALWAYS)), (1, {}))
    )
    [stage] = stages(shards.job)
    setting, gpu = shards.job.parallelism.zero3, whole.topology.gpu
    events = [one for letter in "FB" for one in moments(stage, setting, letter)]
    copied = 4 * sum(one.parameters for one in events if one.what in ("arrive", "reduce"))
    added = sum(kernel.bytes for kernel in kernels(stages(whole.job)[0].backward) if kernel.op == "accumulate")
    expected = (
        whole.summary["breakdown_s"]["compute"] + whole.job.microbatches * (copied - added) / gpu.memory_bandwidth
    )
    assert shards.summary["breakdown_s"]["compute"] == pytest.approx(expected, rel=1e-9)


def test_memory_has_what_is_live_a_bucket_and_what_a_module_makes():
    setting = {**ALWAYS, "max_reuse_distance": 10**12, "reduce_bucket_size": 1000}
    placed = job(model__tied_embeddings=False, **ZERO3, **asked(**setting)).place(8, 8)
    [stage] = stages(placed)
    largest = max(op.parameters for layer, _ in stage.layers for op in layer.operators)
    assert gathered(placed, stage, False) == 2 * stage.parameters + 4 * 1000
    assert gathered(placed, stage, True) == 2 * stage.parameters + 4 * 1000 + (2 + 4) * largest
    less = job(
        model__tied_embeddings=False,
        **ZERO3,
        **asked(**{**setting, "max_reuse_distance": 0, "prefetch_bucket_size": 0}),
    )
    assert gathered(less.place(8, 8), stage, False) == 2 * largest + 4 * 1000
    held = memory_by_rank(placed, [stages(placed)], load("1f1b", 1, placed.microbatches))
    assert held[0].peak.gathered in (gathered(placed, stage, False), gathered(placed, stage, True))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"parallelism__zero": 1}, "shards parameters, and zero is 1"),
        ({"parallelism__pp": 2}, "has no pipeline with ZeRO-3, and pp is 2"),
        ({"parallelism__fsdp__copy_in": False}, "and parallelism.fsdp exclude each other"),
        ({"parallelism__optimizer_instances": 2}, "has one copy of the parameters"),
    ],
)
def test_what_cannot_be_is_said(said, sentence):
    with pytest.raises(ConfigError, match=sentence):
        job(**{"parallelism__zero": 3, "parallelism__zero3": {}, **said})


@pytest.mark.parametrize("zero", [2, 3])
def test_its_pipelines_shard_the_optimizer_alone(zero):
    named = {"training__framework": "megatron-deepspeed", "parallelism__overlap__grad_reduce": True}
    with pytest.raises(
        ConfigError, match=f"megatron-deepspeed has no pipeline with zero {zero}, and pp is 2; write zero 1 or pp 1"
    ):
        job(**named, parallelism__zero=zero, parallelism__pp=2)
    assert job(**named, parallelism__zero=zero).parallelism.zero == zero
    assert job(**named, parallelism__zero=1, parallelism__pp=2).parallelism.zero == 1
