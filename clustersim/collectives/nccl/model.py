"""NCCL's performance model: bandwidth and latency of every algorithm and protocol, by the closed forms of its tuner.

Formulas are those of ncclTopoTuneModel in NVIDIA/nccl, src/graph/tuning.cc (src/tuning/ since 2.30), with the constants of
`nccl.constants`. Protocols are numbered 0 LL, 1 LL128, 2 Simple.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from clustersim.collectives.levels import JOINED
from clustersim.collectives.nccl.constants import GB, US, Constants, PerProtocol, architecture
from clustersim.collectives.nccl.graphs import HEADS, ChannelGraph, nvls, ring, tree
from clustersim.collectives.nccl.shape import CommunicatorShape
from clustersim.config.evidence import Declared
from clustersim.topology.model import NodeFacts

ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
"""NCCL's algorithms."""
HALVES = ("all_gather", "reduce_scatter")
ROOTED = ("broadcast", "reduce")
SIMPLE_ONLY = "has Simple only"
"""Reason why an algorithm is not available with LL or LL128."""
SLOT: Annotated[PerProtocol, Declared("bytes")] = (32_768, 576_000, 524_288)
"""Bytes of data in a slot by LL, LL128 and Simple, which holds one chunk of a broadcast or reduce: an eighth of a channel's
buffer (NVIDIA/nccl, src/include/device.h: NCCL_STEPS; src/init.cc: DEFAULT_BUFFSIZE, DEFAULT_LL128_BUFFSIZE, DEFAULT_LL_BUFFSIZE;
src/include/collectives.h: BROADCAST_CHUNKSTEPS 1), of which 1/2, 120/128 and all are data."""


class TuningCase(NamedTuple):
    """Input of NCCL's formulas: a collective, its communicator, the nodes that run it, and a set of tuner constants."""

    op: str
    shape: CommunicatorShape
    node: NodeFacts
    constants: Constants
    late: float
    """Seconds added to each hop between nodes on top of the constants."""

    @property
    def scale(self) -> int:
        """Column of the constants' tables: 0 for one node, 1 for two, 2 for more."""
        return min(self.shape.nodes, 3) - 1

    @property
    def arch(self) -> int:
        """Row of the constants' tables (`constants.architecture`)."""
        return architecture(self.node.architecture)

    @property
    def steps(self) -> int:
        """Number of consecutive hops of a ring."""
        n = self.shape.ranks
        return {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}.get(self.op, n)


def graph(case: TuningCase, algorithm: str) -> ChannelGraph:
    """Return the channels of an algorithm and their speed. PAT and CollNet use the channels of rings."""
    if algorithm in ("nvls", "nvls_tree"):
        return nvls(case.shape, case.node)
    return (tree if algorithm == "tree" else ring)(case.shape, case.node)


def bandwidth(case: TuningCase, algorithm: str, protocol: int) -> float:
    """Return the bytes/s of the collective's size that an algorithm reaches with a protocol (0 LL, 1 LL128, 2 Simple)."""
    channel_graph = graph(case, algorithm)
    if algorithm == "ring":
        # Bus to algorithm bandwidth: n / (2(n - 1)) for all_reduce (nccl-tests, doc/PERFORMANCE.md)
        return _ring(case, channel_graph, protocol) * case.shape.ranks / case.steps
    if algorithm == "tree":  # each byte goes up and down, so twice over a link
        return _tree(case, channel_graph, protocol) / 2
    if algorithm in ("nvls", "nvls_tree"):
        return _nvls(case, channel_graph, algorithm)
    if algorithm == "pat":  # tuning.cc: busBw *= .75
        return 0.75 * channel_graph.channels * _speed(case, channel_graph)
    return _collnet(case, channel_graph, algorithm)


def _speed(case: TuningCase, channel_graph: ChannelGraph) -> float:
    """Return the bytes/s of one channel that limit the algorithm: inside nodes up to two nodes, between nodes otherwise."""
    return channel_graph.intra if case.shape.nodes <= 2 else channel_graph.inter


