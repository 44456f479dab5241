"""Laws of jobs that share a cluster."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import simpy
from engine_cases import all_links, cluster, job, simulate
from examples import examples
from fabric_cases import FABRICS, FAULTS
from fabric_cases import cluster as kinds
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from clustersim import plugins
from clustersim.collectives.levels import fanouts, levels
from clustersim.collectives.model import Group, phases
from clustersim.engine import traffic
from clustersim.engine.compile import Activities
from clustersim.engine.fabric import Fabric
from clustersim.engine.network import Tenant
from clustersim.engine.player import execute_together as executed
from clustersim.engine.record import Record
from clustersim.engine.traffic import Family
from clustersim.jobs import simulate as shared_cluster
from clustersim.jobs.request import JobsRequest, PlacementRequest
from clustersim.jobs.simulate import JobsResult, share
from clustersim.model.operator import Collective
from clustersim.report.jobs import common_seconds, merged
from clustersim.report.links import link_bytes
from clustersim.simulation import run
from clustersim.topology.model import Topology

NARROW = (
    "{kind: leaf_spine, tiers: [{down: 8, oversubscription: 8}, {radix: 64}], link: {rate: 400Gb/s},"
    " routing: {mode: adaptive}}"
)
WIDE = NARROW.replace("oversubscription: 8", "up: 8")
RING = {"parallelism__algorithms__dp": "ring"}


def wanted(*requests: PlacementRequest, placement: str = "packed", steps: int = 2) -> JobsRequest:
    return JobsRequest(requests, placement, steps, {})


def request(
    name: str, nodes: int | tuple[int, ...] | None = None, start: float = 0.0, **overrides: object
) -> PlacementRequest:
    return PlacementRequest(name, job(**overrides), nodes, start)


def together(
    topology: Topology, *requests: PlacementRequest, fold: bool = True, placement: str = "packed", steps: int = 2
) -> JobsResult:
    return share(topology, wanted(*requests, placement=placement, steps=steps), fold=fold, ignore_memory=True)


def times(result: JobsResult) -> dict[str, list[float]]:
    return {j["name"]: [s["step_s"] for s in j["steps"] if s["counted"]] for j in result.summary["jobs"]}


def timeline(record: Record) -> list[object]:
    return [record.end, *(span[:8] for span in record.spans)]


def assert_same(one: list[object], other: list[object]) -> None:
    """Assert that two timelines have the same spans at the same times, but for the last digits of sums."""
    end, spans = one[0], (sorted(own[1:], key=lambda span: (*span[:5], span[7])) for own in (one, other))
    assert end == pytest.approx(other[0], rel=1e-12)
    for mine, its in zip(*spans, strict=True):
        assert mine[:5] == its[:5]
        assert mine[5:] == pytest.approx(its[5:], rel=1e-12, abs=1e-12 * end)


@pytest.mark.parametrize("split", [{}, {"parallelism__tp": 2, "parallelism__pp": 2, "parallelism__zero": 1}])
@pytest.mark.parametrize("fabric", [NARROW, WIDE])
def test_one_job_is_a_run_repeated(fabric, split):
    topology = cluster(4, fabric=fabric)
    by_simpy, alone = (run(topology, job(**split), ignore_memory=True, engine=one) for one in ("simpy", "auto"))
    result = together(topology, request("one", **split), steps=3)
    [tenant] = result.shared.jobs
    assert timeline(tenant.alone.record) == timeline(alone.record)
    assert_same(timeline(tenant.steps[0]), timeline(by_simpy.record))
    assert times(result)["one"] == pytest.approx([alone.record.end] * 3, rel=1e-12)
    assert result.summary["meetings"] == []


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("fabric", [NARROW, WIDE])
def test_jobs_on_whole_leaves_do_not_meet(fabric, fold):
    """Two nodes of 4 NICs fill a leaf: packed jobs of 4 nodes have two leaves each, and no link of the others."""
    split = {"parallelism__tp": 2, "parallelism__zero": 1, "training__global_batch": 32}
    result = together(cluster(8, fabric=fabric), request("a", 4, **split), request("b", 4, **split), fold=fold)
    for one in result.summary["jobs"]:
        assert one["steps"][0]["step_s"] == one["step_alone_s"]
        assert one["slowdown"] == pytest.approx(1, rel=1e-12)
        assert one["exposed_together_s"] == pytest.approx(one["exposed_alone_s"], rel=1e-9)
    [meeting] = result.summary["meetings"]
    assert (meeting["links"], meeting["tiers"]) == (0, [])


def test_the_same_job_twice_is_slowed_down_alike():
    """Nodes in turn: each leaf has one node of each job, so both see the same cluster."""
    heavy = {"model__hidden": 1024, **RING}
    result = together(cluster(8, fabric=NARROW), request("a", 4, **heavy), request("b", 4, **heavy), placement="spread")
    one, two = result.summary["jobs"]
    assert [one["nodes"], two["nodes"]] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert one["step_alone_s"] == two["step_alone_s"]
    assert times(result)["a"] == times(result)["b"]
    assert one["slowdown"] > 1.1
    [meeting] = result.summary["meetings"]
    for tier in meeting["tiers"]:
        assert tier["share"] == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}
        assert 0 < tier["both"] <= 1
        assert tier["utilization"] <= 1 + 1e-9


@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("jobs", [2, 3, 4])
def test_rings_over_one_bottleneck_take_as_many_times_as_long(op, jobs):
    """Closed form: each ring over n nodes sends f·S over every hop; `jobs` of them share each uplink of C bytes/s."""
    fabric = f"{{kind: leaf_spine, tiers: [{{down: {jobs}, up: 1}}, {{radix: 64}}], link: {{rate: 400Gb/s}}}}"
    leaves, size = 4, 1e9
    topology = cluster(jobs * leaves, gpus=1, nics=1, fabric=fabric)
    call = Collective("dp", op, size)
    family = Family("dp", np.arange(leaves)[None], (leaves,), "ring")
    tenants = [
        Tenant([(family, [call])], np.arange(leaves) * jobs + number, np.zeros(leaves, np.int64))
        for number in range(jobs)
    ]
    nets = all_links(topology, tenants)
    env = simpy.Environment()
    fabric_ = Fabric(env, nets[0].capacity.tolist())
    ends: list[float] = []
    for net in nets:
        made = Activities({}, net)
        fabric_.start(made.activities[made.transfers(call, [0])[0]], lambda _: ends.append(env.now))
    env.run()
    [phase] = phases("ring", op, Group(leaves, (leaves,)))
    uplink = topology.capacity[next(tier.first for tier in topology.tiers if tier.name == "leaf-up")]
    latency = sum(flow.latency for flow in nets[0].flows(call)[0])
    assert ends == pytest.approx([latency + jobs * phase.fraction[0] * size / uplink] * jobs, rel=1e-8)


def test_sharing_changes_no_bytes():
    topology = cluster(8, fabric=NARROW)
    split = {"parallelism__tp": 2, "parallelism__pp": 2}
    result = together(topology, request("a", 4, **split), request("b", 4), placement="random:5")
    shared = result.shared
    for tenant, rate in zip(shared.jobs, shared.rates, strict=True):
        np.testing.assert_allclose(rate * tenant.mean, link_bytes(tenant.alone.record.plan), rtol=1e-12)
    for tier in result.summary["meetings"][0]["tiers"]:
        every = sum(tier["bytes_per_s"].values())
        assert tier["utilization"] == pytest.approx(every / tier["capacity_bytes_per_s"])
        assert sum(tier["share"].values()) == pytest.approx(1)


@pytest.mark.parametrize("nodes", [((0, 2, 4, 6), (1, 3, 5, 7)), ((0, 1, 2), (3, 4, 5, 6, 7))])
def test_the_order_of_jobs_does_not_matter(nodes):
    topology = cluster(8, fabric=NARROW)
    a, b = request("a", nodes[0], **RING), request("b", nodes[1], parallelism__tp=2, training__global_batch=40)
    one, two = (together(topology, *order) for order in ((a, b), (b, a)))
    for name in ("a", "b"):
        assert times(one)[name] == pytest.approx(times(two)[name], rel=1e-12)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=3),
    seed=st.integers(0, 1000),
    fabric=st.sampled_from(["hashed", "static", "leaf_spine", "planes", "torus", "dragonfly", "sparse dragonfly_plus"]),
    hidden=st.sampled_from([256, 512]),
)
def test_a_job_of_one_transfer_at_a_time_is_never_faster_beside_others(sizes, seed, fabric, hidden):
    """Alone its transfers run at their bound, the most there is. With several at once this need not hold, nor with three
    flows of one job each: what slows down one may free a link for another."""
    topology = kinds(fabric, "none", "nvswitch")
    assume(sum(sizes) <= topology.nodes)
    requests = [request(f"job {n}", n, training__global_batch=48, model__hidden=hidden, **RING) for n in sizes]
    for one in together(topology, *requests, placement=f"random:{seed}").summary["jobs"]:
        assert one["step_together_min_s"] >= one["step_alone_s"] * (1 - 1e-9)


def same(folded: JobsResult, whole: JobsResult) -> None:
    """Compare every step of every job, every rank's parts and every link's bytes."""
    from clustersim.report.breakdown import breakdown

    for one, two in zip(folded.shared.jobs, whole.shared.jobs, strict=True):
        assert len(one.steps) == len(two.steps)
        assert one.alone.record.end == pytest.approx(two.alone.record.end, rel=1e-9)
        of = one.plan.network.cells.ranks.of
        for a, b in zip(one.steps, two.steps, strict=True):
            assert (a.begin, a.end) == pytest.approx((b.begin, b.end), rel=1e-9)
            parts = breakdown(a)
            for rank, found in enumerate(breakdown(b)):
                assert parts[of[rank]] == pytest.approx(found, rel=1e-7, abs=1e-9 * b.end)
    np.testing.assert_allclose(folded.shared.rates, whole.shared.rates, rtol=1e-9)


def split_of(draw_tp: int, pp: int, zero: int, overlap: bool) -> dict[str, object]:
    return {
        "parallelism__tp": draw_tp,
        "parallelism__pp": pp,
        "parallelism__zero": zero,
        "parallelism__overlap__grad_reduce": overlap,
        "parallelism__bucket": 1_000_000,
        "training__global_batch": 24,
    }


SPLITS = st.builds(
    split_of, st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([0, 1]), st.booleans()
)


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(
    fabric=st.sampled_from([*sorted(FABRICS), "narrow"]),
    fault=st.sampled_from(sorted(FAULTS)),
    placement=st.sampled_from(["packed", "spread", "random:1", "random:2"]),
    jobs=st.lists(st.tuples(st.integers(1, 4), SPLITS, st.sampled_from([0.0, 0.001])), min_size=2, max_size=3),
)
@example(  # two ranks in lock-step run passes whose nodes are written for the first of them
    fabric="bundles",
    fault="dead",
    placement="packed",
    jobs=[(1, split_of(1, 1, 0, False), 0.0), (1, split_of(2, 1, 0, True), 0.0)],
)
def test_folded_equals_unfolded(fabric, fault, placement, jobs):
    assume(fabric not in ("switch", "narrow") or "%" not in str(FAULTS[fault]))
    topology = cluster(8, fabric=NARROW) if fabric == "narrow" else kinds(fabric, fault, "nvswitch")
    assume(sum(nodes for nodes, _, _ in jobs) <= topology.nodes)
    assume(all(nodes * 4 % (o["parallelism__tp"] * o["parallelism__pp"]) == 0 for nodes, o, _ in jobs))  # type: ignore[operator]
    requests = [request(f"job {i}", nodes, start, **options) for i, (nodes, options, start) in enumerate(jobs)]
    folded, whole = (together(topology, *requests, placement=placement, fold=fold) for fold in (True, False))
    same(folded, whole)


@pytest.mark.parametrize("placement", ["spread", "random:3"])
@pytest.mark.parametrize("fabric", ["hashed", "static", "leaf_spine", "torus", "narrow"])
def test_links_that_are_left_out_never_matter(fabric, placement, monkeypatch):
    """Keeping every link in the max-min problem gives the same steps, also where one job's gathering meets another's passes."""

    def fresh():
        return cluster(8, fabric=NARROW) if fabric == "narrow" else kinds(fabric, "none", "nvswitch")

    topology = fresh()
    requests = [
        request("a", 4, parallelism__tp=2, parallelism__zero=1),
        request("b", 2, 0.001, parallelism__pp=2, parallelism__zero=1),
        request("c", 2, 0.002, model__hidden=1024, parallelism__zero=1),
    ]
    left_out = together(fresh(), *requests, placement=placement)
    monkeypatch.setattr(traffic, "_overfillable", lambda topology, _: np.ones(len(topology.capacity), bool))
    monkeypatch.setattr(Topology, "up_to_nics", lambda _: None)
    whole = together(topology, *requests, placement=placement)
    assert whole.summary["simulated"]["links_that_can_be_short"] == len(topology.capacity)
    for name, found in times(left_out).items():
        assert found == pytest.approx(times(whole)[name], rel=1e-9)


SPLITS = (
    {"parallelism__zero": 1},
    {"parallelism__tp": 2, "parallelism__pp": 2, "training__global_batch": 64},
    {"parallelism__pp": 2, "parallelism__zero": 1, "model__hidden": 512},
    {"parallelism__tp": 4, **RING},
    {"parallelism__tp": 2, "parallelism__pp": 2, "training__global_batch": 52},
)


def execute_by_simpy(patch):
    """Let SimPy execute all jobs."""
    patch.setattr(shared_cluster, "execute_together", lambda jobs, _, *more: executed(jobs, "simpy", *more))


@settings(max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_both_engines_find_the_same_steps_of_jobs_that_share_links(data, monkeypatch):
    """Jobs of all kinds, which meet often, seldom or never: the same steps, in which as much of each is waited for."""
    fabric = data.draw(st.sampled_from([NARROW, WIDE, FABRICS["hashed"]]))
    splits = data.draw(st.lists(st.sampled_from(SPLITS), min_size=1, max_size=3))
    starts = data.draw(st.lists(st.sampled_from([0.0, 0.0005, 0.004]), min_size=len(splits), max_size=len(splits)))
    placement, steps = data.draw(st.sampled_from(["packed", "spread", "random:3"])), data.draw(st.integers(1, 3))
    jobs = [request(f"{i}", 2, start, **split) for i, (split, start) in enumerate(zip(splits, starts, strict=True))]

    def simulated(by_simpy):
        with monkeypatch.context() as patch:
            if by_simpy:
                execute_by_simpy(patch)
            return together(cluster(8, fabric=fabric), *jobs, placement=placement, steps=steps).summary

    sums, simpy_alone = simulated(False), simulated(True)
    for one, other in zip(sums["jobs"], simpy_alone["jobs"], strict=True):
        assert len(one["steps"]) == len(other["steps"])
        for mine, its in zip(one["steps"], other["steps"], strict=True):
            assert (mine["begin_s"], mine["step_s"]) == pytest.approx((its["begin_s"], its["step_s"]), rel=1e-12)
            assert mine["counted"] == its["counted"]
        for what, seconds in other["breakdown_together_s"].items():
            assert one["breakdown_together_s"][what] == pytest.approx(seconds, rel=1e-9, abs=1e-12)
    for one, other in zip(sums["meetings"], simpy_alone["meetings"], strict=True):
        assert [tier["tier"] for tier in one["tiers"]] == [tier["tier"] for tier in other["tiers"]]
        for mine, its in zip(one["tiers"], other["tiers"], strict=True):
            assert mine["utilization"] == pytest.approx(its["utilization"], rel=1e-9)
            if mine["busiest"] == its["busiest"]:  # of several that are equally busy it may be another
                assert mine["both"] == pytest.approx(its["both"], rel=1e-6, abs=1e-9)


def test_only_steps_that_begin_when_all_jobs_run_are_counted():
    topology = cluster(8, fabric=NARROW)
    late = 2.5 * simulate(cluster(4, fabric=NARROW), **RING).record.end
    result = together(topology, request("a", 4, **RING), request("b", 4, late, **RING), placement="spread", steps=3)
    first, second = result.shared.jobs
    assert second.steps[0].begin == late
    assert [s.begin >= late for s in first.steps] == [False] * 3 + [True] * (len(first.steps) - 3)
    assert first.counted == first.steps[3:]
    assert len(second.counted) == 3
    for tenant in (first, second):
        assert all(a.end == b.begin for a, b in pairwise(tenant.steps))
    assert first.steps[0].end - first.steps[0].begin == pytest.approx(first.alone.record.end)
    assert result.summary["jobs"][0]["slowdown"] > 1


def test_a_short_job_repeats_until_the_long_one_has_its_steps():
    long = {"training__global_batch": 512, "model__layers": 16}
    result = together(
        cluster(8, fabric=NARROW), request("long", 4, **long), request("short", 4), placement="spread", steps=2
    )
    first, second = result.shared.jobs
    assert len(first.steps) == 2
    assert len(second.steps) > 4
    assert second.steps[-1].end <= first.steps[-1].end


@pytest.mark.parametrize("name", sorted(plugins.names("clustersim.placements")))
@settings(max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_every_placement_gives_each_job_its_own_free_nodes(name, data):
    free = sorted(data.draw(st.sets(st.integers(0, 200), min_size=1, max_size=60)))
    sizes: list[int] = []
    while sum(sizes) < len(free) and len(sizes) < 5:
        sizes.append(data.draw(st.integers(1, len(free) - sum(sizes))))
    place = plugins.load("clustersim.placements", name, "place")
    found = place(sizes, free, 7)
    assert [len(own) for own in found] == sizes
    assert len({node for own in found for node in own}) == sum(sizes)
    assert {node for own in found for node in own} <= set(free)
    assert found == place(sizes, free, 7)


@given(leaves=st.integers(1, 8), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_spread_shares_every_leaf_in_proportion(leaves, sizes):
    """Where leaves have as many nodes as the sizes' sum, each holds as many nodes of a job as its size."""
    width = sum(sizes)
    place = plugins.load("clustersim.placements", "spread", "place")
    for size, nodes in zip(sizes, place([s * leaves for s in sizes], range(width * leaves), 0), strict=True):
        assert np.bincount(np.array(nodes) // width, minlength=leaves).tolist() == [size] * leaves


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        (range(16), (4, 4)),
        (range(0, 16, 2), (2, 4)),  # spread over all four leaves
        (range(8, 16), (4, 2)),
        (range(6), (4,)),  # the last leaf may be less full; four nodes are no whole number of times in six
        ([0, 1, 4, 5, 8], (2,)),
        ([0, 1, 2, 4, 5, 8], ()),  # uneven
    ],
)
def test_levels_follow_the_nodes_that_a_job_has(nodes, found):
    topology = cluster(16, fabric="{kind: leaf_spine, tiers: [{down: 16, up: 4}, {radix: 64}], link: {rate: 400Gb/s}}")
    assert topology.fanouts == (4, 4)
    assert fanouts(np.array(nodes), topology) == found
    every = levels(np.repeat(np.array(nodes), 4)[None], found)
    assert every[0] == 4
    assert np.prod(every) == 4 * len(nodes)
    if np.prod(found) == len(nodes):
        assert every == (4, *found)


