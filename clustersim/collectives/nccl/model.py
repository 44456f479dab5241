"""NCCL's performance model: channels and bandwidth of every algorithm and protocol, by closed forms of tuning.cc."""

from __future__ import annotations

from typing import NamedTuple

from clustersim.collectives.nccl.constants import GB, US, Constants, architecture
from clustersim.collectives.nccl.graphs import HEADS, ChannelGraph, nvls, ring, tree
from clustersim.collectives.nccl.shape import Shape
from clustersim.collectives.switched import JOINED
from clustersim.topology.model import NodeFacts

ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
HALVES = ("all_gather", "reduce_scatter")
ROOTED = ("broadcast", "reduce")


class TuningCase(NamedTuple):
    """A collective of a communicator on its nodes, under a set of constants."""

    op: str
    shape: Shape
    node: NodeFacts
    constants: Constants
    late: float
    """Seconds of a hop between nodes beyond those of the constants."""

    @property
    def scale(self) -> int:
        """Column of the tables: one node, two, more."""
        return min(self.shape.nodes, 3) - 1

    @property
    def arch(self) -> int:
        """Row of the tables."""
        return architecture(self.node.architecture)

    @property
    def steps(self) -> int:
        """Hops of a ring, one after the other."""
        n = self.shape.ranks
        return {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}.get(self.op, n)


def graph(case: TuningCase, algorithm: str) -> ChannelGraph:
    """Return the channels that an algorithm has."""
    if algorithm in ("nvls", "nvls_tree"):
        return nvls(case.shape, case.node)
    return (tree if algorithm == "tree" else ring)(case.shape, case.node)


def bandwidth(case: TuningCase, algorithm: str, protocol: int) -> float:
    """Return bytes/s of the collective's size that an algorithm reaches with a protocol (0 LL, 1 LL128, 2 Simple)."""
    found = graph(case, algorithm)
    if algorithm == "ring":
        return _ring(case, found, protocol) * case.shape.ranks / case.steps
    if algorithm == "tree":
        return _tree(case, found, protocol) / 2
    if algorithm in ("nvls", "nvls_tree"):
        return _nvls(case, found, algorithm)
    if algorithm == "pat":
        return 0.75 * found.channels * _speed(case, found)
    return _collnet(case, found, algorithm)


def _speed(case: TuningCase, found: ChannelGraph) -> float:
    return found.intra if case.shape.nodes <= 2 else found.inter


def _ring(case: TuningCase, found: ChannelGraph, protocol: int) -> float:
    bus, c = found.channels * _speed(case, found), case.constants
    if protocol == 0:
        part = c.ll[0] if case.shape.nodes > 1 or case.op in ("all_reduce", "reduce") else c.ll[1]
        return min(_ll_max(case), part * bus)
    if protocol == 1:
        part = c.ring_ll128_single if case.shape.per_node < 2 else 0.92
        return min(part * bus, found.channels * c.ring_ll128[case.arch][case.scale] * GB)
    return bus


def _ll_max(case: TuningCase) -> float:
    """Return the most that LL carries: on one node the GPU limits it, between nodes the CPU."""
    row = case.arch if case.shape.nodes == 1 else int(case.node.cpu == "amd")
    return case.constants.ll_max[row][case.scale] * GB


def _tree(case: TuningCase, found: ChannelGraph, protocol: int) -> float:
    c, channels = case.constants, found.channels
    bus = min(0.92 * channels * _speed(case, found), channels * c.tree[case.arch][case.scale] * GB)
    if protocol == 0:
        bus = min(bus / 3.8, _ll_max(case))
    elif protocol == 1:
        part = 7 / 9 if case.shape.nodes == 1 else 120 / 128
        bus = min(bus * part, channels * c.tree_ll128[case.arch][case.scale] * GB)
    return bus * (0.85 if case.shape.per_node == 1 else 1.0)


def _nvls(case: TuningCase, found: ChannelGraph, algorithm: str) -> float:
    c, (nodes, _, per_node, *_) = case.constants, case.shape
    reduces, two = case.op == "all_reduce", nodes <= 2 and algorithm == "nvls_tree"
    if c.nvls is None:
        inter = found.inter if algorithm == "nvls" or two else found.inter / 2
        return min(found.intra, inter if nodes > 1 else found.intra) * found.channels * 5 / 6
    inside = found.intra * c.nvls[case.arch] * (found.channels - 1) / found.channels
    inside *= 2 if reduces else (per_node - 1) / per_node
    speeds = [inside, found.inter * (2 if two else 1)] if nodes > 1 else [inside]
    if algorithm == "nvls_tree" and c.nvls_tree is not None:
        most = c.nvls_tree[case.arch][case.scale] * GB
        speeds.append(most * (c.nvls_heads or found.channels) / found.channels)
    return min(speeds) * found.channels * (case.shape.ranks / case.steps if reduces else 1.0)


def _collnet(case: TuningCase, found: ChannelGraph, algorithm: str) -> float:
    bus, per_node = found.channels * found.intra, case.shape.per_node
    if algorithm == "collnet_direct":
        if case.op in HALVES:
            return per_node * min(found.intra, 0.9 * found.inter)
        factor = per_node / found.channels
        bus /= factor - (factor - 1) / 2
        bus *= 0.85 if case.arch >= 2 else 1.0
    return bus / 2


