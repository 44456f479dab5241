"""NCCL's choice: its own logged figures, the caps of real nodes, overrides, errors, and laws of the model."""

import re
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.collectives import model
from clustersim.collectives.idle import idle_rates, loads
from clustersim.collectives.model import Group
from clustersim.collectives.nccl import choose as choices
from clustersim.collectives.nccl import graphs, p2p, request, table
from clustersim.collectives.nccl.choose import FILES, choose, collective_seconds, file_of, tune, why
from clustersim.collectives.nccl.constants import RELEASES, constants
from clustersim.collectives.nccl.measured_latency import tree_bytes_in_flight
from clustersim.collectives.nccl.shape import CommunicatorShape, shape
from clustersim.collectives.nccl.table import considered
from clustersim.config.yaml import parse
from clustersim.errors import InputError
from clustersim.topology.build import build, load

ROOT = Path(__file__).parents[2]
MIB, GIB = 1 << 20, 1 << 30
SWITCH = "{kind: switch, link: {rate: 800Gb/s}}"
ADDING = "{kind: switch, link: {rate: 800Gb/s}, reduction: sharp}"


def cluster(node="hgx-h100", nodes=1, fabric=SWITCH, nccl='{version: "2.30"}'):
    """Return `nodes` nodes of a preset (or of a mapping as YAML) on one ideal switch."""
    text = f"cluster: {{nodes: {nodes}, node: {node}}}\n"
    return build(parse(text + (f"fabric: {fabric}\n" if nodes > 1 else "") + f"nccl: {nccl}\n", "test.yaml"))


def of(topology, per_node=None):
    """Return the shape of the first GPUs of every node."""
    each = per_node or topology.gpus_per_node
    return shape(topology, (np.arange(topology.nodes)[:, None] * topology.gpus_per_node + np.arange(each)).ravel())


def best(topology, op, size, per_node=None):
    return min(tune(op, size, of(topology, per_node), topology.node), key=lambda estimate: estimate.time_s)


def bus(topology, op, algorithm, per_node=None):
    """Return the busbw in GB/s that the tuner gives an algorithm with Simple."""
    found = {e.algorithm: e for e in tune(op, 1 << 40, of(topology, per_node), topology.node) if e.protocol == "Simple"}
    n = of(topology, per_node).ranks
    return found[algorithm].rate_bytes_per_s * table.bus_factor(op, n) / 1e9


def test_the_time_that_nccl_logs_for_three_nodes_of_h100():
    """NVIDIA/nccl issue 1453: 4 B over 24 GPUs, Tree/LL, 25.200462 us."""
    found = best(cluster(nodes=3), "all_reduce", 4)
    assert (found.algorithm, found.protocol) == ("tree", "LL")
    assert found.time_s == pytest.approx(25.2e-6, rel=1e-4)


def test_h200_goes_from_ring_to_nvls_at_two_mebibytes():
    """NCCL's log in stas00/ml-engineering: Ring/LL up to 1 MiB, NVLS from 2 MiB."""
    node = cluster("hgx-h200")
    assert best(node, "all_reduce", MIB)[:2] == ("ring", "LL")
    assert best(node, "all_reduce", 2 * MIB)[:2] == ("nvls", "Simple")


CAPS = [
    ("hgx-h200", 1, 8, "all_reduce", "nvls", 476),
    ("hgx-h200", 1, 8, "all_gather", "ring", 360),
    ("hgx-h200", 1, 4, "all_reduce", "ring", 360),
    ("hgx-h200", 1, 5, "all_reduce", "nvls", 408),
    ("hgx-h200", 1, 6, "all_reduce", "nvls", 425),
    ("hgx-h200", 1, 7, "all_reduce", "nvls", 408),
    ("hgx-a100", 1, 8, "all_reduce", "ring", 240),
    ("hgx-a100", 4, 8, "all_reduce", "ring", 192),
    ("hgx-b200", 1, 8, "all_reduce", "nvls", 829),
    ("hgx-b200", 1, 8, "all_reduce", "ring", 720),
    ("hgx-h100", 4, 8, "all_reduce", "ring", 384),
    ("hgx-h100", 4, 8, "all_reduce", "nvls_tree", 364),
    ("hgx-b200", 4, 8, "all_reduce", "ring", 384),
    ("dgx1-v100", 1, 8, "all_reduce", "ring", 120),
]


