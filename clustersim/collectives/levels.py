"""The levels of a communication group: how its positions fall into nodes, leaves and pods."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from clustersim.arrays import Ints
from clustersim.topology.model import Topology


def fanouts(nodes: Ints, topology: Topology) -> tuple[int, ...]:
    """Return how many of a job's nodes, then of groups of them, each group of nodes holds at each level upwards.

    nodes: ascending. It ends at the level where groups hold different numbers, the last, which may be less full, excepted.
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
    """Return the fan-outs of a group from the node upwards, such as (8,) or (4, 96, 2): positions by node, leaf, pod.

    nodes: of every position of the groups, (groups, n). upwards: as from `fanouts`. What does not divide evenly becomes one
    outer level.
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
    """Return (positions of a node, nodes) of groups on `nodes` (groups, n); (1, n) where nodes hold different numbers."""
    groups, n = nodes.shape
    inside = int((nodes[0] == nodes[0, 0]).sum())
    if n % inside:
        return 1, n
    each = nodes.reshape(groups, n // inside, inside)
    apart = np.diff(np.sort(each[:, :, 0], axis=1), axis=1) > 0
    return (inside, n // inside) if (each == each[:, :, :1]).all() and apart.all() else (1, n)
