"""Links between switches that can never be short are left out of a step's traffic, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import cluster, traffic
from examples import examples
from fabric_cases import INSIDE
from fabric_cases import cluster as kinds
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.collectives import loads as loads_of_phases
from clustersim.collectives.loads import node_loads, pair_loads
from clustersim.collectives.model import Group, Phase, phases
from clustersim.engine.traffic import Family, scarce
from clustersim.topology.model import Topology

LINK = "{{rate: 400Gb/s, cable: [3m, 30m, 100m]}}"
TREE = f"{{{{kind: fat_tree, rails: {{rails}}, tiers: [{{tiers}}], link: {LINK}, routing: {{{{mode: {{mode}}}}}}}}}}"
TIERS = "{radix: 8}, {radix: 8, pod: 4}, {radix: 8}"
FULL = TREE.format(rails="none", tiers=TIERS, mode="adaptive")
RAILS = TREE.format(rails="optimized", tiers=TIERS, mode="adaptive")
NARROW = TREE.format(
    rails="none", tiers=TIERS.replace("radix: 8}, {", "radix: 8, oversubscription: 3}, {", 1), mode="adaptive"
)
STATIC = TREE.format(rails="none", tiers=TIERS, mode="dmodk")
SLOW_NIC = "faults: [{link: 'nic-up[3]', rate: 100Gb/s}]"
SLOW_BUNDLE = "faults: [{link: 'leaf-up[1]', rate: 300Gb/s}]"
SLOW_GPU_LINK = "faults: [{link: 'nvlink-up[3]', rate: 100GB/s}]"
DEAD_NIC = "faults: [{link: 'nic-up[3]', dead: true}]"
DEAD_CABLE = "faults: [{link: 'leaf-up[1]', dead: true}]"


def _cluster(fabric: str, extra: str = "") -> Topology:
    return cluster(8, fabric=fabric, extra=extra)


@pytest.mark.parametrize(
    ("fabric", "extra", "known"),
    [
        (FULL, "", True),
        (RAILS, "", True),
        (NARROW, "", False),
        (STATIC, "", False),
        (FULL, SLOW_NIC, True),
        (FULL, DEAD_NIC, True),
        (FULL, SLOW_BUNDLE, False),
        (FULL, DEAD_CABLE, False),
        (FULL, "faults: [{node: 2, dead: true}]", True),
    ],
)
def test_only_a_network_that_its_nics_cannot_fill_is_left_out(fabric, extra, known):
    topology = _cluster(fabric, extra)
    inner = topology.up_to_nics()
    assert (inner is not None) == known
    if inner is not None:
        gpus = np.arange(topology.gpus)
        last = next(t for t in topology.tiers if t.name == "nic-down")
        assert inner.route(gpus, np.roll(gpus, 5)).links.max() < last.first + last.links


@settings(max_examples=examples(40), deadline=None)
@given(
    fabric=st.sampled_from([FULL, RAILS]),
    extra=st.sampled_from(["", SLOW_NIC, DEAD_NIC]),
    n=st.sampled_from([2, 4, 8, 16]),
    algorithm=st.sampled_from(["ring", "tree", "direct", "hierarchical"]),
    seed=st.integers(0, 9),
)
def test_scarce_links_bounds_and_latencies_are_those_of_whole_routes(fabric, extra, n, algorithm, seed):
    gpus = np.random.default_rng(seed).permutation(32) if seed else np.arange(32)
    levels = (2, n // 2) if algorithm == "hierarchical" and n > 2 else (n,)
    family = Family("dp", gpus.reshape(-1, n), levels, algorithm)
    op = "all_to_all" if algorithm == "direct" else "all_reduce"
    topology, whole = _cluster(fabric, extra), _cluster(fabric, extra)
    whole.cache.once("up to NICs", lambda: None)
    few, all_ = traffic(topology, family, op), traffic(whole, family, op)
    for one, other in zip(few, all_, strict=True):
        assert one.bound == pytest.approx(other.bound, rel=1e-15)
        assert one.latency == pytest.approx(other.latency, rel=1e-12)
        again = one.everywhere(topology)
        assert (again.link == other.link).all()
        assert (again.weight == other.weight).all()
        size = np.random.default_rng(seed).uniform(1, 1e9, len(one.bound))
        assert one.bytes_on_links(topology, size) == pytest.approx(other.bytes_on_links(whole, size), rel=1e-12)
        some = np.random.default_rng(seed).permutation(len(size))[:3]
        few_loads, whole_loads = (t.of_groups(c, some) for t, c in ((one, topology), (other, whole)))
        for loads, expected in zip(few_loads, whole_loads, strict=True):
            assert (loads == expected).all()
    (links, held), (others, beside) = scarce(topology, few), scarce(whole, all_)
    assert links.tolist() == others.tolist()
    assert [h.link.tolist() for h in held] == [h.link.tolist() for h in beside]


@pytest.mark.parametrize("extra", ["", SLOW_NIC, DEAD_NIC])
@pytest.mark.parametrize("fabric", [FULL, RAILS, NARROW, STATIC])
def test_latencies_of_pairs_are_those_of_their_routes(fabric, extra):
    topology = _cluster(fabric, extra)
    source, target = (x.ravel() for x in np.meshgrid(np.arange(32), np.arange(32)))
    routes = topology.route(source, target)
    assert topology.latencies(source, target) == pytest.approx(routes.latency, rel=1e-12)


def _by_group_and_link(topology, groups, group, link, weight):
    links = len(topology.capacity)
    return np.bincount(group * links + link, weight, groups * links)


def _moved_is_found(topology, ranks, levels, algorithm):
    inner = topology.up_to_nics()
    assert inner is not None
    for phase in phases(algorithm, "all_reduce", Group(ranks.shape[1], levels)):
        assert isinstance(phase, Phase)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(loads_of_phases, "_FEW", 0)
            moved = node_loads(inner, ranks, phase)
        found = pair_loads(inner, ranks, phase)
        for one, other in zip(moved[:2], found[:2], strict=True):
            assert one == pytest.approx(other, rel=1e-15)
        assert (np.diff(moved.group) >= 0).all()
        one, other = (_by_group_and_link(topology, len(ranks), *loads[2:5]) for loads in (moved, found))
        assert one == pytest.approx(other, rel=1e-15)
        for one, other in zip(moved.feeders, found.feeders, strict=True):
            pairs = (set(zip(*map(np.ndarray.tolist, both), strict=True)) for both in (one, other))
            assert next(pairs) == next(pairs)


def _groups(topology, n, order, seed):
    rng, gpus = np.random.default_rng(seed), np.arange(topology.gpus)
    if order == "nodes":
        gpus = rng.permutation(gpus.reshape(-1, topology.gpus_per_node)).ravel()
    elif order == "gpus":
        gpus = rng.permutation(gpus)
    return gpus[: len(gpus) // n * n].reshape(-1, n)


@settings(max_examples=examples(60), deadline=None)
@given(
    fabric=st.sampled_from([FULL, RAILS]),
    shape=st.sampled_from([(4, 4, "per_gpu"), (4, 2, "shared"), (8, 8, "per_gpu")]),
    extra=st.sampled_from(["", SLOW_NIC, DEAD_NIC, SLOW_GPU_LINK, "faults: [{node: 2, dead: true}]"]),
    n=st.sampled_from([2, 4, 8]),
    algorithm=st.sampled_from(["ring", "rail_ring", "nvls", "tree", "hierarchical"]),
    order=st.sampled_from(["near", "nodes", "gpus"]),
    seed=st.integers(0, 99),
)
def test_groups_that_lie_alike_load_the_links_of_their_own_nodes(fabric, shape, extra, n, algorithm, order, seed):
    """What is found of one group of each kind and moved is what is found of all of them."""
    topology = cluster(8, *shape, fabric, extra)
    levels = (n,) if algorithm in ("ring", "tree") else (2, n // 2)
    _moved_is_found(topology, _groups(topology, n, order, seed), levels, algorithm)


@pytest.mark.parametrize("order", ["near", "nodes", "gpus"])
@pytest.mark.parametrize("inside", sorted(INSIDE))
def test_so_they_do_whatever_joins_the_gpus_of_a_node(inside, order):
    topology = kinds("rail_optimized", "none", inside)
    for n in (2, 4, 8):
        _moved_is_found(topology, _groups(topology, n, order, 1), (n,), "ring")