@pytest.mark.parametrize(("preset", "nodes", "each", "op", "algorithm", "gigabytes"), CAPS)
def test_bus_bandwidth_of_real_nodes(preset, nodes, each, op, algorithm, gigabytes):
    """Within 1 % of NCCL's own caps, which runs of nccl-tests on these nodes come up to."""
    assert bus(cluster(preset, nodes), op, algorithm, each) == pytest.approx(gigabytes, rel=0.01)


def test_channels_of_a_node_and_of_several():
    """NCCL's logs: 24 channels on one H100 node, 16 on several."""
    one, four = cluster(), cluster(nodes=4)
    assert graphs.ring(of(one), one.node)[:1] == (12,)
    assert choose("all_gather", GIB, of(one), one.node).channels == 24
    assert choose("all_gather", GIB, of(four), four.node).channels == 16


def test_one_gpu_a_node_uses_its_own_nic_only():
    """Data parallelism when a node is full of tensor parallelism: 48 GB/s, and PAT becomes possible."""
    four = cluster(nodes=4)
    assert bus(four, "all_gather", "ring", 1) == pytest.approx(48)
    assert best(cluster(nodes=32), "all_gather", 64 * 1024, 1).algorithm == "pat"
    with_eight = {
        e.algorithm: e.missing for e in tune("all_gather", GIB, of(four), four.node) if e.protocol == "Simple"
    }
    assert with_eight["pat"] == "is for one GPU a node"


@pytest.mark.parametrize(
    ("mebibytes", "microseconds"), [(32, 439.7), (64, 601.5), (128, 870.3), (256, 1468.2), (512, 2559.2)]
)
def test_elastic_fabric_adapters_are_as_late_as_their_plugin_says(mebibytes, microseconds):
    """all_reduce_perf on 2 p5.48xlarge (aws-samples/awsome-distributed-training): 8 to 41 % too fast with a HCA's latency."""
    two = cluster("aws-p5", 2, "{kind: switch}")
    choice = choose("all_reduce", mebibytes * MIB, of(two), two.node)
    assert collective_seconds(choice, mebibytes * MIB) == pytest.approx(microseconds * 1e-6, rel=0.04)


@pytest.mark.parametrize(
    ("nodes", "mebibytes", "milliseconds"),
    [(2, 24, 0.70), (2, 48, 0.82), (2, 96, 0.99), (2, 384, 1.55), (4, 24, 1.46), (4, 384, 2.38), (4, 768, 3.12)],
)
def test_a_late_adapter_is_waited_for_by_every_two_parts_of_a_ring(nodes, mebibytes, milliseconds):
    """What layers of nanotron with tp 16 and 32 on AWS took beside their computation, a tenth for each of ten collectives."""
    late = cluster("aws-p5", nodes, "{kind: switch}", nccl="{proto: Simple}")
    choice = choose("all_gather", mebibytes * MIB, of(late), late.node)
    assert collective_seconds(choice, mebibytes * MIB) == pytest.approx(milliseconds * 1e-3, rel=0.11)
    usual = cluster("{extends: aws-p5, nics: {latency: 14us}}", nodes, "{kind: switch}", nccl="{proto: Simple}")
    alone, before = (choose("all_gather", 0, of(one), one.node).latency_s for one in (late, usual))
    assert alone - before == pytest.approx((8 * nodes - 1) / 2 * 75e-6)


@pytest.mark.parametrize(("chunk", "gbps"), [("64KiB", 104.2), ("512KiB", 279.8)])
def test_a_late_adapter_is_waited_for_by_every_loop_of_nvls_trees(chunk, gbps):
    """4 GiB over 8 nodes of AWS p5 with the chunk of NCCL 2.19.3 and with that before (NVIDIA/nccl, pull request 1112)."""
    late = cluster(f"{{extends: aws-p5, nics: {{tree_chunk: {chunk}}}}}", 8, "{kind: switch}", nccl="{algo: nvls_tree}")
    line = table.line(late, np.arange(64), "all_reduce", 4 * GIB)
    assert line.busbw / 1e9 == pytest.approx(gbps, rel=0.07)


@pytest.mark.parametrize(("nodes", "gbps"), [(2, 436), (4, 219), (8, 193), (16, 188), (32, 194), (64, 177)])
def test_all_reduce_on_aws_is_that_of_its_best_jobs(nodes, gbps):
    """1 GiB, 95th percentile of the jobs of one sweep (Hugging Face, Ultra-Scale Playbook); jobs differ 5 to 14 times."""
    own = cluster("aws-p5", nodes, "{kind: switch}", nccl='{version: "2.21", proto: Simple}')
    line = table.line(own, np.arange(8 * nodes), "all_reduce", GIB)
    assert line.choice.algorithm == "nvls_tree"
    assert line.busbw / 1e9 == pytest.approx(gbps, rel=0.07)


