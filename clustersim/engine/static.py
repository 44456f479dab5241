"""The longest path through a graph, by arrays.

Where no task slows another, the times of a step are sums along its longest path: a node ends when the later of its two
predecessors has ended and its own idle time has passed. Whether nothing was slowed is known afterwards (`player.py`): with the
times found, the peaks of all that moves bytes over a link at one moment never exceed its capacity, so that no rate is cut.
These are the times that SimPy finds, float for float.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compiled import Loop, paid_off
from clustersim.engine.graph import StepGraph

WIDE = 16
"""Nodes of a level, in the mean, from which on arrays are faster than one node after the other."""


def longest(graph: StepGraph, seconds: Floats) -> Floats:
    """Return when each node ends, in seconds from the begin of the step; seconds: of each node."""
    a, b, _ = graph.arrays
    ends = np.zeros(len(seconds))
    if paid_off() or len(seconds) < WIDE * len(graph.levels):
        _node_by_node(a[1:], b[1:], seconds[1:], ends)
        return ends
    for begin, end in pairwise(graph.levels[1:]):
        level = ends[begin:end]
        np.maximum(ends[a[begin:end]], ends[b[begin:end]], out=level)
        level += seconds[begin:end]
    return ends


@Loop
def _node_by_node(a: Ints, b: Ints, seconds: Floats, ends: Floats) -> None:
    first = len(ends) - len(a)
    for row in range(len(a)):
        one, other = ends[a[row]], ends[b[row]]
        ends[first + row] = (one if one > other else other) + seconds[row]
