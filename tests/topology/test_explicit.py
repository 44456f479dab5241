"""A graph written out: its paths are all shortest ones, and a leaf-spine in so many words is the generated one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from route_checks import check_routes

from clustersim.collectives.nccl.table import line
from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.topology.build import build
from clustersim.topology.export import to_networkx
from clustersim.topology.faults import DEAD
from clustersim.topology.model import Topology

NODE = "{extends: hgx-h100, gpus: {count: 2}, nics: {count: 2}}"


def written(
    nodes: int, leaves: int, spines: int, count: int, routing: str = "{}", faults: Sequence[str] = ()
) -> Topology:
    """Return a leaf-spine with every cable written out, nodes in order on the leaves."""
    switches = [f"l{i}" for i in range(leaves)] + [f"s{i}" for i in range(spines)]
    hosts = [f"{{a: 'node[{n}]', b: l{n * leaves // nodes}, rate: 400Gb/s}}" for n in range(nodes)]
    trunk = f"rate: 400Gb/s, latency: 250ns, count: {count}"
    trunks = [f"{{a: l{i}, b: s{j}, {trunk}}}" for i in range(leaves) for j in range(spines)]
    names, links = ", ".join(switches), ", ".join(hosts + trunks)
    graph = f"{{kind: explicit, nodes: [{names}], routing: {routing}, links: [{links}]}}"
    ill = f"faults: [{', '.join(faults)}]"
    return build(parse(f"cluster: {{name: t, nodes: {nodes}, node: hgx-h100}}\nfabric: {graph}\n{ill}"))


def generated(nodes: int, down: int, up: int, radix: int) -> Topology:
    tiers = f"[{{down: {down}, up: {up}}}, {{radix: {radix}}}]"
    fabric = f"{{kind: leaf_spine, tiers: {tiers}, link: {{rate: 400Gb/s}}, switch_latency: 250ns}}"
    return build(parse(f"cluster: {{name: t, nodes: {nodes}, node: hgx-h100}}\nfabric: {fabric}"))


@pytest.mark.parametrize("op", ["all_to_all", "all_reduce", "all_gather"])
@pytest.mark.parametrize(
    ("mine", "theirs"), [((128, 32, 16, 2), (128, 32, 32, 64)), ((32, 8, 4, 4), (32, 32, 16, 32))], ids=["full", "half"]
)
def test_a_leaf_spine_written_out_takes_the_time_of_the_generated_one(op, mine, theirs):
    one, other = written(*mine), generated(*theirs)
    for size in (1 << 20, 1 << 30):
        times = [line(topology, np.arange(topology.gpus), op, size).time for topology in (one, other)]
        assert times[0] == pytest.approx(times[1], rel=1e-9)


@st.composite
def graphs(draw) -> tuple[list[str], str]:
    """Return trunks of a connected graph of 3 to 8 switches, and the fabric's YAML with a node on each of the first three."""
    count = draw(st.integers(3, 8))
    spare = [(a, b) for b in range(count) for a in range(b)]
    chosen = {(draw(st.integers(0, b - 1)), b) for b in range(1, count)} | set(draw(st.lists(st.sampled_from(spare))))
    order = draw(st.permutations(sorted(chosen)))
    trunks = [
        f"{{a: s{a}, b: s{b}, rate: {draw(st.integers(1, 4))}GB/s, latency: {i + 1}us}}"
        for i, (a, b) in enumerate(order)
    ]
    hosts = [f"{{a: 'node[{n}]', b: s{n}, rate: 1GB/s}}" for n in range(3)]
    names = ", ".join(f"s{i}" for i in range(count))
    return [f"s{a} s{b}" for a, b in order], f"kind: explicit, nodes: [{names}], links: [{', '.join(hosts + trunks)}]"


def built(fabric: str, routing: str, faults: str = "[]") -> Topology:
    return build(
        parse(
            f"cluster: {{name: t, nodes: 3, node: {NODE}}}\nfabric: {{{fabric}, routing: {routing}}}\nfaults: {faults}"
        )
    )


