"""Levels of a communication group: how its positions divide into nodes, leaves and pods."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from clustersim.arrays import Ints
from clustersim.topology.model import Topology


def fanouts(nodes: Ints, topology: Topology) -> tuple[int, ...]:
    """Return the fan-out of each level above the nodes of a job: nodes per leaf, leaves per pod, ….

    `nodes` are in ascending order. The result ends at the first level whose groups differ in size; the last group may be smaller.
    """
    result: list[int] = []
    reach = below = 1
    for fanout in topology.fanouts:
        reach *= fanout
        _, counts = np.unique(nodes // reach, return_counts=True)
        most = int(counts[0])
        if (counts[:-1] != most).any() or counts[-1] > most or most % below:
            break
        result.append(most // below)
        below = most
    return tuple(result)


def levels(nodes: Ints, upwards: Iterable[int]) -> tuple[int, ...]:
    """Return the fan-outs of a group from the node upwards. (4, 96, 2) is 4 positions per node, 96 nodes per leaf, 2 leaves.

    `nodes` (groups, n) is the node of each position. `upwards` comes from `fanouts`. Levels that do not divide evenly become
    one outer level.
    """
    n = nodes.shape[1]
    inside = int(np.gcd.reduce((nodes == nodes[:, :1]).sum(axis=1)))
    result, left = [], n
    for fanout in (inside, *upwards):
        step = math.gcd(fanout, left)
        if step != min(fanout, left):
            break
        result.append(step)
        left //= step
    return tuple(f for f in (*result, left) if f > 1) or (n,)


def by_node(nodes: Ints) -> tuple[int, int]:
    """Return (positions per node, number of nodes) of groups on `nodes` (groups, n), or (1, n) if nodes differ in size."""
    groups, n = nodes.shape
    inside = int((nodes[0] == nodes[0, 0]).sum())
    if n % inside:
        return 1, n
    each = nodes.reshape(groups, n // inside, inside)
    apart = np.diff(np.sort(each[:, :, 0], axis=1), axis=1) > 0
    return (inside, n // inside) if (each == each[:, :, :1]).all() and apart.all() else (1, n)