def test_on_a_network_that_is_not_late_no_loop_waits():
    usual = "{extends: aws-p5, nics: {latency: 14us, tree_chunk: 64KiB}}"
    own, other = (cluster(node, 8, "{kind: switch}") for node in (usual, "hgx-h100"))
    times = [table.line(one, np.arange(64), "all_reduce", GIB).time for one in (own, other)]
    assert times[0] == pytest.approx(times[1], rel=1e-12)


@pytest.mark.parametrize(
    ("node", "nodes", "gbps"),
    [("jean-zay-v100", 1, 992.7), ("jean-zay-v100", 4, 84.7), ("jean-zay-a100", 4, 40.5)],
)
def test_the_nodes_of_jean_zay_reach_what_was_measured_on_them(node, nodes, gbps):
    """BigScience's all_reduce_bench of 4 GB (experiments/bandwidth), best of five: busbw in Gb/s."""
    found = cluster(node, nodes, "{kind: switch}")
    line = table.line(found, np.arange(found.gpus), "all_reduce", 4e9)
    assert 8 * line.busbw / 1e9 == pytest.approx(gbps, rel=0.1)


def test_two_gpus_of_jean_zay_share_two_links():
    """A full mesh: rings of all four pass over every pair's links, those of two GPUs have 2 of 25 GB/s, 20 of them payload."""
    node = cluster("jean-zay-v100")
    four, two = (table.line(node, np.arange(gpus), "all_reduce", 4e9).busbw for gpus in (4, 2))
    assert two < 40e9 < four == pytest.approx(3 * two, rel=0.06)


def test_releases_decide_differently():
    """NVLSTree on several nodes of B200: its cap rose from 43.8 to 80 GB/s a channel with 2.30."""
    text = "{{version: '{}'}}"
    rates = {v: bus(cluster("{extends: hgx-b200, nics: {rate: 800Gb/s}, host: {pcie: gen6x16, effective: 96GB/s}}", 4,
                            nccl=text.format(v)), "all_reduce", "nvls_tree") for v in ("2.28", "2.29.2", "2.30")}  # fmt: skip
    assert rates["2.28"] == rates["2.29.2"] == pytest.approx(350.4, rel=0.01)
    assert rates["2.30"] == pytest.approx(640, rel=0.01)
    assert constants("2.27.3") is RELEASES[2, 22]


def test_sharp_only_where_the_network_adds():
    plain, adding = cluster(nodes=4), cluster(nodes=4, fabric=ADDING)
    assert {e.algorithm: e.missing for e in tune("all_reduce", GIB, of(plain), plain.node)}["collnet_chain"]
    choice = choose("all_reduce", 8 * GIB, of(adding), adding.node)
    assert choice.algorithm == "nvls"
    assert choice.rate_bytes_per_s == pytest.approx(384e9 * 32 / 62, rel=0.01)  # 8 × 48 GB/s on the bus
    off = cluster(nodes=4, fabric=ADDING, nccl="{collnet: false}")
    assert choose("all_reduce", 8 * GIB, of(off), off.node) == choose("all_reduce", 8 * GIB, of(plain), plain.node)


