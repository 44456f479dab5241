"""Dead and slow links and nodes: traffic goes around them where it can, and an error names the partition where it cannot."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import job
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kind_cases import LINK, PLUS, SHORTEST, cluster
from route_checks import check_walk, pairs, walks

from clustersim.errors import ConfigError, InputError
from clustersim.simulation import run
from clustersim.topology.describe import describe
from clustersim.topology.export import to_networkx
from clustersim.topology.faults import DEAD
from clustersim.topology.model import Topology

TREE = "{kind: fat_tree, tiers: [{down: 4, up: 4}, {radix: 4, pod: 2}, {radix: 16}], " + LINK
STATIC, HASHED = TREE + ", routing: {mode: dmodk}}", TREE + ", routing: {mode: ecmp, qps: 2, seed: 1}}"
_HOSTS = ", ".join(f'{{a: "node[{n}]", b: {"abc"[n % 3]}, rate: 100GB/s}}' for n in range(8))
_TRUNKS = "{a: a, b: b, rate: 1GB/s}, {a: b, b: c, rate: 1GB/s}, {a: c, b: a, rate: 1GB/s}"
EXPLICIT = f"{{kind: explicit, nodes: [a, b, c], links: [{_HOSTS}, {_TRUNKS}]}}"
FABRICS = {
    "dmodk": (8, STATIC),
    "ecmp": (8, HASHED),
    "planes": SHORTEST["planes"],
    "hashed planes": SHORTEST["hashed planes"],
    "torus": SHORTEST["torus 4 x 2"],
    "grid": SHORTEST["mesh"],
    "rails": SHORTEST["rails"],
    "dragonfly": (9, f"{{kind: dragonfly, a: 4, p: 2, h: 2, {LINK}}}"),
    "explicit": (8, EXPLICIT),
    **PLUS,
}


def dead(*links: str) -> str:
    return "faults: [" + ", ".join(f"{{link: '{link}', dead: true}}" for link in links) + "]"


def check(topology: Topology) -> None:
    """Check that every pair has a walk that crosses no dead link, with the latency of its links."""
    graph = to_networkx(topology)
    routes = topology.route(*pairs(topology))
    assert (topology.capacity[routes.links] > DEAD).all()
    for i, (u, v) in enumerate(zip(*pairs(topology), strict=True)):
        row = slice(routes.start[i], routes.start[i + 1])
        links, share = routes.links[row].tolist(), routes.share[row]
        assert routes.latency[i] == pytest.approx(float((topology.latency[links] * share).sum()), rel=1e-12)
        if share.min(initial=1) == 1:
            for edges in walks(topology, links, share):
                check_walk(graph, edges, f"gpu[{u}]", f"gpu[{v}]", topology)


def test_a_pair_inside_a_node_asks_for_no_route_of_its_nic() -> None:
    """A NIC whose port up is dead in one plane and whose port down is in the other reaches every NIC but itself."""
    nodes, text = SHORTEST["planes"]
    topology = cluster(nodes, text, faults=dead("port-up[30]", "port-down[31]"))
    routes = topology.route(*pairs(topology))
    assert (np.diff(routes.start) > 0).sum() == topology.gpus * (topology.gpus - 1)


@settings(max_examples=examples(40), deadline=None)
@given(fabric=st.sampled_from(sorted(FABRICS)), data=st.data())
def test_traffic_goes_around_dead_links_or_the_partition_is_named(fabric: str, data: st.DataObject) -> None:
    nodes, text = FABRICS[fabric]
    sound = cluster(nodes, text)
    tiers = [t for t in sound.tiers if t.links and not t.name.startswith(("nic", "nvlink"))]
    chosen = data.draw(
        st.lists(
            st.sampled_from(tiers).flatmap(lambda t: st.tuples(st.just(t), st.integers(0, t.links - 1))), max_size=3
        )
    )
    names = sorted({f"{tier.name}[{index}]" for tier, index in chosen})
    try:
        topology = cluster(nodes, text, faults=dead(*names))
    except ConfigError as error:
        assert "partitioned" in str(error) or "cables alive" in str(error)
        return
    check(topology)
    every = pairs(sound)
    before, after = (t.route(*every) for t in (sound, topology))
    gone = np.isin(before.links, np.flatnonzero(topology.cables == 0))
    touched = np.unique(np.repeat(np.arange(len(before.latency)), np.diff(before.start))[gone])
    for i in np.setdiff1d(np.arange(len(before.latency)), touched)[::17]:
        one, two = (r.links[r.start[i] : r.start[i + 1]].tolist() for r in (before, after))
        assert one == two  # only what crossed a dead link is moved


def test_the_next_port_takes_over() -> None:
    """A dead uplink of leaf 0 moves the flows that climbed there by one port."""
    sound, topology = (cluster(8, STATIC, faults=f) for f in ("", dead("leaf-up[0]")))
    link = next(t.first for t in sound.tiers if t.name == "leaf-up")
    a, b = pairs(sound)
    before, after = (t.route(a, b) for t in (sound, topology))
    moved = np.flatnonzero([link in before.links[before.start[i] : before.start[i + 1]] for i in range(len(a))])
    assert len(moved)
    for i in moved:
        assert link + 1 in after.links[after.start[i] : after.start[i + 1]]


def test_a_bundle_loses_the_cables_that_die() -> None:
    text = "{kind: fat_tree, tiers: [{down: 4, up: 4}, {radix: 16}], " + LINK + "}"
    topology = cluster(
        8, text, faults="faults: [{link: 'leaf-up[1]', dead: true}, {link: 'leaf-down[1]', dead: true, cables: 3}]"
    )
    first = {t.name: t.first + 1 for t in topology.tiers}
    assert topology.capacity[first["leaf-up"]] == 3 * 100e9
    assert topology.capacity[first["leaf-down"]] == pytest.approx(100e9)
    assert "dead_links" not in topology.counts
    check(topology)


def test_nvlink_loses_one_of_eighteen_links() -> None:
    topology = cluster(2, "{kind: switch}", faults=dead("nvlink[1]"))
    assert topology.capacity[1] == pytest.approx(17 / 18 * topology.capacity[0])


def test_traffic_of_a_dead_nic_leaves_by_the_next_one() -> None:
    """NCCL finds the NICs that live when it starts; a rail whose NIC is dead at one end is not used by that pair."""
    for rails in ("none", "optimized"):
        text = f"{{kind: fat_tree, rails: {rails}, tiers: [{{down: 4, up: 4}}, {{radix: 16}}], {LINK}}}"
        topology = cluster(4, text, gpus=4, nics=4, faults=dead("nic[5]"))
        names = [topology.link_name(i) for i in topology.route(np.array([5]), np.array([9])).links]
        assert "nic-up[6]" in names
        assert "nic-up[5]" not in names
        assert names[:2] == ["nvlink-up[5]", "nvlink-down[6]"]
        arrives = [topology.link_name(i) for i in topology.route(np.array([9]), np.array([5])).links]
        assert "nic-down[6]" in arrives
        check_dead_free(topology)


def check_dead_free(topology: Topology) -> None:
    assert (topology.capacity[topology.route(*pairs(topology)).links] > DEAD).all()


def test_a_port_of_one_plane_may_die() -> None:
    nodes, text = SHORTEST["planes"]
    topology = cluster(nodes, text, faults=dead("port[1]"))
    links = topology.route(np.array([0]), np.array([15]))
    names = [topology.link_name(i) for i in links.links]
    assert names.count("port-up[0]") == 2  # both halves take the plane that is left
    check_dead_free(topology)


def test_wires_inside_a_node_are_gone_around() -> None:
    mesh = "{kind: mesh, link: 64GB/s}"
    topology = cluster(1, "", gpus=4, nics=4, scale_up=mesh, faults=dead("mesh[0]"))
    routes = topology.route(np.array([0]), np.array([1]))
    assert [topology.link_name(i) for i in routes.links] == ["mesh-up[1]", "mesh-down[2]"]  # 0 to 2, 2 to 1
    ring = "{kind: ring, link: 64GB/s}"
    topology = cluster(1, "", gpus=6, nics=6, scale_up=ring, faults=dead("ring[0]"))
    assert len(topology.route(np.array([0]), np.array([1])).links) == 5


@pytest.mark.parametrize(
    ("nodes", "fabric", "links", "said"),
    [
        (8, TREE + "}", ["leaf[0]"] * 5, "leaf[0] has 0 cables alive, not 1"),
        (8, STATIC, [f"leaf[{i}]" for i in range(4)], "from nic[0] to nic["),
        (8, HASHED, [f"leaf-up[{i}]" for i in range(4)], "from nic[0] to nic["),
        (4, f"{{kind: torus, dims: [4], {LINK}}}", ["x[0]", "x[2]"], "from router[0] to router[1]"),
        (4, f"{{kind: torus, dims: [4], {LINK}}}", ["nic[2]", "nic[3]"], "from node 1 to node 2"),
        (8, EXPLICIT, ["trunk[0]", "trunk[2]"], "from a to b"),
        (3, f"{{kind: dragonfly, a: 2, p: 2, h: 1, {LINK}}}", ["global[0]", "global[1]"], "no route is left from router["),
        (*PLUS["static"], ["leaf-up[0]", "leaf-up[1]"], "no route is left from leaf[0] to spine[0]"),
        (*PLUS["hashed"], [f"global[{i}]" for i in (0, 1, 2, 3, 6, 7)], "no route is left from spine[0] to spine["),
        (*PLUS["uneven"], [f"leaf-down[{i}]" for i in range(3)], "no route is left from spine[0] to leaf[0]"),
        (2, "{kind: switch}", ["nic[0]", "nic[1]"], "from node 0 to node 1"),
    ],
)  # fmt: skip
def test_a_partition_is_an_error_before_any_work(nodes: int, fabric: str, links: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cluster(nodes, fabric, faults=dead(*links))
    assert said in str(caught.value)
    assert caught.value.line == 3


def test_pcie_has_no_second_way() -> None:
    with pytest.raises(ConfigError, match=r"partitioned: no route is left from gpu\[1\] to pcie\[0\]"):
        cluster(2, "{kind: switch}", scale_up="{kind: none}", faults=dead("pcie-up[1]"))


def test_dead_nodes_are_left_out_and_the_rest_move_up() -> None:
    sound = cluster(8, STATIC)
    topology = cluster(8, STATIC, faults="faults: [{node: 2, dead: true}, {gpu: 9, dead: true}, {gpu: 6, slowdown: 2}]")
    assert (topology.nodes, topology.gpus, topology.counts["dead_nodes"]) == (6, 12, 2)
    kept = np.array([0, 1, 2, 3, 6, 7, 10, 11, 12, 13, 14, 15])
    assert np.flatnonzero(topology.slowdown == 2).tolist() == [4]
    a, b = pairs(topology)
    assert np.array_equal(topology.route(a, b).links, sound.route(kept[a], kept[b]).links)
    graph = to_networkx(topology)
    assert graph.has_edge("gpu[6]", "nic[6]")


def test_a_job_is_placed_on_the_nodes_that_live() -> None:
    sound = cluster(4, STATIC, gpus=4, nics=4)
    topology = cluster(4, STATIC, gpus=4, nics=4, faults="faults: [{node: 1, dead: true}]")
    result = run(topology, job(parallelism__tp=4, parallelism__dp=3, training__global_batch=12), ignore_memory=True)
    whole = run(sound, job(parallelism__tp=4, parallelism__dp=3, training__global_batch=12), ignore_memory=True)
    assert result.summary["step_time_s"] == pytest.approx(whole.summary["step_time_s"], rel=0.05)
    with pytest.raises(InputError, match="12"):
        run(topology, job(parallelism__tp=4, parallelism__dp=4), ignore_memory=True)


def test_a_detour_costs_time() -> None:
    nodes, fabric = 8, f"{{kind: torus, dims: [8], {LINK}}}"
    sound, topology = (cluster(nodes, fabric, faults=f) for f in ("", dead("x[0]")))
    a, b = np.array([0]), np.array([2])
    assert topology.route(a, b).latency[0] - sound.route(a, b).latency[0] == pytest.approx(6 * 250e-9)


def rows(topology: Topology) -> dict[str, str]:
    return dict(describe(topology))


def test_dead_uplinks_narrow_the_bisection_and_are_told() -> None:
    fabric = f"{{kind: rail_optimized, scalable_unit: 4, tiers: [{{down: 4, up: 4}}, {{radix: 16}}], {LINK}}}"
    leaves = int(cluster(16, fabric).counts["leaf_switches"])
    faults = ", ".join(f"{{link: 'leaf[{i}]', dead: true, cables: 3}}" for i in range(leaves))
    sound, ill = cluster(16, fabric), cluster(16, fabric, faults=f"faults: [{faults}]")
    assert ill.counts["bisection"] == pytest.approx(sound.counts["bisection"] / 2)  # NICs of 50 on cables of 100 GB/s
    assert rows(sound)["oversubscription"] == "1 : 1"
    assert rows(ill)["oversubscription"] == "2 : 1"
    assert rows(ill)["dead"] == f"{3 * leaves} cables upwards, {3 * leaves} downwards"


def test_a_dead_nic_is_counted_and_its_stand_in_rate_is_not_told() -> None:
    fabric = f"{{kind: leaf_spine, tiers: [{{down: 4, up: 4}}, {{radix: 16}}], {LINK}}}"
    found = rows(cluster(8, fabric, faults="faults: [{link: 'nic[3]', dead: true}, {node: 5, dead: true}]"))
    assert found["NICs"] == "15 × 48 GB/s a direction"
    assert found["dead"] == "1 node; 1 cable upwards, 1 downwards"
    assert "1 B/s" not in str(found)


def test_a_graph_written_out_loses_what_its_dead_trunks_carried() -> None:
    sound = cluster(8, EXPLICIT)
    ill = cluster(8, EXPLICIT, faults=dead("trunk[0]"))
    assert ill.counts["bisection"] < sound.counts["bisection"]
    assert ill.counts["oversubscription"] > sound.counts["oversubscription"]


def test_kinds_whose_cut_is_not_known_say_that_faults_are_not_in_it() -> None:
    text = rows(cluster(8, SHORTEST["torus 4 x 2"][1], faults=dead("x[0]")))
    assert text["bisection"].endswith("a direction, before faults")
    assert text["oversubscription"].endswith(": 1, before faults")


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ("{node: 3, slowdown: 9}, {node: 3, slowdown: 9}", "node 3 is slow by faults.0 already; write one of them"),
        ("{gpu: 5, slowdown: 2}, {node: 1, slowdown: 2}, {gpu: 5, slowdown: 2}", "gpu 5 is slow by faults.0 already"),
        ("{node: 1, slowdown: 1e5}, {gpu: 3, slowdown: 1e5}", r"slowed 1e\+10 times, by its node and by itself"),
        (
            "{link: 'nic[3]', rate: 1GB/s}, {link: 'nic-up[3]', rate: 0.5GB/s}",
            r"nic-up\[3\] is slow by faults.0 already",
        ),
        ("{link: 'nic[3]', rate: 1B/s}", "1 B/s is next to nothing; write 4"),
    ],
)
def test_a_part_is_slowed_once_and_within_reason(faults: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cluster(8, STATIC, faults=f"faults: [{faults}]")