@settings(max_examples=examples(60), deadline=None)
@given(graphs())
def test_adaptive_bytes_are_conserved_and_take_every_shortest_path(found):
    _, fabric = found
    topology = built(fabric, "{mode: adaptive}")
    graph = nx.DiGraph((u, v) for u, v in to_networkx(topology).edges() if u[0] == v[0] == "s")
    for a, b in ((0, 2), (2, 0), (0, 4), (4, 2)):
        routes = topology.route(np.array([a]), np.array([b]))
        ends = [topology.ends(link) for link in routes.links.tolist()]
        inner = {
            pair: part
            for pair, part in zip(ends, routes.share.tolist(), strict=True)
            if pair[0][0] == pair[1][0] == "s"
        }
        shortest = list(nx.all_shortest_paths(graph, f"s{a // 2}", f"s{b // 2}"))
        assert set(inner) == {pair for path in shortest for pair in pairwise(path)}
        for switch in graph:
            out, into = (sum(part for pair, part in inner.items() if pair[side] == switch) for side in (0, 1))
            assert out - into == pytest.approx((switch == f"s{a // 2}") - (switch == f"s{b // 2}"))
        assert routes.latency[0] == pytest.approx(float(topology.latency[routes.links] @ routes.share))


@settings(max_examples=examples(60), deadline=None)
@given(graphs())
def test_first_takes_the_path_whose_cables_stand_first(found):
    order, fabric = found
    graph = nx.Graph(tuple(pair.split()) for pair in order)
    topology = built(fabric, "{mode: first}")
    check_routes(topology)
    routes = topology.route(np.array([0]), np.array([4]))
    assert (routes.share == 1).all()
    walk = [topology.ends(link) for link in routes.links.tolist()]
    path = nx.single_source_shortest_path(graph, "s0")["s2"]
    assert [pair for pair in walk if pair[0][0] == pair[1][0] == "s"] == list(pairwise(path))


@settings(max_examples=examples(30), deadline=None)
@given(graphs(), st.integers(1, 3), st.integers(0, 5))
def test_hashed_paths_are_shortest(found, qps, seed):
    topology = built(found[1], f"{{mode: ecmp, qps: {qps}, seed: {seed}}}")
    check_routes(topology)


def test_a_hash_uses_all_cables_and_a_seed_changes_it():
    pairs = np.arange(128).repeat(128), np.tile(np.arange(128), 128)
    topology, other = (written(16, 4, 4, 8, f"{{mode: ecmp, seed: {seed}}}") for seed in (1, 2))
    one, two = topology.route(*pairs), other.route(*pairs)
    trunks = next(tier for tier in topology.tiers if tier.name == "trunk-up")
    load = np.bincount(one.links)[trunks.first : trunks.first + trunks.links]
    assert load.min() > 0.8 * load.mean()
    assert not np.array_equal(one.links, two.links)


@pytest.mark.parametrize("mode", ["adaptive", "ecmp", "first"])
def test_a_dead_spine_leaves_the_others(mode):
    topology = written(8, 4, 2, 8, f"{{mode: {mode}}}")
    text = [f"{{link: 'trunk[{2 * leaf}]', dead: true, cables: 8}}" for leaf in range(4)]
    spare = written(8, 4, 2, 8, f"{{mode: {mode}}}", text)
    every = np.arange(64).repeat(64), np.tile(np.arange(64), 64)
    before, after = topology.route(*every), spare.route(*every)
    assert (spare.capacity[after.links] > DEAD).all()
    assert after.latency == pytest.approx(before.latency)


@pytest.mark.parametrize("mode", ["adaptive", "ecmp", "first"])
def test_a_leaf_that_lost_all_its_trunks_is_named(mode):
    with pytest.raises(ConfigError, match="no route is left from l0 to l1; let a link live or degrade it"):
        written(8, 4, 2, 8, f"{{mode: {mode}}}", [f"{{link: 'trunk[{i}]', dead: true, cables: 8}}" for i in range(2)])
