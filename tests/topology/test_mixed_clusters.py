"""Clusters of several types of nodes: what equal types, whole pools, slow stages and mixed groups must give."""

from contextlib import nullcontext

import numpy as np
import pytest
from bounds import bounds
from engine_cases import job
from route_checks import check_routes

from clustersim.collectives.all_to_all import all_pairs_loads
from clustersim.collectives.idle import idle_rates
from clustersim.collectives.loads import pair_loads
from clustersim.collectives.model import AllPairs, phases
from clustersim.collectives.nccl.shape import shape
from clustersim.config.yaml import parse
from clustersim.costs.bill import bill
from clustersim.costs.figures import load as load_figures
from clustersim.engine.player import run_step
from clustersim.errors import ConfigError, OutOfMemoryError
from clustersim.jobs.placement import place_jobs
from clustersim.jobs.request import JobsRequest, PlacementRequest
from clustersim.jobs.simulate import share
from clustersim.simulation import Simulator, run
from clustersim.topology.build import build, load
from clustersim.topology.describe import describe

TREE = "{kind: fat_tree, rails: optimized, radix: 16, link: {rate: 400Gb/s}}"
SWITCH = "{kind: switch}"
OWN = {"h100": "hgx-h100", "b200": "hgx-b200", "other": "{extends: hgx-h100, host: {slowdown: 2}}"}
OWN |= {"h200": "hgx-h200", "slow_nics": "{extends: hgx-h100, nics: {rate: 100Gb/s}}"}
OWN |= {"slow_host": "{extends: hgx-h100, host: {slowdown: 5}}"}
OWN |= {"half": "{extends: hgx-h100, gpus: {count: 4}, nics: {count: 4}}"}
LARGE = {"model__hidden": 4096, "model__heads": 32, "training__seq": 2048, "model__vocab": 32768}


def pools(*nodes, fabric=TREE, more=""):
    """Return a cluster of pools (number, type), such as (2, "h100")."""
    own = ", ".join(f"{{nodes: {number}, node: {OWN.get(kind, kind)}}}" for number, kind in nodes)
    return build(parse(f"cluster: {{name: mixed, pools: [{own}]}}\nfabric: {fabric}\n{more}", "mixed.yaml"))


def plain(nodes, kind, fabric=TREE):
    """Return a cluster of one type."""
    return build(parse(f"cluster: {{name: plain, nodes: {nodes}, node: {OWN[kind]}}}\nfabric: {fabric}", "plain.yaml"))


def played(cluster, fold=True, engine="simpy", **changes):
    """Simulate a job of layers that are large enough to tell GPUs apart."""
    return run(cluster, job(**{**LARGE, **changes}), fold=fold, engine=engine, ignore_memory=True)


def step(*given, **changes):
    """Return the seconds of a step."""
    return played(*given, **changes).summary["step_time_s"]


SPLITS = [
    {"parallelism__tp": 8, "parallelism__pp": 2, "training__global_batch": 8},
    {"parallelism__tp": 2, "training__global_batch": 32},
    {"parallelism__tp": 4, "parallelism__pp": 4, "parallelism__zero": 1, "training__global_batch": 16},
    {"parallelism__zero": 3, "training__global_batch": 64},
]


@pytest.mark.parametrize("split", SPLITS)
def test_two_equal_types_are_the_plain_cluster(split):
    mixed = pools((2, "h100"), (2, "other"))
    assert len(mixed.pools) == 2
    assert step(mixed, **split) == pytest.approx(step(plain(4, "h100"), **split), rel=1e-12)


def test_pools_of_one_type_are_one():
    whole = pools((1, "h100"), (3, "h100"))
    assert not whole.pools
    assert whole.gpu_summary == "32 × h100-sxm"


@pytest.mark.parametrize("kind", ["h100", "b200"])
def test_a_job_on_one_pool_runs_as_on_a_cluster_of_it(kind):
    other = {"h100": "b200", "b200": "h100"}[kind]
    split = {"parallelism__tp": 4, "parallelism__pp": 2, "parallelism__dp": 2, "predictor": "neusight"}
    mixed = played(pools((2, kind), (2, other)), **split)
    alone = played(plain(4, kind), **split)
    assert mixed.summary["step_time_s"] == pytest.approx(alone.summary["step_time_s"], rel=1e-12)
    assert mixed.summary["mfu"] == pytest.approx(alone.summary["mfu"], rel=1e-12)
    assert mixed.summary["predictor"] == alone.summary["predictor"]