def _ring(case: TuningCase, channel_graph: ChannelGraph, protocol: int) -> float:
    """Return the bus bandwidth of a ring in bytes/s. `protocol` is 0 LL, 1 LL128, 2 Simple."""
    bus, constants = channel_graph.channels * _speed(case, channel_graph), case.constants
    if protocol == 0:  # LL sends 4 bytes of flag with 4 of data; tuning.cc takes 1/4 to 1/3 of the bus
        share = constants.ll[0] if case.shape.nodes > 1 or case.op in ("all_reduce", "reduce") else constants.ll[1]
        return min(_ll_max(case), share * bus)
    if protocol == 1:
        # 120 of 128 bytes are data; tuning.cc takes 0.92, or less if a GPU sends and receives by one NIC
        share = constants.ring_ll128_single if case.shape.per_node < 2 else 0.92
        return min(share * bus, channel_graph.channels * constants.ring_ll128[case.arch][case.scale] * GB)
    return bus


def _ll_max(case: TuningCase) -> float:
    """Return the largest bus bandwidth of LL in bytes/s. The GPU limits it on one node, the CPU's proxy thread between nodes."""
    row = case.arch if case.shape.nodes == 1 else int(case.node.cpu == "amd")
    return case.constants.ll_max[row][case.scale] * GB


def _tree(case: TuningCase, channel_graph: ChannelGraph, protocol: int) -> float:
    """Return the bus bandwidth of a double binary tree in bytes/s. `protocol` is 0 LL, 1 LL128, 2 Simple."""
    constants, channels = case.constants, channel_graph.channels
    # tuning.cc: trees reach 0.92 of the bus, and at most the rate per channel that was measured on each architecture.
    bus = min(0.92 * channels * _speed(case, channel_graph), channels * constants.tree[case.arch][case.scale] * GB)
    if protocol == 0:
        bus = min(bus / 3.8, _ll_max(case))  # tuning.cc: 1/3.8 of the bus, a fit of NCCL's authors
    elif protocol == 1:  # tuning.cc: 7/9 in a node; between nodes 120 of 128 bytes are data
        share = 7 / 9 if case.shape.nodes == 1 else 120 / 128
        bus = min(bus * share, channels * constants.tree_ll128[case.arch][case.scale] * GB)
    # With one GPU per node the pattern is NCCL_TOPO_PATTERN_TREE, where a GPU receives and sends by the same NIC.
    return bus * (0.85 if case.shape.per_node == 1 else 1.0)


def _nvls(case: TuningCase, channel_graph: ChannelGraph, algorithm: str) -> float:
    """Return the bytes/s of the collective's size for `nvls` or `nvls_tree`."""
    constants, (nodes, _, per_node, *_) = case.constants, case.shape
    reduces, two = case.op == "all_reduce", nodes <= 2 and algorithm == "nvls_tree"
    if constants.nvls is None:
        # older releases: 5/6 of the bus; NVLSTree sends to two children, so half of the NICs' rate
        inter = channel_graph.inter if algorithm == "nvls" or two else channel_graph.inter / 2
        return min(channel_graph.intra, inter if nodes > 1 else channel_graph.intra) * channel_graph.channels * 5 / 6
    # One of the channels' shares of a link carries the reduced slice back, hence (channels - 1) / channels.
    inside = channel_graph.intra * constants.nvls[case.arch] * (channel_graph.channels - 1) / channel_graph.channels
    inside *= 2 if reduces else (per_node - 1) / per_node  # an all_reduce adds and copies in one pass over the links
    speeds = [inside, channel_graph.inter * (2 if two else 1)] if nodes > 1 else [inside]
    if algorithm == "nvls_tree" and constants.nvls_tree is not None:
        limit = constants.nvls_tree[case.arch][case.scale] * GB
        speeds.append(limit * (constants.nvls_heads or channel_graph.channels) / channel_graph.channels)
    return min(speeds) * channel_graph.channels * (case.shape.ranks / case.steps if reduces else 1.0)


