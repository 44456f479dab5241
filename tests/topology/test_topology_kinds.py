"""Dragonfly, torus, grid, rails without spines, planes and wires inside nodes: routes, counts, published figures."""

from __future__ import annotations

import pickle
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kind_cases import LINK, PLUS, SHORTEST, _plus, cluster
from route_checks import check_routes, check_walk, pairs, walks

from clustersim.topology.build import load
from clustersim.topology.describe import diameter
from clustersim.topology.export import to_networkx
from clustersim.topology.lattice import Dim, Lattice


@pytest.mark.parametrize("name", SHORTEST)
def test_routes_are_shortest_paths(name: str) -> None:
    nodes, fabric = SHORTEST[name]
    check_routes(cluster(nodes, fabric))


@pytest.mark.parametrize(
    "scale_up",
    [
        "{kind: mesh, link: 64GB/s}",
        "{kind: ring, link: 64GB/s}",
        "{kind: torus, shape: [4, 2], link: 64GB/s}",
        "{kind: torus, shape: [2, 2, 2], link: 64GB/s}",
    ],
)
def test_wires_inside_nodes_are_shortest_paths(scale_up: str) -> None:
    rails = f"{{kind: rail_only, tiers: [{{radix: 16}}], {LINK}}}"
    check_routes(cluster(2, rails, gpus=8, nics=8, scale_up=scale_up))
    topology = cluster(1, "", gpus=8, nics=8, scale_up=scale_up)
    graph = to_networkx(topology)
    a, b = pairs(topology)
    hops = np.diff(topology.route(a, b).start)
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    assert hops.tolist() == [lengths[f"gpu[{u}]"][f"gpu[{v}]"] for u, v in zip(a, b, strict=True)]


@pytest.mark.parametrize(
    ("a", "p", "h", "groups", "nodes"),
    [(2, 1, 4, 9, 9), (2, 2, 2, 5, 9), (4, 2, 2, 9, 30), (4, 1, 2, 3, 6), (3, 2, 1, 1, 3)],
)
def test_dragonfly_routes_are_minimal(a: int, p: int, h: int, groups: int, nodes: int) -> None:
    topology = cluster(nodes, f"{{kind: dragonfly, a: {a}, p: {p}, h: {h}, groups: {groups}, {LINK}}}")
    graph = to_networkx(topology)
    source, destination = pairs(topology)
    routes = topology.route(source, destination)
    for i, (u, v) in enumerate(zip(source, destination, strict=True)):
        links = routes.links[routes.start[i] : routes.start[i + 1]].tolist()
        for edges in walks(topology, links, routes.share[routes.start[i] : routes.start[i + 1]]):
            check_walk(graph, edges, f"gpu[{u}]", f"gpu[{v}]", topology)
        names = [topology.link_name(link).partition("-")[0] for link in links]
        place = {kind: names.count(kind) for kind in ("local", "global")}
        assert place["global"] <= 1
        assert place["local"] <= 2
        assert [n for n in names if n in place] in (
            [], ["local"], ["global"], ["local", "global"], ["global", "local"], ["local", "global", "local"],
        )  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(a=st.integers(1, 6), h=st.integers(1, 4), p=st.integers(1, 3), fewer=st.integers(0, 6))