def test_a_job_on_the_nodes_of_the_second_pool_runs_as_on_a_cluster_of_it():
    wanted = job(**LARGE, parallelism__tp=8, parallelism__pp=2, parallelism__dp=1, predictor="neusight")
    times = []
    for cluster in (pools((2, "h100"), (2, "b200")), plain(4, "b200")):
        work, *_ = Simulator(cluster).prepare(wanted.place(16, 8), np.arange(16, 32))
        record = run_step(work, cluster)
        times.append(record.end)
    assert times[0] == pytest.approx(times[1], rel=1e-12)


def test_products_that_a_gpu_of_a_job_lacks_are_refused_and_other_nodes_do_not_matter():
    """The A100 has no fp8: a job on the H100 nodes of the same cluster runs, alone and beside others."""
    mixed = pools((1, "h100"), (1, "hgx-a100"))
    wanted = job(training__precision="fp8", parallelism__dp=8)
    assert run(mixed, wanted).summary["step_time_s"] == run(plain(1, "h100"), wanted).summary["step_time_s"]
    for first, refused in ((0, False), (1, True)):
        requests = PlacementRequest("one", wanted, (first,)), PlacementRequest("two", job(), (1 - first,))
        with pytest.raises(ConfigError, match=r"precision: a100.* multiplies no fp8") if refused else nullcontext():
            share(mixed, JobsRequest(requests, "packed", 1, {}))
    with pytest.raises(ConfigError, match=r"precision: a100.* multiplies no fp8"):
        run(mixed, job(training__precision="fp8", parallelism__dp=16))


def test_the_stages_on_the_slow_pool_set_the_pace():
    split = {"parallelism__tp": 8, "parallelism__pp": 2, "predictor": "neusight", "parallelism__overlap__p2p": True}

    mixed, slow, fast = pools((1, "b200"), (1, "h100")), plain(2, "h100"), plain(2, "b200")
    few, many = (played(mixed, **split, training__global_batch=batch) for batch in (16, 32))
    pace = many.record.end - few.record.end
    busy = busy_seconds(many, cells_of(many, 1)) - busy_seconds(few, cells_of(few, 1))
    assert busy <= pace * (1 + 1e-9)
    assert pace == pytest.approx(busy, rel=0.02)
    assert step(fast, **split) < step(mixed, **split) < step(slow, **split)


def test_fewer_layers_on_the_slow_pool_make_the_step_shorter():
    split = {"parallelism__tp": 8, "parallelism__pp": 2, "predictor": "neusight", "training__global_batch": 36}
    mixed = pools((1, "h100"), (1, "b200"))
    even, uneven = (step(mixed, **split, parallelism__layout=layout) for layout in ("Etttt|ttttL", "Ettt|tttttL"))
    assert uneven < even


def test_replicas_on_both_pools_run_at_the_pace_of_the_slower_and_the_faster_waits():
    split = {
        "parallelism__tp": 8,
        "predictor": "neusight",
        "training__global_batch": 16,
        "training__clip_gradients": False,
    }
    mixed, slow = played(pools((1, "h100"), (1, "b200")), **split), played(plain(2, "h100"), **split)
    assert mixed.summary["step_time_s"] == pytest.approx(slow.summary["step_time_s"], rel=1e-9)
    [last, first] = (
        [max(s.end for s in mixed.record.spans if s.rank == rank and s.kind == "B") for rank in cells]
        for cells in ([cells_of(mixed, 0)], [cells_of(mixed, 1)])
    )
    assert last[0] > first[0] * 1.2


def busy_seconds(result, rank):
    """Return the seconds of the passes of a rank class."""
    return sum(s.end - s.start for s in result.record.spans if s.rank == rank and s.kind in ("F", "B"))


def cells_of(result, kind):
    """Return the first rank class on a type of node."""
    kinds = result.topology.kind_of(result.plan.first)
    return int(np.flatnonzero(kinds == kind)[0])


def test_mixed_groups_go_at_the_rate_of_the_slowest_nic():
    split = {"parallelism__zero": 3, "training__global_batch": 64}
    mixed, slow = (
        step(c, **split) for c in (pools((1, "h100"), (1, "slow_nics"), fabric=SWITCH), plain(2, "slow_nics", SWITCH))
    )
    assert mixed == pytest.approx(slow, rel=1e-9)
    assert mixed > 1.5 * step(plain(2, "h100", SWITCH), **split)


