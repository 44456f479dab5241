"""What a simulator or a cluster keeps of jobs that it met before changes no job: each takes what it takes on a new one."""

from __future__ import annotations

import pytest
from columns import near
from engine_cases import cluster, job
from examples import examples
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from step_cases import clusters, jobs
from sweep_cases import each_of, keywords

from clustersim.engine.player import plan_cache
from clustersim.errors import ClustersimError, ConfigError, InputError
from clustersim.parallel.load import load as load_workload
from clustersim.report.breakdown import breakdown
from clustersim.simulation import Simulator, run
from clustersim.topology.build import load as load_topology

TAPERED = "{kind: fat_tree, rails: none, tiers: [{radix: 5, down: 4, oversubscription: 4}, {radix: 8}], link: {rate: 400Gb/s}}"
EXPERTS = {"model__experts": 4, "model__topk": 2, "model__ffn": 512}
SPLITS = keywords("tp=[1,2,4] pp=[1,2,4] zero=[0,1,3] schedule=[1f1b,gpipe,zero_bubble,dualpipe,dualpipev]") | {
    "parallelism__overlap": [{}, {"grad_reduce": True, "p2p": True}]
}
SIZES = keywords("micro_batch=[1,2,4] seq=[64,256,4096] recompute=[none,full] global_batch=[128]")


def _outline(simulator, **spec):
    try:
        return simulator.outline(job(**spec), "auto")
    except ClustersimError as error:
        return str(error)


@settings(max_examples=examples(12), deadline=None)
@given(
    split=each_of(SPLITS),
    sizes=st.lists(each_of(SIZES), min_size=2, max_size=3),
    experts=st.sampled_from([{}, EXPERTS, {**EXPERTS, "parallelism__ep": 2}]),
    extra=st.sampled_from(["", "faults: [{gpu: 3, slowdown: 1.5}]"]),
    tapered=st.booleans(),
)
def test_other_sizes_take_what_they_take_alone(split, sizes, experts, extra, tapered):
    def fresh():
        return Simulator(cluster(8, extra=extra, **({"fabric": TAPERED} if tapered else {})))

    known = fresh()
    for one in sizes:
        spec = {**split, **one, **experts, "parallelism__sequence_parallel": split["parallelism__tp"] > 1}
        spec["parallelism__vpp"] = 2 if split["parallelism__schedule"] == "dualpipev" else 1
        assert _outline(known, **spec) == _outline(fresh(), **spec)


LARGE = {"model__hidden": 4096, "training__global_batch": 512, "parallelism__pp": 2}
TAKING = {**LARGE, "parallelism__overlap.grad_reduce": True}


@pytest.mark.parametrize(
    ("split", "name", "values"),
    [
        # gradients of two bytes are reduced with as many bytes as parameters are gathered, those of four with twice as many
        ({**LARGE, "parallelism__zero": 1}, "training__gradients", ["bf16", "fp32"]),
        ({**TAKING, "training__seq": 8192}, "parallelism__overlap.sms", [0, 24, "nccl", 12]),
        ({**TAKING, "training__seq": 8192}, "parallelism__overlap.memory", [0, 0.25, "nccl", 0.5]),
        ({**TAKING, "parallelism__overlap.sms": 24}, "training__seq", [8192, 4096]),
        ({**TAKING, "parallelism__overlap.sms": "nccl"}, "training__seq", [8192, 4096]),
        # the scales of fp8 are those of a stage's layers, and a rank without peers reduces none
        ({"training__precision": "fp8", "training__global_batch": 64}, "parallelism__pp", [8, 1, 4]),
        ({"training__precision": "fp8", "parallelism__pp": 8, "parallelism__zero": 0}, "parallelism__dp", [2, 1, 4]),
    ],
)
def test_what_differs_in_one_setting_is_not_taken_for_another(split, name, values):
    known = Simulator(cluster(8))
    for value in values:
        assert _outline(known, **split, **{name: value}) == _outline(Simulator(cluster(8)), **split, **{name: value})


def test_answers_hold_when_most_plans_are_dropped():
    known, split = Simulator(cluster(8)), {"parallelism__pp": 4, "training__micro_batch": 1}
    whole = [_outline(known, **split, training__global_batch=16 * count) for count in range(1, 9)]
    assert len(known.plans) == 8
    small, most = Simulator(cluster(8)), known.plans.weight / 2
    small.plans = plan_cache(most)
    for _ in range(2):
        assert [_outline(small, **split, training__global_batch=16 * count) for count in range(1, 9)] == whole
    assert 0 < len(small.plans) < 8
    assert small.plans.weight <= most