def _collnet(case: TuningCase, channel_graph: ChannelGraph, algorithm: str) -> float:
    """Return the bytes/s of the collective's size for `collnet_direct` or `collnet_chain`."""
    bus, per_node = channel_graph.channels * channel_graph.intra, case.shape.per_node
    if algorithm == "collnet_direct":
        if case.op in HALVES:
            return per_node * min(channel_graph.intra, 0.9 * channel_graph.inter)
        factor = per_node / channel_graph.channels  # tuning.cc: GPUs that share a head are charged half of their excess
        bus /= factor - (factor - 1) / 2
        bus *= 0.85 if case.arch >= 2 else 1.0  # tuning.cc: from compute capability 9.0 on
    return bus / 2


def latency(case: TuningCase, algorithm: str, protocol: int) -> float:
    """Return the seconds of a collective without bytes by NCCL's model. `protocol` is 0 LL, 1 LL128, 2 Simple."""
    constants, shape = case.constants, case.shape
    inside = _inside(case, algorithm)[protocol] * US
    between = _between(case, algorithm, protocol)
    base = constants.base[algorithm][protocol] * US
    hops = shape.per_node - 1
    depth = shape.nodes.bit_length() - 1  # tuning.cc: log2i, rounded down
    if algorithm == "ring":
        return base + _ring_hops(case, protocol, inside, between)
    if algorithm == "tree":  # up and down: the chain in a node, then the tree over nodes
        return base + 2 * (hops * inside + depth * between)
    if algorithm == "pat":  # tuning.cc: a logarithmic part, and 2.8 us per rank that its authors call still linear
        return base + depth * between / 3.5 + 2.8 * US * shape.ranks
    return {
        "nvls": inside + (between if shape.nodes > 1 else 0.0),
        "nvls_tree": inside + 2 * depth * between,
        # 0.4 us: messages of several GPUs to one head are handled one after the other
        "collnet_direct": 2 * (min(1, hops) * inside + 0.4 * US * hops) + between,
        "collnet_chain": 2 * hops * inside + between,
    }[algorithm]


def _inside(case: TuningCase, algorithm: str) -> tuple[float, float, float]:
    """Return the time of a hop inside a node for LL, LL128 and Simple, in us."""
    constants = case.constants
    return (constants.nvlink if case.node.scale_up != "none" else constants.pci)[algorithm]


def _between(case: TuningCase, algorithm: str, protocol: int) -> float:
    """Return the seconds of a hop between nodes. The tuner's Simple (`protocol` 2) waits for the NIC twice, as it flushes."""
    constants = case.constants
    as_tree = case.shape.per_node == 1 and constants.single_tree and algorithm == "ring"
    hop_seconds = constants.net["tree" if as_tree else algorithm][protocol] * US
    return hop_seconds + case.late * (constants.flush if protocol == 2 else 1)


def _ring_hops(case: TuningCase, protocol: int, inside: float, between: float) -> float:
    """Return the seconds of all hops of a ring. inside, between: seconds of one hop in a node, and between nodes."""
    nodes, constants = case.shape.nodes, case.constants
    if case.op in ROOTED:
        return _rooted(case, protocol, inside)
    if nodes == 1:
        return case.steps * inside
    # getNetOverhead: the proxy thread posts a message in 1 us (AMD: 2), three times for Simple; hops in a node wait for it.
    overhead = (2 if case.node.cpu == "amd" else 1) * (3 if protocol == 2 else 1) * US
    crossings = 2 * (nodes - constants.inter_steps) if case.op == "all_reduce" else nodes - 1
    return (case.steps - crossings) * max(inside, overhead) + crossings * between


def _rooted(case: TuningCase, protocol: int, inside: float) -> float:
    """Return the tuner's seconds of all hops of a broadcast or reduce. `inside` is the seconds of one hop inside a node.

    On one node it counts one such hop, with one NIC per node one hop between nodes, and otherwise every hop as between nodes.
    """
    if case.shape.nodes == 1:
        return inside
    # tuning.cc takes a tree's hop for Simple, which contains the latency of a chunk.
    hop = case.constants.net["tree" if protocol == 2 else "ring"][protocol] * US
    return case.constants.net["ring"][protocol] * US if case.shape.nics < 2 else case.steps * hop