def test_groups_inside_a_pool_keep_its_links():
    """Tensor parallelism on the faster NVLink is as fast beside nodes of a slower one."""
    split = {"parallelism__tp": 8, "parallelism__pp": 2, "training__global_batch": 2}
    mixed = played(pools((1, "h100"), (1, "b200")), **split)
    [call] = [c for c in mixed.plan.network.plans if c.group == "tp" and c.op == "all_reduce"][:1] or [None]
    rates = {types: plan.rate for types, plan in mixed.plan.network.plans[call].items()}
    alone = [played(plain(2, kind), **split).plan.network.plans[call][()].rate for kind in ("h100", "b200")]
    assert rates == {(0,): alone[0], (1,): alone[1]}


def test_a_slow_host_slows_the_ranks_it_launches_for():
    split = {
        "parallelism__tp": 8,
        "parallelism__pp": 2,
        "training__framework": "megatron-deepspeed",
        "predictor": "roofline",
    }
    small = {"model__hidden": 512, "model__heads": 8, "training__seq": 256}
    mixed, quick = (step(c, **split, **small) for c in (pools((1, "h100"), (1, "slow_host")), plain(2, "h100")))
    assert mixed > 1.2 * quick


@pytest.mark.parametrize("split", SPLITS)
def test_folded_is_unfolded_and_players_agree(split):
    mixed = pools((2, "h100"), (2, "b200"))
    folded = played(mixed, **split, predictor="neusight")
    assert folded.summary["simulated"]["rank_classes"] < 32
    whole = played(mixed, fold=False, **split, predictor="neusight").summary["step_time_s"]
    assert folded.summary["step_time_s"] == pytest.approx(whole, rel=1e-9)
    quick = played(mixed, engine="auto", **split, predictor="neusight").summary["step_time_s"]
    assert folded.summary["step_time_s"] == pytest.approx(quick, rel=1e-12)


def test_memory_is_that_of_the_gpus_of_a_stage():
    model = {"model__layers": 16, "model__hidden": 8192, "model__heads": 64, "training__seq": 2048}
    split = {"parallelism__tp": 8, "parallelism__pp": 2, "parallelism__dp": 1, "training__micro_batch": 36}
    split |= {"training__global_batch": 36}
    wanted = job(**model, **split, parallelism__layout="Et*6|t*10L")
    cluster = Simulator(pools((1, "h100"), (1, "h200")))
    found = cluster.run(wanted)
    memory = found.summary["memory"]
    assert memory["gpu_by_pipeline_rank"] == ["h100-sxm", "h200-sxm"]
    assert memory["fits"]
    assert memory["by_pipeline_rank"][1]["total_bytes"] > 80e9
    with pytest.raises(OutOfMemoryError, match=r"pipeline rank 1 needs .* and h100-sxm has"):
        Simulator(pools((1, "h200"), (1, "h100"))).run(wanted)


def test_what_is_said():
    mixed = pools((2, "h100"), (2, "b200"))
    assert dict(describe(mixed))["GPUs"] == "16 × h100-sxm + 16 × b200-sxm, 8 a node"
    assert dict(describe(mixed))["NVLink"] == "370.8 GB/s to 721.8 GB/s a GPU and direction"
    found = played(mixed, **SPLITS[0], predictor="neusight").summary
    assert found["cluster"]["gpu"] == "h100-sxm + b200-sxm"
    assert found["cluster"]["pools"] == [{"gpu": "h100-sxm", "gpus": 16}, {"gpu": "b200-sxm", "gpus": 16}]
    assert found["step_time_interval"].startswith("none: no published step on GPUs of several kinds")
    assert {text.split(":")[0] for text in found["predictor"]["error"]} == {"h100-sxm", "b200-sxm"}


@pytest.mark.parametrize("split", SPLITS[:3])
def test_no_step_is_shorter_than_its_bound(split):
    mixed = pools((2, "h100"), (2, "b200"))
    simulator = Simulator(mixed)
    placed = simulator.placed(job(**LARGE, **split))
    assert bounds(simulator, placed).seconds <= simulator.run(placed, ignore_memory=True).summary["step_time_s"]