def test_a_plan_weighs_its_loads_of_all_pairs():
    """One layer of 64 experts on 64 GPUs has few tasks, and loads of 64 · 63 pairs on several links each."""
    known, experts = Simulator(cluster(16)), {"model__experts": 64, "model__topk": 2, "model__ffn": 512}
    _outline(known, **experts, model__layers=1, training__global_batch=64, parallelism__ep=64)
    [(_, tasks)] = known.plans.items()
    loads = [load for phases in tasks.plan.network.traffic.values() for load in phases]
    assert known.plans.weight > sum(load.link.nbytes for load in loads) > 100_000


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink a job takes minutes and says little
)
@given(data=st.data(), clocks=st.lists(st.sampled_from([0.5, 0.7, 0.9, "boost"]), min_size=2, max_size=2, unique=True))
def test_what_was_compiled_serves_other_clocks(data, clocks):
    topology = data.draw(clusters())
    one = data.draw(jobs(topology.gpus))
    known = Simulator(topology)
    try:
        first, second = (known.placed(one.changed({"clocks": clock})) for clock in clocks)
    except InputError:
        reject()
    known._simulate_cached(first, "auto")
    again, fresh = (simulator._simulate_cached(second, "auto")[1] for simulator in (known, Simulator(topology)))
    assert len(known.plans) <= 1
    for name in ("starts", "ends", "requested", "wait_begin"):
        wanted = getattr(fresh, name)
        assert near(getattr(again, name), wanted, 1e-12, 1e-12 * fresh.end), name
    assert breakdown(again) == [pytest.approx(parts, rel=1e-9, abs=1e-12 * fresh.end) for parts in breakdown(fresh)]


GPT3 = {"training.recompute": "full", "parallelism.overlap.p2p": True}


@pytest.mark.parametrize(
    ("split", "others"),
    [
        (
            {"parallelism.tp": 16, "parallelism.pp": 4, "training.global_batch": 96},
            [{"training.micro_batch": size} for size in (1, 2, 3)],
        ),
        (
            {"parallelism.tp": 8, "parallelism.pp": 8, "parallelism.zero": 1, "training.global_batch": 256},
            [{"clocks": clocks} for clocks in ("sustained", 0.7)],
        ),
    ],
)
def test_jobs_that_share_links_take_the_same_after_others_to_the_last_digit(split, others):
    cluster = load_topology("topologies/superpod_h100_128.yaml", {"cluster.nodes": 16})
    jobs = [load_workload("workloads/gpt3.yaml", GPT3 | split | one) for one in others]
    after, alone = Simulator(cluster), [Simulator(cluster).outline(job, "auto") for job in jobs]
    assert [after.outline(job, "auto") for job in jobs] == alone


MET = keywords(
    "tp=[1,2,4] pp=[1,2,4] schedule=[1f1b,dualpipe,dualpipev] zero=[0,1,3] micro_batch=[1,2] seq=[128,4096]"
) | {"parallelism__algorithms": [{}, {"dp": "ring"}, {"tp": "hierarchical", "model": "tree"}]}


def _steps(topology, fold, splits):
    found = []
    for split in splits:
        chunks = 2 if split["parallelism__schedule"] == "dualpipev" else 1
        try:
            result = run(topology, job(**split, parallelism__vpp=chunks), fold=fold, ignore_memory=True)
        except ConfigError as error:
            found.append(str(error))
            continue
        own = result.summary
        found.append((own["step_time_s"], own["breakdown_s"], own["busiest_links"], own["simulated"]["rank_classes"]))
    return found


@settings(max_examples=examples(8), deadline=None)
@given(
    splits=st.lists(each_of(MET), min_size=2, max_size=4),
    extra=st.sampled_from(["", "faults: [{gpu: 3, slowdown: 1.5}]"]),
    fold=st.booleans(),
)
def test_a_job_met_before_takes_what_it_takes_on_a_new_cluster(splits, extra, fold):
    def fresh():
        return cluster(4, extra=extra)

    known = fresh()
    _steps(known, fold, splits)
    assert _steps(known, fold, splits) == [one for split in splits for one in _steps(fresh(), fold, [split])]