def test_unions_and_intersections_of_intervals():
    one = [(3.0, 4.0), (0.0, 1.0), (0.5, 2.0), (4.0, 5.0)]
    assert merged(one) == [(0.0, 2.0), (3.0, 5.0)] and merged([]) == []
    assert common_seconds(one, [(-9.0, 9.0)], (-1.0, 8.0)) == 2.0 + 2.0
    assert common_seconds(one, [(1.0, 3.5), (4.5, 9.0)], (0.0, 9.0)) == 1.0 + 0.5 + 0.5
    assert common_seconds(one, [(1.0, 3.5), (4.5, 9.0)], (1.5, 4.75)) == 0.5 + 0.5 + 0.25
    assert common_seconds([], one, (0.0, 9.0)) == common_seconds(one, [], (0.0, 9.0)) == 0.0


@pytest.mark.parametrize("offset", [0.0, 0.1, 0.5, 0.9, 1.5])
def test_equal_jobs_keep_their_offset_and_meet_in_what_is_left_of_their_transfers(offset):
    """Closed form: compute, then a transfer of c seconds on a link that one of them fills. At an offset d < c both transfers
    are under way for c - d seconds alone-time each, and every step is longer by just that."""
    topology = cluster(8, fabric=NARROW)
    options = {"training__global_batch": 2048}
    nodes = (0, 2, 4, 6), (1, 3, 5, 7)
    [alone] = together(topology, request("a", nodes[0], **options)).summary["jobs"]
    both = together(topology, request("a", nodes[0], **options), request("b", nodes[1], **options))
    longest = times(both)["a"][0] - alone["step_alone_s"]
    assert longest > 0
    late = request("b", nodes[1], offset * longest, **options)
    for found in times(together(topology, request("a", nodes[0], **options), late, steps=4)).values():
        expected = alone["step_alone_s"] + max(longest * (1 - offset), 0)
        assert found == pytest.approx([expected] * len(found), rel=1e-9)
