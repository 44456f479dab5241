"""NCCL's performance model: seconds of a collective without bytes, by closed forms of tuning.cc."""

from __future__ import annotations

from clustersim.collectives.nccl.constants import US
from clustersim.collectives.nccl.model import ROOTED, Case

LEAF = 14e-6
"""Seconds of a network hop that NCCL's own figures contain: what a NIC says beyond it is its `latency` attribute."""


def latency(case: Case, algorithm: str, protocol: int) -> float:
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


def _inside(case: Case, algorithm: str) -> tuple[float, float, float]:
    c = case.constants
    return (c.nvlink if case.node.scale_up != "none" else c.pci)[algorithm]


def _between(case: Case, algorithm: str, protocol: int) -> float:
    """Return the seconds of a hop between nodes; the tuner lets Simple wait for the NIC twice, for its flush."""
    c = case.constants
    as_tree = case.shape.per_node == 1 and c.single_tree and algorithm == "ring"
    own = c.net["tree" if as_tree else algorithm][protocol] * US
    return own + max(0.0, case.node.net_latency - LEAF) * (c.flush if protocol == 2 else 1)


def _ring_hops(case: Case, protocol: int, inside: float, between: float) -> float:
    nodes, c = case.shape.nodes, case.constants
    if case.op in ROOTED:
        return _rooted(case, protocol, inside)
    if nodes == 1:
        return case.steps * inside
    overhead = (2 if case.node.cpu == "amd" else 1) * (3 if protocol == 2 else 1) * US
    crossings = 2 * (nodes - c.inter_steps) if case.op == "all_reduce" else nodes - 1
    return (case.steps - crossings) * max(inside, overhead) + crossings * between


def _rooted(case: Case, protocol: int, inside: float) -> float:
    """Return what the tuner adds for broadcast and reduce: one hop when all channels are alike, else all as on the network."""
    if case.shape.nodes == 1:
        return inside
    hop = case.constants.net["tree" if protocol == 2 else "ring"][protocol] * US
    alike = case.shape.nics < 2
    return (case.constants.net["ring"][protocol] * US) if alike else case.steps * hop


def chain(case: Case, protocol: int) -> float:
    """Return the seconds that a byte of a broadcast or reduce takes from the first rank of its chain to the last.

    The tuner counts a hop or all as if between nodes; in fact it makes each hop in turn, nodes - 1 of them between nodes.
    """
    nodes, ranks = case.shape.nodes, case.shape.ranks
    inside, between = _inside(case, "ring")[protocol] * US, _between(case, "ring", protocol)
    return case.constants.base["ring"][protocol] * US + (ranks - nodes) * inside + (nodes - 1) * between


def detour(case: Case, algorithm: str) -> float:
    """Return the seconds that the ways between the ranks take beyond those in NCCL's figures."""
    shape, far = case.shape, case.shape.far
    hops, times = shape.per_node - 1, 2 if case.op == "all_reduce" else 1
    if algorithm == "ring":
        return times * ((shape.nodes - 1) * far.ring + (shape.ranks - shape.nodes) * far.inside)
    if algorithm in ("tree", "nvls_tree"):
        return 2 * (far.tree + (hops if algorithm == "tree" else 1) * far.inside)
    if algorithm == "pat":
        return (shape.nodes.bit_length() - 1) * far.most
    return 2 * (hops if algorithm == "collnet_chain" else 1) * far.inside + far.most