def test_no_router_of_a_dragonfly_has_more_cables_than_ports(a: int, h: int, p: int, fewer: int) -> None:
    groups = max(1, a * h + 1 - fewer)
    fabric = f"{{kind: dragonfly, a: {a}, p: {p}, h: {h}, groups: {groups}, {LINK}}}"
    if groups * a * p < 2:
        return
    topology = cluster(2, fabric, gpus=1, nics=1)
    graph = nx.MultiGraph()
    for tier in topology.tiers:
        if tier.name in ("local-up", "global-up"):
            graph.add_edges_from((*topology.ends(i), tier.name) for i in range(tier.first, tier.first + tier.links))
    for name in graph:
        kinds = [key for _, _, key in graph.edges(name, keys=True)]
        assert kinds.count("local-up") == a - 1
        assert kinds.count("global-up") <= h
    group = {name: int(name[7:-1]) // a for name in graph}
    joined = {frozenset((group[u], group[v])) for u, v, key in graph.edges(keys=True) if key == "global-up"}
    assert len(joined) == groups * (groups - 1) // 2


def test_the_dragonfly_of_the_paper() -> None:
    """Kim, Dally, Scott and Abts 2008, figure 5: p = h = 4, a = 8, g = 33, N = 1,056 ports; 15-port routers, 3 hops."""
    topology = load("topologies/dragonfly_132.yaml")
    counts = topology.counts
    assert (counts["groups"], counts["routers"], counts["nics"]) == (33, 264, 1056)
    assert counts["local_cables"] == 33 * 8 * 7 / 2
    assert counts["global_cables"] == 33 * 32 / 2
    assert counts["balanced"]
    assert diameter(topology).hops == 2 + 3


@settings(max_examples=examples(80), deadline=None)
@given(
    leaves=st.integers(1, 4),
    spines=st.integers(1, 5),
    h=st.integers(1, 6),
    parallel=st.integers(1, 2),
    groups=st.integers(1, 9),
    mode=st.sampled_from(["adaptive", "dmodk", "ecmp"]),
)
def test_the_ports_of_a_dragonfly_plus(leaves: int, spines: int, h: int, parallel: int, groups: int, mode: str) -> None:
    """Every spine has h global cables and every two groups have equally many; an adaptive flow crosses all cables alike."""
    assume(groups == 1 or spines * h % (groups - 1) == 0)
    more = f", uplinks: {parallel * spines}, groups: {groups}, routing: {{mode: {mode}}}"
    topology = cluster(2 * groups, _plus(leaves, spines, 2, h, more + ", group_nodes: 2"), gpus=leaves, nics=leaves)
    joined: Counter[tuple[str, str]] = Counter()
    for tier in topology.tiers:
        if tier.name in ("leaf-up", "global-up"):
            for link in range(tier.first, tier.first + tier.links):
                joined[topology.ends(link)] += int(topology.cables[link])
    ends = Counter[str]()
    for pair, cables in joined.items():
        ends.update(dict.fromkeys(pair, cables))
    bundled = mode == "adaptive" and (groups == 1 or h % (groups - 1) == 0)
    assert {c for n, c in ends.items() if n.startswith("leaf")} == {parallel * spines}
    if not bundled:
        to_groups = h if groups > 1 else 0
        assert {c for n, c in ends.items() if n.startswith("spine")} == {leaves * parallel + to_groups}
    between = Counter[frozenset[int]]()
    for (a, b), cables in joined.items():
        if a.startswith("spine"):
            between[frozenset(int(name[6:-1]) // spines for name in (a, b))] += cables
    assert len(between) == groups * (groups - 1) // 2
    assert set(between.values()) <= {spines * h // max(groups - 1, 1)}
    assert sum(between.values()) == topology.counts["global_cables"]
    if mode != "adaptive":
        return
    flow = topology.route(np.array([0]), np.array([topology.gpus - 1]))
    tier = next(t for t in topology.tiers if t.name == ("global-up" if groups > 1 else "leaf-up"))
    loads = flow.share / topology.cables[flow.links]
    crossed = loads[(flow.links >= tier.first) & (flow.links < tier.first + tier.links)]
    if len(crossed):
        assert crossed == pytest.approx(1 / (spines * h // (groups - 1) if groups > 1 else spines * parallel))


def test_a_dead_cable_leaves_the_rest_of_the_routes_equal() -> None:
    """Three spines, three ways inside a group: without one of them the bytes go half and half."""
    nodes, fabric = PLUS["uneven"]
    topology = cluster(nodes, fabric, faults="faults: [{link: 'leaf-up[0]', dead: true}]")
    flow = topology.route(np.array([0]), np.array([2]))
    names = [topology.link_name(link) for link in flow.links]
    up = [i for i, name in enumerate(names) if name.startswith("leaf-up")]
    assert [names[i] for i in up] == ["leaf-up[1]", "leaf-up[2]"]
    assert flow.share[up].tolist() == [0.5, 0.5]


def test_a_route_through_a_third_group_when_two_have_lost_all_cables() -> None:
    nodes, fabric = SHORTEST["dragonfly_plus of bundles"]
    topology = cluster(nodes, fabric, faults="faults: [{link: 'global[0]', dead: true, cables: 4}]")
    names = [topology.link_name(link) for link in topology.route(np.array([0]), np.array([4])).links]
    assert [name.partition("-")[0] for name in names] == ["nic", "leaf", "global", "global", "leaf", "nic"]


def test_the_dragonfly_plus_of_leonardo() -> None:
    """CINECA's user guide: 18 cables between any two of 23 cells, one a spine, and Turisini et al. 2023: 828 of 40 ports."""
    topology = load("topologies/dragonfly_plus_3420.yaml")
    counts = topology.counts
    assert (counts["groups"], counts["leaf_switches"], counts["spine_switches"]) == (23, 23 * 18, 23 * 18)
    assert counts["global_cables"] == 23 * 22 / 2 * 18
    assert counts["bisection"] == 11 * 12 * 18 * 25e9
    far = diameter(topology)
    assert far.hops == 2 + 3
    assert far.latency == pytest.approx(14e-6 + 3 * 130e-9 + (10 + 50 + 10) * 5e-9)


def test_the_largest_dragonfly_plus_of_36_ports() -> None:
    """Shpiner et al. 2017: half the ports of a switch up, half down: (k/2)^2 hosts a group, (k/2)^2 + 1 groups of one cable."""
    fabric = _plus(18, 18, 18, 18, ", radix: 36")
    topology = cluster(105_300, fabric, gpus=1, nics=1)
    assert topology.counts["groups"] == 18 * 18 + 1
    assert topology.counts["global_cables"] == 325 * 324 / 2
    assert diameter(topology).hops == 2 + 3


def test_the_torus_of_a_tpu_pod() -> None:
    topology = load("topologies/torus_4096.yaml")
    assert topology.counts["bisection"] == 2 * 16 * 16 * 50e9
    assert topology.counts["cables"] == 3 * 4096 + 4096
    far = diameter(topology)
    assert far.hops == 2 + 3 * 8
    assert far.latency == pytest.approx(2e-6 + 24 * 250e-9 + 8 * (1 + 1 + 10) * 5e-9)
    gpus = np.arange(4096)
    for step in (1, 16, 256):  # neighbours are one hop apart
        there = gpus // (16 * step) * (16 * step) + (gpus + step) % (16 * step)
        assert (np.diff(topology.route(gpus, there).start) == 3).all()


def test_a_torus_loads_both_directions_alike() -> None:
    topology = cluster(16, f"{{kind: torus, dims: [4, 4], {LINK}}}", gpus=1, nics=1)
    used = topology.route(*pairs(topology)).links
    load_of = np.bincount(used, minlength=len(topology.capacity))
    tiers = [tier for tier in topology.tiers if tier.name[0] in "xy"]
    assert {int(load_of[i]) for tier in tiers for i in range(tier.first, tier.first + tier.links)} == {8}


@settings(max_examples=examples(80), deadline=None)
@given(
    dims=st.lists(
        st.tuples(st.sampled_from(["ring", "line", "mesh", "switch"]), st.integers(1, 5)), min_size=1, max_size=3
    ),
    beside=st.integers(1, 2),
    stride=st.integers(1, 2),
)
def test_lattice_wires_and_paths_agree(dims, beside: int, stride: int) -> None:
    """Every path is a walk over the wires; every wire's name and place are the same; paths stay in their own grid."""
    made = tuple(Dim(f"d{i}", kind, size, 1.0, 1.0, 1, f"s{i}") for i, (kind, size) in enumerate(dims))
    size = int(np.prod([d.size for d in made]))
    lattice = Lattice(made, size * beside * stride, "p", stride)
    tails, heads = lattice.wires(np.arange(lattice.firsts[-1]))
    assert len(tails) == lattice.firsts[-1] == sum(len(run.capacity) for run in lattice.ranges())
    for link in range(0, len(tails), 7):
        assert lattice.ends(link) == (lattice.name(int(tails[link])), lattice.name(int(heads[link])))
    p = np.arange(lattice.positions)
    a, b = np.repeat(p, len(p)), np.tile(p, len(p))
    same = (a // (size * stride) == b // (size * stride)) & (a % stride == b % stride)
    for start, end, row in zip(a[same], b[same], lattice(a[same], b[same]), strict=True):
        links = row[row >= 0]
        places = [start, *heads[links]]
        assert places[-1] == end
        assert all(tails[link] == place for link, place in zip(links, places, strict=False))
        assert len(set(map(int, places))) == len(places)


def test_a_mesh_gives_each_pair_its_own_links_and_no_more() -> None:
    topology = load("topologies/mi300x_8.yaml")
    routes = topology.route(*pairs(topology))
    assert len(topology.capacity) == 8 * 7
    assert np.bincount(routes.links).tolist() == [1] * 56
    assert set(topology.capacity) == {48e9}  # RCCL's figure for a link of 64 GB/s


def test_rails_without_spines_are_changed_inside_nodes() -> None:
    topology = load("topologies/rail_only_128.yaml")
    routes = topology.route(np.array([0]), np.array([8 + 3]))
    names = [topology.link_name(link) for link in routes.links]
    assert names == ["nvlink-up[0]", "nvlink-down[3]", "nic-up[3]", "nic-down[11]"]
    assert topology.counts["switches"] == 8


def test_planes_share_the_bytes_and_the_rate() -> None:
    topology = load("topologies/hpn_dual_plane_128.yaml")
    assert topology.counts["leaf_switches"] == 16  # 8 rails x 2 planes: Qian et al. 2024
    routes = topology.route(np.array([0]), np.array([8 * 9]))
    by_name: dict[str, float] = {}
    for link, share in zip(routes.links.tolist(), routes.share.tolist(), strict=True):
        by_name[topology.link_name(link)] = by_name.get(topology.link_name(link), 0.0) + share
    assert by_name == {
        "nic-up[0]": 1, "port-up[0]": 0.5, "port-up[1]": 0.5, "port-down[144]": 0.5, "port-down[145]": 0.5, "nic-down[72]": 1,
    }  # fmt: skip
    first = {tier.name: tier.first for tier in topology.tiers}
    assert topology.capacity[first["port-up"]] == 25e9
    assert topology.capacity[first["nic-up"]] == 48e9


@pytest.mark.parametrize("more", ["", ", planes: 1"])
def test_a_leaf_spine_is_a_fat_tree_of_two_tiers_in_one_plane(more: str) -> None:
    nodes, fabric = SHORTEST["leaf_spine"]
    one, two = (cluster(nodes, fabric.replace("leaf_spine", kind)) for kind in ("leaf_spine", "fat_tree" + more))
    assert one.counts == two.counts
    assert np.array_equal(one.route(*pairs(one)).links, two.route(*pairs(two)).links)


def test_switches_that_add_up_are_told() -> None:
    nodes, fabric = SHORTEST["leaf_spine"]
    assert cluster(nodes, fabric).reduction == "none"
    assert cluster(nodes, fabric[:-1] + ", reduction: sharp}").reduction == "sharp"
    assert cluster(2, "{kind: switch, reduction: sharp}").reduction == "sharp"


def test_kinds_survive_pickling() -> None:
    faults = "faults: [{link: 'x[0]', dead: true}, {node: 3, dead: true}]"
    made = [cluster(*SHORTEST["torus 4 x 2"], faults=faults)]
    made += [cluster(*SHORTEST[name]) for name in ("planes", "rails", "leaf_spine")]
    made += [load(f"topologies/{name}.yaml") for name in ("superpod_h100_128", "explicit_8")]
    for topology in made:
        copy = pickle.loads(pickle.dumps(topology))
        assert np.array_equal(copy.route(*pairs(copy)).links, topology.route(*pairs(topology)).links)
