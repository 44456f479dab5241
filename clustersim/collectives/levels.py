"""Levels of a communication group: how its positions divide into nodes, leaves and pods."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from clustersim.arrays import Ints
from clustersim.topology.model import Topology


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
