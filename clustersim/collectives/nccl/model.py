"""NCCL's performance model: channels and bandwidth of every algorithm and protocol, by closed forms of tuning.cc."""

from __future__ import annotations

from typing import NamedTuple

from clustersim.collectives.nccl.constants import GB, Constants, architecture
from clustersim.collectives.nccl.graphs import Graph, nvls, ring, tree
from clustersim.collectives.nccl.shape import Shape
from clustersim.topology.model import NodeFacts

ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
HALVES = ("all_gather", "reduce_scatter")
ROOTED = ("broadcast", "reduce")


class Case(NamedTuple):
    """A collective of a communicator on its nodes, under a set of constants."""

    op: str
    shape: Shape
    node: NodeFacts
    constants: Constants

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


def graph(case: Case, algorithm: str) -> Graph:
    """Return the channels that an algorithm has."""
    if algorithm in ("nvls", "nvls_tree"):
        return nvls(case.shape, case.node)
    return (tree if algorithm == "tree" else ring)(case.shape, case.node)


def bandwidth(case: Case, algorithm: str, protocol: int) -> float:
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


def _speed(case: Case, found: Graph) -> float:
    return found.intra if case.shape.nodes <= 2 else found.inter


def _ring(case: Case, found: Graph, protocol: int) -> float:
    bus, c = found.channels * _speed(case, found), case.constants
    if protocol == 0:
        part = c.ll[0] if case.shape.nodes > 1 or case.op in ("all_reduce", "reduce") else c.ll[1]
        return min(_ll_max(case), part * bus)
    if protocol == 1:
        part = c.ring_ll128_single if case.shape.per_node < 2 else 0.92
        return min(part * bus, found.channels * c.ring_ll128[case.arch][case.scale] * GB)
    return bus


def _ll_max(case: Case) -> float:
    """Return the most that LL carries: on one node the GPU limits it, between nodes the CPU."""
    row = case.arch if case.shape.nodes == 1 else int(case.node.cpu == "amd")
    return case.constants.ll_max[row][case.scale] * GB


def _tree(case: Case, found: Graph, protocol: int) -> float:
    c, channels = case.constants, found.channels
    bus = min(0.92 * channels * _speed(case, found), channels * c.tree[case.arch][case.scale] * GB)
    if protocol == 0:
        bus = min(bus / 3.8, _ll_max(case))
    elif protocol == 1:
        part = 7 / 9 if case.shape.nodes == 1 else 120 / 128
        bus = min(bus * part, channels * c.tree_ll128[case.arch][case.scale] * GB)
    return bus * (0.85 if case.shape.per_node == 1 else 1.0)


def _nvls(case: Case, found: Graph, algorithm: str) -> float:
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


def _collnet(case: Case, found: Graph, algorithm: str) -> float:
    bus, per_node = found.channels * found.intra, case.shape.per_node
    if algorithm == "collnet_direct":
        if case.op in HALVES:
            return per_node * min(found.intra, 0.9 * found.inter)
        factor = per_node / found.channels
        bus /= factor - (factor - 1) / 2
        bus *= 0.85 if case.arch >= 2 else 1.0
    return bus / 2