# NCCL's performance model: seconds of a collective without bytes, by closed forms of tuning.cc.


def latency(case: TuningCase, algorithm: str, protocol: int) -> float:
    """Return the seconds that a collective of no bytes takes by NCCL's model."""
    c, shape = case.constants, case.shape
    inside = _inside(case, algorithm)[protocol] * US
    between = _between(case, algorithm, protocol)
    base = c.base[algorithm][protocol] * US
    hops = shape.per_node - 1
    depth = shape.nodes.bit_length() - 1
    if algorithm == "ring":
        return base + _ring_hops(case, protocol, inside, between)
    if algorithm == "tree":
        return base + 2 * (hops * inside + depth * between)
    if algorithm == "pat":
        return base + depth * between / 3.5 + 2.8 * US * shape.ranks
    return {
        "nvls": inside + (between if shape.nodes > 1 else 0.0),
        "nvls_tree": inside + 2 * depth * between,
        "collnet_direct": 2 * (min(1, hops) * inside + 0.4 * US * hops) + between,
        "collnet_chain": 2 * hops * inside + between,
    }[algorithm]


def _inside(case: TuningCase, algorithm: str) -> tuple[float, float, float]:
    c = case.constants
    return (c.nvlink if case.node.scale_up != "none" else c.pci)[algorithm]


def _between(case: TuningCase, algorithm: str, protocol: int) -> float:
    """Return the seconds of a hop between nodes; the tuner lets Simple wait for the NIC twice, for its flush."""
    c = case.constants
    as_tree = case.shape.per_node == 1 and c.single_tree and algorithm == "ring"
    own = c.net["tree" if as_tree else algorithm][protocol] * US
    return own + case.late * (c.flush if protocol == 2 else 1)


def _ring_hops(case: TuningCase, protocol: int, inside: float, between: float) -> float:
    nodes, c = case.shape.nodes, case.constants
    if case.op in ROOTED:
        return _rooted(case, protocol, inside)
    if nodes == 1:
        return case.steps * inside
    overhead = (2 if case.node.cpu == "amd" else 1) * (3 if protocol == 2 else 1) * US
    crossings = 2 * (nodes - c.inter_steps) if case.op == "all_reduce" else nodes - 1
    return (case.steps - crossings) * max(inside, overhead) + crossings * between


def _rooted(case: TuningCase, protocol: int, inside: float) -> float:
    """Return the tuner's extra seconds of broadcast, reduce: one hop when all channels are equal, else all as on the network."""
    if case.shape.nodes == 1:
        return inside
    hop = case.constants.net["tree" if protocol == 2 else "ring"][protocol] * US
    equal = case.shape.nics < 2
    return (case.constants.net["ring"][protocol] * US) if equal else case.steps * hop


def chain(case: TuningCase, protocol: int) -> float:
    """Return the seconds that a byte of a broadcast or reduce takes from the first rank of its chain to the last.

    The tuner counts a hop or all as if between nodes; in fact it makes each hop in turn, nodes - 1 of them between nodes.
    """
    nodes, ranks = case.shape.nodes, case.shape.ranks
    inside, between = _inside(case, "ring")[protocol] * US, _between(case, "ring", protocol)
    return case.constants.base["ring"][protocol] * US + (ranks - nodes) * inside + (nodes - 1) * between


def detour(case: TuningCase, algorithm: str) -> float:
    """Return the seconds that the routes between the ranks take beyond those in NCCL's figures."""
    shape, extra = case.shape, case.shape.extra_latency
    hops, times = shape.per_node - 1, 2 if case.op == "all_reduce" else 1
    if algorithm == "ring":
        return times * ((shape.nodes - 1) * extra.ring + (shape.ranks - shape.nodes) * extra.inside)
    if algorithm in ("tree", "nvls_tree"):
        return 2 * (extra.tree + (hops if algorithm == "tree" else 1) * extra.inside)
    if algorithm == "pat":
        return (shape.nodes.bit_length() - 1) * extra.most
    return 2 * (hops if algorithm == "collnet_chain" else 1) * extra.inside + extra.most


# Which algorithms and protocols NCCL can use for a communicator, and why not the others (tuning.cc, init.cc).

SIMPLE_ONLY = "has Simple only"


def unavailable(case: TuningCase, algorithm: str, protocol: int) -> str | None:
    """Return why NCCL would not use an algorithm with a protocol, None if it may."""
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
    return reasons[algorithm] or (_no_ll128(case) if protocol == 1 else None)


def _no_nvls(case: TuningCase) -> str | None:
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
    if not case.node.nccl.collnet or case.shape.nodes == 1:
        return "needs SHARP between nodes"
    if case.node.scale_up not in JOINED:
        return f"needs NVLink or PCIe to a switch in the node, not scale_up.kind: {case.node.scale_up}"
    return f"does no {case.op}" if case.op in ROOTED else None


def _no_pat(case: TuningCase) -> str | None:
    if case.op not in HALVES:
        return f"does no {case.op}"
    return "is for one GPU a node" if case.shape.per_node > 1 or case.shape.nodes == 1 else None


def _no_ll128(case: TuningCase) -> str | None:
    if case.node.scale_up == "none":
        return "needs NVLink"
    return None