BAD = [
    ([(1, "h100"), (1, "{extends: hgx-h100, gpus: {model: mi300x}}")], "no library joins GPUs of two vendors"),
    ([(0, "h100")], "cluster.pools.0.nodes: 0 must be at least 1"),
    ([(400000, "h100"), (400000, "b200")], "cluster.pools: 800000 nodes of 8 GPUs"),
]
FABRICS = {
    "{kind: torus, dims: [2], link: {rate: 400Gb/s}}": "torus needs as many NICs on every node, and the pools have 8 or 4",
    "{kind: rail_optimized, radix: 64, rails: 8}": "rails: 8 do not divide the 4 NICs of a node; use a divisor",
    "{kind: rail_optimized, radix: 64, scalable_unit: 2}": "scalable_unit: the nodes that share leaves have 8 or 4 NICs; drop it",
}


@pytest.mark.parametrize(("given", "said"), BAD)
def test_what_cannot_be_one_cluster(given, said):
    with pytest.raises(ConfigError, match=said):
        pools(*given)


@pytest.mark.parametrize("fabric", FABRICS)
def test_what_joins_no_nodes_of_different_widths(fabric):
    with pytest.raises(ConfigError, match=FABRICS[fabric]):
        pools((1, "h100"), (1, "half"), fabric=fabric)


@pytest.mark.parametrize("key", ["nodes: 4", "node: hgx-h100"])
def test_pools_stand_for_nodes_and_node(key):
    text = f"cluster: {{{key}, pools: [{{nodes: 1, node: hgx-h100}}]}}"
    with pytest.raises(ConfigError, match=rf"cluster.{key.split(':')[0]}: the pools have their own"):
        build(parse(text, "mixed.yaml"))


# Nodes with different numbers of GPUs.

NARROW = [
    {"parallelism__tp": 2, "training__global_batch": 32},
    {"parallelism__tp": 4, "parallelism__pp": 2, "parallelism__dp": 3, "training__global_batch": 12},
    {"parallelism__zero": 3, "training__global_batch": 96},
    {"parallelism__tp": 8, "parallelism__dp": 3, "parallelism__tp_across_nodes": True, "training__global_batch": 6},
]
TREES = (TREE, SWITCH, "{kind: leaf_spine, radix: 64}", "{kind: rail_only, radix: 64}")


@pytest.mark.parametrize("fabric", TREES)
@pytest.mark.parametrize("narrow_first", [True, False])
def test_a_job_beside_nodes_of_another_width_runs_as_on_a_cluster_of_its_own(fabric, narrow_first):
    split = {"parallelism__tp": 4, "parallelism__pp": 2, "parallelism__dp": 2, "training__clip_gradients": True}
    own = ("half", 4) if narrow_first else ("h100", 2)
    mixed = played(pools((own[1], own[0]), (2, "h100" if narrow_first else "half"), fabric=fabric), **split)
    alone = played(plain(own[1], own[0], fabric), **split)
    assert mixed.summary["step_time_s"] == pytest.approx(alone.summary["step_time_s"], rel=1e-12)


@pytest.mark.parametrize("fabric", TREES)
@pytest.mark.parametrize("split", NARROW)
def test_folded_is_unfolded_and_players_agree_on_nodes_of_different_widths(split, fabric):
    mixed = pools((1, "half"), (1, "h100"), (1, "half"), (1, "h100"), fabric=fabric)
    folded, whole, quick = (
        step(mixed, **split, fold=fold, engine=engine)
        for fold, engine in ((True, "simpy"), (False, "simpy"), (True, "auto"))
    )
    assert folded == pytest.approx(whole, rel=1e-9)
    assert folded == pytest.approx(quick, rel=1e-12)


def test_a_group_on_half_of_a_wide_node_goes_as_on_a_narrow_one():
    """Eight GPUs on a node of 4 and half of one of 8 have the links, NICs and kernels of two nodes of 4."""
    split = {"parallelism__tp": 8, "parallelism__dp": 1, "parallelism__tp_across_nodes": True}
    split |= {"training__global_batch": 2}
    straddling, narrow = (step(c, **split) for c in (pools((1, "half"), (1, "h100")), plain(2, "half")))
    assert straddling == pytest.approx(narrow, rel=1e-12)
    assert narrow > 1.2 * step(plain(1, "h100"), **split)


@pytest.mark.parametrize("fabric", TREES)
def test_routes_lead_from_gpu_to_gpu(fabric):
    check_routes(pools((1, "half"), (1, "h100"), (1, "half"), fabric=fabric))


