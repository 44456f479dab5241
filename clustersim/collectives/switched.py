"""Algorithms named by the user whose steps use switches: the levels of their groups, and the switches they need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.levels import by_node, levels
from clustersim.collectives.model import NETWORK, Group, Phase, phases
from clustersim.errors import InputError
from clustersim.topology.model import Topology

JOINED = ("nvswitch", "nvlink", "none")
"""Kinds of `scale_up` with a link of its own for each GPU, where NCCL uses SHARP; RCCL on a mesh does not."""


class Switches(NamedTuple):
    """Whether an algorithm's steps use the switches inside nodes, and those between nodes."""

    node: bool
    network: bool


def switches(algorithm: str, op: str, group: Group) -> Switches:
    """Return which switches the steps of `op` use. Raises UnknownNameError or InputError if `algorithm` does not support it."""
    lowest = [np.minimum(p.source, p.destination) for p in phases(algorithm, op, group) if isinstance(p, Phase)]
    low = np.concatenate([np.zeros(1, np.int64), *lowest])
    return Switches(bool(((low > NETWORK) & (low < 0)).any()), bool((low <= NETWORK).any()))


def fitted(
    topology: Topology,
    algorithm: str,
    ops: Iterable[str],
    gpus: Ints,
    upwards: Iterable[int],
    shares: tuple[float, ...],
) -> Group:
    """Return the Group on which `algorithm` runs `ops` over the GPUs `gpus` (groups, n).

    Its levels are (positions per node, nodes) if steps use switches, else those of `levels.levels`. `upwards` are the fan-outs
    above the node (`levels.fanouts`). shares: share of all rows for each rank's experts, empty if equal. Raises InputError with
    the remedy for an unsupported operation, or a cluster without the switches that the algorithm needs.
    """
    nodes, needed_ops = topology.numbering.node_of(gpus), tuple(ops)
    by_nodes = Group(gpus.shape[1], by_node(nodes), shares)
    used = [switches(algorithm, op, by_nodes) for op in needed_ops]
    if not any(map(any, used)):
        by_levels = by_nodes._replace(levels=levels(nodes, upwards))
        for op in needed_ops:
            phases(algorithm, op, by_levels)  # raises for what the algorithm does not support on these levels
        return by_levels
    for op, op_switches in zip(needed_ops, used, strict=True):
        if why := lacking(topology, op_switches, by_nodes):
            raise InputError(f"{algorithm} cannot do {op} here: {why}")
    return by_nodes


def lacking(topology: Topology, used: Switches, group: Group) -> str | None:
    """Return text: which of the `used` switches the cluster lacks, and the remedy. Return None if it has all of them."""
    node = topology.node
    if used.node and not (node.multicast and node.scale_up == "nvswitch"):
        kind_remedy = "" if node.scale_up == "nvswitch" else " and scale_up.kind: nvswitch"
        remedy = f"write scale_up.multicast: true{kind_remedy}, or name another algorithm"
        return f"the nodes have no switches that add up; {remedy}"
    if used.network and node.scale_up not in JOINED:
        return (
            f"SHARP between nodes needs NVLink or PCIe to a switch in the node, not scale_up.kind: {node.scale_up}; "
            "name another algorithm, such as hierarchical"
        )
    if used.network and topology.reduction != "sharp":
        return (
            "the switches between nodes do not add up; write fabric.reduction: sharp, which fat trees and switch have, "
            "or name another algorithm"
        )
    if used.node and group.levels[0] < 2:
        return "its groups need as many GPUs, two or more, on each of their nodes; name another algorithm, such as ring"
    return None
