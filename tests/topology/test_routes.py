"""Routes by arithmetic against shortest paths in the same cluster's graph."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from route_checks import check_routes, pairs

from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.topology.build import build, load
from clustersim.topology.export import to_networkx
from clustersim.topology.model import Topology

CLUSTER = """
cluster: {{name: small, nodes: {nodes}, node: small}}
nodes:
  small: {{extends: hgx-h100, gpus: {{count: {gpus}}}, nics: {{count: {nics}, attach: {attach}}}}}
fabric:
  kind: fat_tree
  rails: {rails}
  {unit}
  tiers: {tiers}
  link: {{rate: 400Gb/s}}
  routing: {mode}
"""
MODES = ("{mode: adaptive}", "{mode: dmodk}", "{mode: ecmp, seed: 3}", "{mode: ecmp, qps: 3}")
TREES = (
    "[{radix: 64}]",
    "[{down: 4, up: 4}, {radix: 16}]",
    "[{down: 4, oversubscription: 2}, {radix: 16}]",
    "[{down: 4, up: 4}, {radix: 4, pod: 2}, {radix: 16}]",
    "[{down: 4, up: 4}, {radix: 8, pod: 3}, {radix: 8}]",
    "[{down: 2, up: 2}, {radix: 4}, {radix: 4}, {radix: 4}]",
)


def cluster(nodes=6, gpus=4, nics=4, attach="per_gpu", rails="none", unit=1, tiers=TREES[1], mode=MODES[0]) -> Topology:
    unit = f"scalable_unit: {unit}" if rails != "none" else ""
    return build(
        parse(
            CLUSTER.format(
                nodes=nodes, gpus=gpus, nics=nics, attach=attach, rails=rails, unit=unit, tiers=tiers, mode=mode
            )
        )
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tiers", TREES)
def test_routes_are_shortest_paths_without_rails(tiers: str, mode: str) -> None:
    check_routes(cluster(nodes=8, gpus=2, nics=2, tiers=tiers, mode=mode))


@settings(max_examples=examples(60), deadline=None)
@given(
    nodes=st.integers(2, 7),
    nics=st.integers(1, 3),
    each=st.integers(1, 2),
    attach=st.sampled_from(["per_gpu", "shared"]),
    down=st.integers(1, 4),
    pod=st.integers(1, 3),
    radix=st.integers(2, 8),
    unit=st.integers(1, 2),
    mode=st.sampled_from(MODES),
    rails=st.sampled_from(["none", "optimized", "2"]),
)
def test_every_legal_tree_routes(nodes, nics, each, attach, down, pod, radix, unit, mode, rails) -> None:
    """Rails of all NICs or of two, a NIC for each GPU or for two: what is legal has shortest paths, and bundles of its cables."""
    assume(rails != "2" or nics % 2 == 0)
    tiers = f"[{{down: {down}, up: {down}}}, {{radix: {2 * radix}, pod: {pod}}}, {{radix: {2 * radix}}}]"
    tree = {
        "nodes": nodes,
        "gpus": nics * each,
        "nics": nics,
        "attach": attach,
        "tiers": tiers,
        "rails": rails,
        "unit": unit,
    }
    try:
        topology = cluster(**tree, mode=mode)
    except ConfigError as error:
        assert "uplinks to reach them" in str(error) or "do not fit into the" in str(error)
        return
    check_routes(topology)
    bundles, cables = (cluster(**tree, mode=mode) for mode in MODES[:2])
    assert [tier.name for tier in bundles.tiers] == [tier.name for tier in cables.tiers]
    for one, many in zip(bundles.tiers, cables.tiers, strict=True):
        assert bundles.capacity[one.span].sum() == pytest.approx(cables.capacity[many.span].sum())
        assert bundles.cables[one.span].sum() == cables.cables[many.span].sum()


@pytest.mark.parametrize(
    ("tiers", "radix"),
    [
        (TREES[1], {"spine": 16}),
        (TREES[3], {"spine": 4, "core": 16}),
        (TREES[4], {"spine": 8, "core": 8}),
        (TREES[5], {"spine": 4, "core": 4, "tier4": 4}),
    ],
)
def test_no_switch_has_more_cables_than_ports(tiers: str, radix: dict[str, int]) -> None:
    topology = cluster(nodes=8, gpus=2, nics=2, tiers=tiers, mode=MODES[1])
    graph = to_networkx(topology)
    for name, ports in radix.items():
        degrees = [graph.out_degree(switch) for switch, kind in graph.nodes(data="kind") if kind == name]
        assert len(degrees) == topology.counts[f"{name}_switches"]
        assert max(degrees) <= ports


def test_a_route_to_itself_is_empty_and_a_neighbour_is_over_nvlink() -> None:
    topology = cluster()
    routes = topology.route(np.array([1, 1]), np.array([1, 2]))
    assert routes.start.tolist() == [0, 0, 2]
    assert [topology.link_name(link) for link in routes.links] == ["nvlink-up[1]", "nvlink-down[2]"]
    assert routes.latency.tolist() == pytest.approx([0.0, 3.4e-6])


def test_a_change_of_rail_goes_over_nvlink_first() -> None:
    topology = cluster(rails="optimized", unit=2)
    routes = topology.route(np.array([0]), np.array([4 + 3]))
    names = [topology.link_name(link) for link in routes.links]
    assert names == ["nvlink-up[0]", "nvlink-down[3]", "nic-up[3]", "nic-down[7]"]


def test_dmodk_never_shares_a_cable_downwards_in_a_permutation() -> None:
    topology = load("topologies/fattree_3840_100g.yaml")
    nodes = np.arange(topology.nodes)
    down = [tier for tier in topology.tiers if tier.name in {"leaf-down", "spine-down"}]
    for permuted in (np.roll(nodes, 1), np.roll(nodes, 256), np.random.default_rng(1).permutation(nodes)):
        load_of = np.bincount(topology.route(nodes * 8, permuted * 8).links, minlength=len(topology.capacity))
        assert all(load_of[tier.first : tier.first + tier.links].max() == 1 for tier in down)


def test_dmodk_carries_a_shift_over_a_full_tree_without_contention() -> None:
    topology = cluster(nodes=16, gpus=4, nics=4, tiers="[{radix: 8}, {radix: 8}, {radix: 8}]", mode=MODES[1])
    gpus = np.arange(topology.gpus)
    for shift in (4, 8, 16, 20, 32):
        used = topology.route(gpus, (gpus + shift) % topology.gpus).links
        assert np.bincount(used).max() == 1


def test_ecmp_spreads_and_repeats_with_its_seed() -> None:
    one, same, other = (cluster(tiers=TREES[1], mode=f"{{mode: ecmp, seed: {seed}}}") for seed in (1, 1, 2))
    a, b = pairs(one)
    assert np.array_equal(one.route(a, b).links, same.route(a, b).links)
    assert not np.array_equal(one.route(a, b).links, other.route(a, b).links)
    tier = next(tier for tier in one.tiers if tier.name == "leaf-up")
    load_of = np.bincount(one.route(a, b).links, minlength=len(one.capacity))[tier.first : tier.first + tier.links]
    assert load_of.min() > 0


def test_queue_pairs_carry_equal_shares() -> None:
    topology = cluster(tiers=TREES[1], mode=MODES[3])
    routes = topology.route(np.array([0]), np.array([topology.gpus - 1]))
    assert sorted(set(routes.share.tolist())) == pytest.approx([1 / 3, 1.0])
    assert len(routes.links) == len(routes.share) == 2 + 3 * 2


EXPLICIT = """
cluster: {name: written, nodes: 4, node: {extends: hgx-h100, gpus: {count: 2}, nics: {count: 2}}}
fabric:
  kind: explicit
  nodes: [leaf0, leaf1, spine0]
  links:
    - {a: "node[0]", b: leaf0, rate: 400Gb/s}
    - {a: "node[1]", b: leaf0, rate: 400Gb/s}
    - {a: leaf1, b: "node[2]", rate: 400Gb/s}
    - {a: "nic[6]", b: leaf1, rate: 400Gb/s}
    - {a: "nic[7]", b: leaf1, rate: 400Gb/s}
    - {a: leaf0, b: spine0, rate: 400Gb/s, latency: 250ns, count: 4}
    - {a: spine0, b: leaf1, rate: 400Gb/s, latency: 250ns, count: 4}