def test_faults_are_at_the_gpus_and_nodes_that_they_name():
    faults = "faults: [{node: 0, dead: true}, {node: 1, slowdown: 2}, {gpu: 19, slowdown: 3}, {link: 'nic-up[18]', dead: true}]"
    left = pools((1, "half"), (1, "h100"), (2, "half"), more=faults)
    assert left.slowdown.tolist() == [2.0] * 8 + [1.0] * 7 + [3.0]
    assert left.numbering.first.tolist() == [0, 8, 12, 16]
    assert left.numbering.node_of(np.array([7, 8, 15])).tolist() == [0, 1, 2]
    routes = left.route(np.array([14]), np.array([0]))  # GPU 18 of the file, whose NIC is dead, to GPU 4
    assert left.link_name(routes.links[0]) == "nvlink-up[18]"
    two_kinds = pools((2, "h100"), (2, "b200"), more="faults: [{node: 0, dead: true}]")
    assert two_kinds.kind_of(np.arange(24)).tolist() == [0] * 8 + [1] * 16


def test_a_cluster_of_two_widths_is_described_and_paid_node_by_node():
    figures, mixed = load_figures(), pools((3, "h100"), (2, "half"))
    assert dict(describe(mixed))["GPUs"] == "32 × h100-sxm, 4 or 8 a node"
    wide, narrow, both = (bill(c, figures)[0] for c in (plain(1, "h100"), plain(1, "half"), mixed))
    assert both.usd == pytest.approx(3 * wide.usd + 2 * narrow.usd)
    assert both.each == "4 or 8 GPUs"
    jobs = place_jobs(mixed, [PlacementRequest("one", job(**{**SPLITS[1], "parallelism__dp": 2}), (3, 4))], "packed")
    assert jobs[0].gpus.tolist() == [24, 25, 26, 27]
    alike = [PlacementRequest(name, job(**SPLITS[3]), 2) for name in ("one", "other")]
    assert [len(own.gpus) for own in place_jobs(mixed, alike, "packed")] == [16, 8]
    shipped = load("mixed_h100_nvl72_18")
    assert (shipped.numbering.widths, shipped.gpus_per_node) == ((8, 72), 8)
    assert shipped.gpu_summary == "128 × h100-sxm + 144 × gb200"


@pytest.mark.parametrize("fabric", TREES)
def test_an_all_to_all_by_classes_loads_what_its_pairs_load(fabric):
    mixed = pools((2, "half"), (1, "h100"), (1, "half"), fabric=fabric)
    ranks, part = np.arange(20)[None], np.full(20, 1 / 20)
    every = AllPairs(1, part, part)
    by_class, by_pair = (
        of(mixed, ranks, every) for of in (all_pairs_loads, lambda c, r, p: pair_loads(c, r, p.pairs()))
    )
    for one, other in zip(
        *(np.bincount(x.link, x.weight, len(mixed.capacity)) for x in (by_class, by_pair)), strict=True
    ):
        assert one == pytest.approx(other, rel=1e-12)
    assert by_class.latency == pytest.approx(by_pair.latency, rel=1e-12)


def test_rings_over_nodes_of_4_and_8_use_four_nics_of_each():
    mixed = pools((1, "half"), (1, "h100"), (1, "half"), fabric=SWITCH)
    group = shape(mixed, np.arange(16))
    assert (group.sizes, group.nics, group.even) == ((4, 8, 4), 4, False)
    [found] = idle_rates(mixed, np.arange(16)[None], phases("rail_ring", "all_gather", group.group))
    assert found == pytest.approx(4 * mixed.node.nic * 16 / 15)


def test_trees_over_nodes_of_4_and_8_carry_what_those_over_nodes_of_4_do():
    """Four NICs of each work, and what is more on a node hangs on its chains."""
    mixed, narrow = pools((1, "half"), (1, "h100"), (1, "half"), fabric=SWITCH), plain(3, "half", SWITCH)
    rates = []
    for cluster in (mixed, narrow):
        every = np.arange(cluster.gpus)
        rates += list(idle_rates(cluster, every[None], phases("rail_tree", "all_reduce", shape(cluster, every).group)))
    assert rates[0] == pytest.approx(rates[1])
    assert rates[0] > 3 * mixed.node.nic / 2  # one NIC of a node would carry the array twice