@pytest.mark.parametrize("fabric", [SWITCH, "{kind: torus, dims: [4], link: {rate: 800Gb/s}}"])
def test_a_library_does_not_make_switches_add(fabric):
    message = (
        "test.yaml:3:17: nccl.collnet: the switches of this fabric do not add up; write fabric.reduction: sharp, which fat "
        "trees and switch have, or drop it"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        cluster(nodes=4, fabric=fabric, nccl="{collnet: true}")
    assert cluster(nccl="{collnet: true}").node == cluster(nccl="{}").node


@pytest.mark.parametrize("scale_up", ["mesh", "ring"])
def test_no_sharp_from_wires_between_gpus(scale_up):
    """A GPU of a mesh has no link to a switch in its node, and RCCL's rings and trees are all there is."""
    links = "links_per_peer: 1, link: 64GB/s"
    topology = cluster(f"{{extends: mi300x, scale_up: {{kind: {scale_up}, {links}}}}}", 2, ADDING)
    found = {e.algorithm: e.missing for e in tune("all_reduce", GIB, of(topology), topology.node)}
    assert all(found[name] for name in ("nvls", "nvls_tree", "collnet_direct"))
    assert found["collnet_chain"] == f"needs NVLink or PCIe to a switch in the node, not scale_up.kind: {scale_up}"
    for i in range(11):
        assert table.line(topology, np.arange(16), "all_reduce", 8 << 3 * i).choice.algorithm in ("ring", "tree")


def test_names_of_nccl_in_any_case():
    for nccl in ("{algo: NVLSTree, proto: simple}", "{algo: Nvls_Tree, proto: SIMPLE}"):
        assert cluster(nccl=nccl).node.nccl[1:3] == ("nvls_tree", "Simple")
    assert request.forced(cluster(), "Ring", "ll").node.nccl[1:3] == ("ring", "LL")


@pytest.mark.parametrize(
    ("algo", "proto"), [("ring", None), ("tree", "LL"), ("nvls", None), (None, "LL128"), ("ring", "Simple")]
)
def test_what_is_forced_is_taken(algo, proto):
    node = request.forced(cluster(), algo, proto)
    choice = choose("all_reduce", 4 * MIB, of(node), node.node)
    assert algo in (None, choice.algorithm)
    assert proto in (None, choice.protocol)


def test_the_reason_of_a_choice():
    node = cluster()
    assert why("all_reduce", 8, of(node), node.node) == "ring/LL is expected to take 15 us, tree/LL 15.2 us"
    said = considered(node, np.arange(8), "all_reduce", table.line(node, np.arange(8), "all_reduce", GIB))
    assert "nvls/Simple" in said
    assert "nvls_tree/Simple       is for several nodes" in said
    assert "nvls/LL " not in said


def test_messages():
    """alpha + S/B; LL up to 16 KiB inside a node, Simple between nodes."""
    one, two = cluster(), cluster(nodes=2)
    assert choose("send", 8, CommunicatorShape(1, 2, 2, 0), one.node)[:2] == ("direct", "LL")
    assert choose("send", 64 * 1024, CommunicatorShape(1, 2, 2, 0), one.node).protocol == "Simple"
    far = choose("send", GIB, of(two, 1), two.node)
    assert far.rate_bytes_per_s == 48e9
    assert p2p.channels("send", GIB, of(two, 1), two.node) == 4  # 2.29 on: 50 GB/s on the wire by 14 a channel
    # 16 GPUs on two nodes: 8 of 16 parts leave over each GPU's own NIC
    exchange = choose("all_to_all", GIB, of(two), two.node)
    assert exchange.rate_bytes_per_s == pytest.approx(2 * 48e9)


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_a_chain_waits_for_every_hop_in_turn(op):
    """The tuner's single hop would have a byte cross 128 nodes in 8 us, less than the light needs for the fibres between."""
    times = {}
    for nodes in (1, 2, 16, 128):
        node = cluster(nodes=nodes, fabric=SWITCH)
        times[nodes] = choose(op, 8, of(node), node.node).latency_s
    assert times[1] < times[2] < times[16] < times[128]
    assert times[128] > 127 * node.node.net_latency / 4
    a_node = (times[128] - times[16]) / 112
    assert times[128] == pytest.approx(times[2] + 126 * a_node)


def test_the_first_chunk_of_a_broadcast_waits_for_a_whole_slot_at_every_nic():
    """InternEvo broadcasts 291 tensors of 7.3B weights. Steps on 128 nodes take 3.18 s longer than on one, 1.6 s with half the
    bytes (InternLM/InternEvo c628a8c, doc/en/train_performance.md): 5 to 11 ms each, of which the bytes alone take one."""
    node = "{extends: hgx-a100, nics: {count: 2, rate: 200Gb/s, transport: roce}}"
    size, network = 14.6e9 / 291, 50e9
    times = {
        nodes: choose("broadcast", size, of(topology), topology.node)
        for nodes in (2, 16, 128)
        if (topology := cluster(node, nodes))
    }
    fills = {nodes: one.latency_s for nodes, one in times.items()}
    assert times[128].protocol == "LL128"
    assert 5e-3 < times[128].time_s < 11e-3
    assert (fills[128] - fills[16]) / 112 > 576_000 / network + 7 * 3.1e-6  # a slot at the NIC, seven hops inside
    small = {
        nodes: choose("broadcast", 8, of(topology), topology.node)
        for nodes in (2, 128)
        if (topology := cluster(node, nodes))
    }
    assert small[128].latency_s < fills[128] / 2  # nothing to wait for


def test_the_tuner_counts_all_hops_of_a_chain_only_where_channels_differ():
    """tuning.cc: `sameChannels` holds on one node and with one NIC, not where every channel has a NIC of its own."""
    node = cluster(nodes=4)
    ring, alone = (
        {e.protocol: e for e in tune("broadcast", 8, of(node, each), node.node) if e.algorithm == "ring"}
        for each in (8, 1)
    )
    assert ring["LL"].latency_s == pytest.approx((6.6 + 32 * 2.7) * 1e-6)
    assert alone["LL"].latency_s == pytest.approx((6.6 + 2.7) * 1e-6)


def test_channels_of_a_message_between_nodes_up_to_2_28():
    """Two, but one where channels would serve more than four peers each (ncclTopoGetNchannels): 15 of 50 GB/s with 80 ranks."""
    few, many = cluster(nodes=2, nccl='{version: "2.28"}'), cluster(nodes=10, nccl='{version: "2.28"}')
    assert choose("send", GIB, of(few, 1), few.node).rate_bytes_per_s == 28e9
    assert choose("send", GIB, of(many), many.node).rate_bytes_per_s == 14e9


def test_trees_over_two_nodes_are_faster_inside():
    """search.cc raises bwIntra of trees, which the tuner takes for two nodes: 44 GB/s of the array over four NICs of 100 Gb/s."""
    node = "{extends: hgx-a100, nics: {count: 4, rate: 100Gb/s}}"
    two, three = cluster(node, 2), cluster(node, 3)
    assert graphs.tree(of(two), two.node)[:3] == (4, 24e9, 12e9)
    assert choose("all_reduce", GIB, of(two), two.node)[:2] == ("tree", "Simple")
    assert choose("all_reduce", GIB, of(three), three.node).algorithm == "ring"
    assert choose("all_reduce", GIB, of(two), two.node).rate_bytes_per_s == pytest.approx(44.2e9, rel=0.01)


def test_the_way_between_nodes_counts_beyond_one_leaf():
    """Closed form: over a spine a way has two more switches and two more cables, down which trees of n nodes go log2 n times."""
    link = "link: {{rate: 400Gb/s, cable: [3m, {}]}}, switch_latency: 1us"
    fabric = f"{{{{kind: leaf_spine, tiers: [{{{{down: 8, up: 8}}}}, {{{{radix: 64}}}}], {link}}}}}"
    near, far = (cluster(nodes=16, fabric=fabric.format(length)) for length in ("3m", "20km"))
    assert of(near, 8).extra_latency.ring == pytest.approx(2e-6 + 2 * 3 * 5e-9, abs=1e-9)
    longer = of(far).extra_latency.ring - of(near).extra_latency.ring
    assert longer == pytest.approx(2 * (20e3 - 3) * 5e-9, rel=1e-6)
    times = {
        op: [choose(op, 8, of(t), t.node) for t in (near, far)]
        for op in ("all_reduce", "all_gather", "send", "all_to_all")
    }
    for op, (one, two) in times.items():
        hops = {"all_reduce": 2 * 4, "all_gather": 15}.get(op, 1)
        assert one[:2] == two[:2]
        assert two.latency_s - one.latency_s == pytest.approx(hops * longer, rel=1e-4), op


def test_a_slower_switch_inside_a_node_counts():
    fast, slow = cluster(), cluster("{extends: hgx-h100, scale_up: {latency: 103.4us}}")
    a, b = (choose("all_reduce", 8, of(t), t.node) for t in (fast, slow))
    assert b.latency_s - a.latency_s == pytest.approx(14 * 100e-6, rel=1e-6)


def test_latency_of_a_nic_counts_once_a_hop():
    near = cluster(nodes=2)
    far = cluster("{extends: hgx-h100, nics: {latency: 34us}}", 2)
    both = [choose("all_reduce", 8, of(t), t.node) for t in (near, far)]
    assert both[0][:2] == both[1][:2] == ("tree", "LL")
    assert both[1].latency_s - both[0].latency_s == pytest.approx(2 * 20e-6)


def test_launch_comes_on_top_when_the_file_says_so():
    quiet, eager = cluster(), cluster(nccl="{launch: 24us}")
    times = [table.line(t, np.arange(8), "all_reduce", MIB).time for t in (quiet, eager)]
    assert times[1] - times[0] == pytest.approx(24e-6)
    assert quiet.node.nccl.launch is None
    choice = choose("all_reduce", MIB, of(quiet), quiet.node)
    assert collective_seconds(choice, MIB) == pytest.approx(times[0])


def test_two_nodes_of_mi300x():
    """Oracle's example output of rccl-tests, 16 ranks, all_reduce of 8 GiB: 45110 us (oci-hpc-oke, Slurm operator guide)."""
    two = cluster("mi300x", 2, "{kind: switch, link: {rate: 400Gb/s}}")
    found = table.line(two, np.arange(16), "all_reduce", 8 * GIB)
    assert file_of(found.choice.algorithm, of(two), two.node) == "mesh_ring"
    assert found.time == pytest.approx(45110e-6, rel=0.10)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
@pytest.mark.parametrize("inside", [2, 4, 6, 8])
def test_rings_through_a_mesh_use_every_link(op, inside):
    """With g GPUs on every node all g(g-1) links of a node, and all NICs, carry what one ring in g carries."""
    group = Group(inside * 4, (inside, 4))
    [phase] = model.phases("mesh_ring", op, group)
    load = {}
    for source, destination, part in zip(*(x.tolist() for x in phase.pairs()[1:]), strict=True):
        load[source, destination] = load.get((source, destination), 0.0) + part
    near = [part for (a, b), part in load.items() if a // inside == b // inside]
    far = [(a, b) for a, b in load if a // inside != b // inside]
    assert all(a % inside == b % inside for a, b in far)  # rings stay on rails
    if op not in ("broadcast", "reduce"):
        times = 2 if op == "all_reduce" else 1
        assert len(near) == 4 * inside * (inside - 1)
        assert near == pytest.approx([times * (group.n - 1) / group.n / inside] * len(near))
        assert len(far) == 4 * inside
    assert max(load.values()) <= max(near) * (1 + 1e-9)


def test_a_mesh_is_crossed_by_all_its_rings():
    """Each of 7 links of 48 GB/s: 8 rings of 48 GB/s over two nodes, 336 GB/s for what leaves one GPU of a node."""
    one = cluster("mi300x")
    for op in ("broadcast", "reduce"):
        assert table.line(one, np.arange(8), op, 64 * GIB).busbw == pytest.approx(336e9, rel=0.01)


@pytest.mark.parametrize(
    ("node", "size", "gigabytes"),
    [
        ("mi300x", GIB, 167.3),  # openxla/xla, default_collective_perf_table
        ("mi355x", GIB, 229.0),
        ("mi355x", 8 * GIB, 233.0),  # oracle-quickstart/oci-gpu-quickstarts, RCCL 2.26.6
    ],
)
def test_large_all_reduces_in_a_node_of_amd_are_as_fast_as_published(node, size, gigabytes):
    assert size / table.line(cluster(node), np.arange(8), "all_reduce", size).time == pytest.approx(
        gigabytes * 1e9, rel=0.09
    )


def test_bytes_in_flight_in_nvls_trees():
    """calcCollChunking and ncclNvlsTuning: 16 channels × 8 heads × 64 KiB on four nodes of H100, less for less."""
    two, four = cluster(nodes=2), cluster(nodes=4)
    assert tree_bytes_in_flight(GIB, of(four), four.node) == 8 * MIB
    assert tree_bytes_in_flight(4 * MIB, of(four), four.node) == 4 * MIB
    assert tree_bytes_in_flight(GIB, of(two), two.node) == 16 * MIB
    assert tree_bytes_in_flight(32 * MIB, of(two), two.node) == 8 * MIB
    newer = cluster("hgx-b200", 4)
    assert tree_bytes_in_flight(GIB, of(newer), newer.node) == 24 * 8 * 64 * 1024


def test_rings_have_32_channels_at_most():
    """MAXCHANNELS is 64, and those of the search are launched twice: a rack of 64 GPUs has 32 × 22 GB/s, not 64 × 6."""
    racks = cluster("gb200-nvl72", 2, "{kind: switch, link: {rate: 400Gb/s}}")
    found = graphs.ring(of(racks, 64), racks.node)
    assert (found.channels, found.inter) == (32, 22e9)


@pytest.mark.parametrize(("rate", "channels"), [("400Gb/s", 1), ("800Gb/s", 2), ("1600Gb/s", 4)])
def test_a_nic_faster_than_the_fastest_channel_carries_several(rate, channels):
    """The search goes on while NICs have bytes left: channels of 48 GB/s on Hopper, and as many as fill the NIC."""
    node = {
        "cluster.nodes": 16,
        "cluster.nic": rate,
        "cluster.node.nics.attach": "integrated",
        "cluster.node.nics.efficiency": 1,
    }
    cluster = load("rail_optimized", node)
    one_a_node = shape(cluster, np.arange(0, 128, 8))
    assert graphs.ring(one_a_node, cluster.node)[:3] == (channels, 48e9, 48e9)
    whole = graphs.ring(shape(cluster, np.arange(128)), cluster.node)
    assert whole.channels * whole.inter <= cluster.node.nvlink * 8 / 7  # NVLink carries them all


def test_all_to_all_of_a_large_torus_is_its_bisection():
    """n/2 GPUs send half their bytes across 2·16·16 cables of 50 GB/s: 25 GB/s each, the rows of a dimension all alike."""
    torus = build(parse((ROOT / "topologies/torus_4096.yaml").read_text(), "torus_4096.yaml"))
    found = table.line(torus, np.arange(4096), "all_to_all", 64 * GIB)
    assert found.algbw == pytest.approx(25e9, rel=0.03)


SHARP = "needs SHARP between nodes"
FORCED = [
    ("all_gather", 1, ("tree",), {}, "does no all_gather"),
    ("all_reduce", 1, ("nvls", "LL"), {}, "has Simple only"),
    ("all_reduce", 1, ("nvls_tree",), {}, "is for several nodes"),
    ("all_reduce", 1, ("collnet_chain",), {}, SHARP),
    ("all_gather", 2, ("nvls",), {}, SHARP),
    ("all_gather", 2, ("pat", "LL"), {}, "is for one GPU a node"),
    ("all_reduce", 1, ("nvls",), {"nvls": False}, "nccl.nvls is false"),
]


@pytest.mark.parametrize(("op", "nodes", "forced", "more", "reason"), FORCED)
def test_what_nccl_cannot_be_forced_to_is_said(op, nodes, forced, more, reason):
    node = cluster(nodes=nodes)
    with pytest.raises(InputError) as caught:
        choose(op, 8, of(node), request.forced(node, *forced, **more).node)
    said = f"NCCL cannot do {op} with {' and '.join(forced)} here ({reason}); drop nccl.algo or nccl.proto"
    assert str(caught.value) == said


REFUSED = {
    "NCCL knows no dance; it does all_reduce, all_gather, reduce_scatter, broadcast, reduce, send, all_to_all, dispatch, "
    "combine": (lambda: choose("dance", 8, of(cluster()), cluster().node)),
    "a collective needs two GPUs or more; one has no peer": (
        lambda: choose("all_reduce", 8, CommunicatorShape(1, 1, 1, 0), cluster().node)
    ),
    "NCCL 2.8 is not known; write 2.18 to 2.30": lambda: constants("2.8"),
    "'new' is not a version of NCCL; write one like 2.27": lambda: constants("new"),
    "GPU 8 is not among 0 to 7": lambda: shape(cluster(), np.arange(9)),
    "a communicator has one GPU twice; name each once": lambda: shape(cluster(), np.array([1, 1])),
    "a communicator needs one GPU or more; name some": lambda: shape(cluster(), np.array([], int)),
    "NCCL's tuner knows no send; it chooses for all_reduce, all_gather, reduce_scatter, broadcast, reduce": (
        lambda: tune("send", 8, of(cluster()), cluster().node)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_said(message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        REFUSED[message]()


@pytest.mark.parametrize(
    ("nccl", "message"),
    [
        ("{version: 2}", "nccl.version"),
        ('{version: "3.1"}', "'3.1' is not a version of NCCL; write one in quotes"),
        ("{algo: rign}", "'rign' is not an algorithm of NCCL; write one of ring, tree, nvls"),
        ("{proto: fast}", "nccl.proto"),
    ],
)
def test_bad_settings_in_a_file(nccl, message):
    with pytest.raises(InputError, match=message):
        cluster(nccl=nccl)


@pytest.mark.parametrize("fabric", [SWITCH, "{kind: rail_optimized, tiers: [{radix: 64}], link: {rate: 400Gb/s}}"])
def test_links_give_what_nccl_expects_of_them(fabric):
    """The loads of each algorithm on an idle fabric allow the rate of NCCL's model, within 5 %."""
    topology = cluster(nodes=4, fabric=f"{fabric[:-1]}, reduction: sharp}}")
    one = of(topology)
    ranks = np.arange(32)[None]
    for e in tune("all_reduce", GIB, one, topology.node):
        if e.missing is None:
            rate = idle_rates(topology, ranks, model.phases(FILES[e.algorithm], "all_reduce", one.group))[0]
            assert rate >= 0.95 * e.rate_bytes_per_s, e


def test_ring_on_rails_is_limited_by_the_hop_to_the_rail():
    """PXN brings the last hop of a ring to the GPU of its rail: 370.8 GB/s on the bus of an H100, not 8 × 48."""
    topology = cluster(nodes=4, fabric="{kind: rail_optimized, tiers: [{radix: 64}], link: {rate: 400Gb/s}}")
    rate = idle_rates(topology, np.arange(32)[None], model.phases("rail_ring", "all_reduce", of(topology).group))[0]
    assert rate * 62 / 32 == pytest.approx(370.8e9, rel=1e-6)


@pytest.mark.parametrize(
    "algorithm", ["rail_ring", "rail_tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain"]
)
@pytest.mark.parametrize(("inside", "nodes"), [(8, 2), (8, 16), (4, 3)])
def test_nics_share_the_work(algorithm, inside, nodes):
    """Every NIC of a node carries the same bytes, and no node more than two arrays each way."""
    topology = cluster(f"{{extends: hgx-h100, gpus: {{count: {inside}}}, nics: {{count: {inside}}}}}", nodes)
    (phase,) = model.phases(algorithm, "all_reduce", model.Group(inside * nodes, (inside, nodes)))
    found = loads(topology, np.arange(inside * nodes)[None], phase)
    load = np.bincount(found.link, found.weight, len(topology.capacity))
    for way in ("nic-up", "nic-down"):
        (tier,) = (t for t in topology.tiers if t.name == way)
        nics = load[tier.first : tier.first + tier.links].reshape(nodes, inside)
        assert nics == pytest.approx(np.repeat(nics[:, :1], inside, axis=1))
        assert nics.sum(axis=1).max() <= 2 + 1e-9


PRESET = st.sampled_from(["hgx-a100", "hgx-h100", "hgx-b200", "dgx1-v100"])


@settings(max_examples=examples(60), deadline=None)
@given(PRESET, st.sampled_from([1, 2, 3, 16]), st.sampled_from(choices.OPS), st.floats(1, 2**36), st.floats(1.01, 100))
def test_laws(preset, nodes, op, size, more):
    """A given kernel takes longer for more bytes, and never moves more than its links could."""
    topology = cluster(preset, nodes)
    one = of(topology)
    small = choose(op, size, one, topology.node)
    assert small.latency_s > 0
    assert small.channels >= 1
    large = choose(op, size * more, one, topology.node)
    if small[:2] == large[:2]:
        assert collective_seconds(large, size * more) > collective_seconds(small, size)
    if nodes > 1 and op in ("all_gather", "reduce_scatter"):
        away = (one.ranks - one.per_node) / one.ranks  # of the array comes in, and goes out, over a node's NICs
        assert small.rate_bytes_per_s * away <= topology.node.nic * topology.node.nics * (1 + 1e-9)


def test_a_transport_has_its_own_latency_which_the_tuner_knows_of_efa_alone():
    """A network's plugin tells NCCL its latency or not: RoCE's and InfiniBand's chooses the same, and takes longer."""
    written = {"infiniband": 14e-6, "roce": 20e-6, "efa": 89e-6}
    built = {
        name: load("superpod_h100_128", {"cluster.nodes": 8, "cluster.node.nics.transport": name}) for name in written
    }
    assert {name: one.node.net_latency for name, one in built.items()} == pytest.approx(written)
    lines = {
        name: [table.line(one, np.arange(64), "all_reduce", float(2**n)) for n in range(12, 33, 2)]
        for name, one in built.items()
    }
    for plain, late in zip(lines["infiniband"], lines["roce"], strict=True):
        assert (plain.choice.algorithm, plain.choice.protocol) == (late.choice.algorithm, late.choice.protocol)
        assert late.time >= plain.time
    said = {"cluster.node.nics.transport": "efa", "cluster.node.nics.latency": "30us"}
    assert load("superpod_h100_128", said).node.net_latency == pytest.approx(30e-6)