"""


def test_a_written_graph_is_the_generated_one() -> None:
    written = build(parse(EXPLICIT))
    generated = cluster(nodes=4, gpus=2, nics=2, tiers="[{down: 4, up: 4}, {radix: 8}]")
    check_routes(written)
    a, b = pairs(written)
    mine, theirs = written.route(a, b), generated.route(a, b)
    assert np.array_equal(mine.start, theirs.start)
    assert mine.latency == pytest.approx(theirs.latency)
    assert written.capacity[mine.links] == pytest.approx(generated.capacity[theirs.links])
    assert written.counts["bisection"] == pytest.approx(generated.counts["bisection"])


def test_a_switch_joins_all_nics_and_nodes_without_nvlink_use_pcie() -> None:
    topology = build(
        parse("cluster: {nodes: 3, node: {extends: hgx-h100, scale_up: {kind: none}}}\nfabric: {kind: switch}")
    )
    check_routes(topology)
    assert [tier.name for tier in topology.tiers] == ["pcie-up", "pcie-down", "nic-up", "nic-down"]
    assert topology.capacity[0] == 48e9


def test_a_fabric_of_one_plane_a_rail_keeps_to_the_rail() -> None:
    topology = load("topologies/neusight_384.yaml")
    gpus = np.arange(0, topology.gpus, 8)
    routes = topology.route(gpus, (gpus + 8 * 5 + 3) % topology.gpus)
    assert routes.latency.max() == 0
    assert (np.diff(routes.start) == 6).all()