def chain(case: TuningCase, protocol: int, size: float) -> float:
    """Return the seconds of a broadcast or reduce of `size` bytes until its first chunk has passed the chain of ranks.

    Unlike the tuner, this counts every hop: nodes - 1 of them between nodes, where a proxy sends a slot once all of it is there
    (src/transport/net.cc), the rest inside, where Simple waits for slots too, and LL and LL128 pass on lines (prims_ll128.h).
    """
    nodes, ranks, channels = case.shape.nodes, case.shape.ranks, ring(case.shape, case.node)
    inside, between = _inside(case, "ring")[protocol] * US, _between(case, "ring", protocol)
    chunk = min(SLOT[protocol], size / channels.channels)
    inside += chunk / channels.intra if protocol == 2 else 0.0
    between += chunk * channels.channels / bandwidth(case, "ring", protocol)
    return case.constants.base["ring"][protocol] * US + (ranks - nodes) * inside + (nodes - 1) * between


def detour(case: TuningCase, algorithm: str) -> float:
    """Return the seconds that the communicator's routes add to the latency of the whole collective in NCCL's figures."""
    shape, extra = case.shape, case.shape.extra_latency
    hops, passes = shape.per_node - 1, 2 if case.op == "all_reduce" else 1
    if algorithm == "ring":
        return passes * ((shape.nodes - 1) * extra.ring + (shape.ranks - shape.nodes) * extra.inside)
    if algorithm in ("tree", "nvls_tree"):  # up and down
        return 2 * (extra.tree + (hops if algorithm == "tree" else 1) * extra.inside)
    if algorithm == "pat":
        return (shape.nodes.bit_length() - 1) * extra.slowest
    return 2 * (hops if algorithm == "collnet_chain" else 1) * extra.inside + extra.slowest


def unavailable(case: TuningCase, algorithm: str, protocol: int) -> str | None:
    """Return the reason why NCCL cannot use an algorithm with a protocol (0 LL, 1 LL128, 2 Simple), or None if it can."""
    nodes, switch = case.shape.nodes, case.node.scale_up == "nvswitch"
    if protocol != 2 and algorithm not in ("ring", "tree"):
        return SIMPLE_ONLY
    reasons = {
        "ring": None,
        "tree": None if case.op == "all_reduce" else f"does no {case.op}",
        "nvls": _no_nvls(case) or (None if nodes == 1 or case.node.nccl.collnet else "needs SHARP between nodes"),
        "nvls_tree": _no_nvls(case)
        or (f"does no {case.op}" if case.op != "all_reduce" else None if nodes > 1 else "is for several nodes"),
        "collnet_direct": _no_collnet(case) or (None if switch else "needs NVSwitch"),
        "collnet_chain": _no_collnet(case) or (None if case.op == "all_reduce" else f"does no {case.op}"),
        "pat": _no_pat(case),
    }
    return reasons[algorithm] or ("needs NVLink" if protocol == 1 and case.node.scale_up == "none" else None)


def _no_nvls(case: TuningCase) -> str | None:
    """Return the reason why NVLS is not available, or None if it is."""
    if not case.node.nccl.nvls:
        return "nccl.nvls is false"
    if not case.node.multicast or case.node.scale_up != "nvswitch" or case.arch < 2:
        return "needs NVSwitch with multicast (Hopper or newer)"
    if case.op in ROOTED:
        return f"does no {case.op}"
    if case.shape.per_node < 2:
        return "needs two GPUs a node"
    if case.op in HALVES and case.shape.per_node > HEADS:
        return f"does {case.op} for {HEADS} GPUs a node at most"
    return "needs two channels" if nvls(case.shape, case.node).channels < 2 else None


def _no_collnet(case: TuningCase) -> str | None:
    """Return the reason why CollNet is not available, or None if it is."""
    if not case.node.nccl.collnet or case.shape.nodes == 1:
        return "needs SHARP between nodes"
    if case.node.scale_up not in JOINED:
        return f"needs NVLink or PCIe to a switch in the node, not scale_up.kind: {case.node.scale_up}"
    return f"does no {case.op}" if case.op in ROOTED else None


def _no_pat(case: TuningCase) -> str | None:
    """Return the reason why PAT is not available, or None if it is."""
    if case.op not in HALVES:
        return f"does no {case.op}"
    return "is for one GPU a node" if case.shape.per_node > 1 or case.shape.nodes == 1 else None
