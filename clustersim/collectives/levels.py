"""Levels of a communication group: how its positions divide into nodes, leaves and pods, and the switches that it needs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.collectives.model import NETWORK, Group, Phase, phases
from clustersim.errors import InputError
from clustersim.topology.model import Topology

JOINED = ("nvswitch", "nvlink", "none")
"""Kinds of `scale_up` with a link of its own for each GPU, where NCCL uses SHARP; RCCL on a mesh does not."""


def fanouts(nodes: Ints, topology: Topology) -> tuple[int, ...]:
    """Return the fan-out of each level above the nodes of a job: nodes per leaf, leaves per pod, ….

    `nodes` are the distinct nodes of the job, ascending. The result ends before the first level whose groups differ in size; the
    last group may be smaller.
    """
    result: list[int] = []
    span = previous_size = 1
    for fanout in topology.fanouts:
        span *= fanout
        _, counts = np.unique(nodes // span, return_counts=True)
        size = int(counts[0])
        if (counts[:-1] != size).any() or counts[-1] > size or size % previous_size:
            break
        result.append(size // previous_size)
        previous_size = size
    return tuple(result)


def levels(nodes: Ints, upwards: Iterable[int]) -> tuple[int, ...]:
    """Return the fan-outs of a group, with product n. (4, 96, 2) is 4 positions per node, 96 nodes per leaf, 2 leaves.

    `nodes` (groups, n) is the node of each position. `upwards` are the fan-outs above the node (`fanouts`). Levels that do not
    divide evenly become one outer level. Fan-outs of 1 are left out, except for n = 1.
    """
    n = nodes.shape[1]
    inside = int(np.gcd.reduce((nodes == nodes[:, :1]).sum(axis=1)))
    result, remaining = [], n
    for fanout in (inside, *upwards):
        step = math.gcd(fanout, remaining)
        if step != min(fanout, remaining):
            break
        result.append(step)
        remaining //= step
    return tuple(f for f in (*result, remaining) if f > 1) or (n,)


def by_node(nodes: Ints) -> tuple[int, int]:
    """Return (positions per node, nodes) of groups on `nodes` (groups, n); (1, n) if nodes differ in size or recur."""
    groups, n = nodes.shape
    inside = int((nodes[0] == nodes[0, 0]).sum())
    if n % inside:
        return 1, n
    blocks = nodes.reshape(groups, n // inside, inside)
    is_new_node = np.diff(np.sort(blocks[:, :, 0], axis=1), axis=1) > 0
    return (inside, n // inside) if (blocks == blocks[:, :, :1]).all() and is_new_node.all() else (1, n)


# The levels of groups for algorithms that the user names, whose steps may use switches.


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
