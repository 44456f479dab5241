"""The all-reduce behind NeuSight's published multi-node forecasts, only to reproduce them.

At each network level with fan-out f every rank passes whole arrays around a ring, uncut, f-1 times: T = sum over levels of
(f-1)·S/B (Lee, Phanishayee & Mahajan 2025, NeuSight, multi-node forecasts). A ring that cuts the array into f chunks takes
2(f-1)/f·S/B, so this one is f/2 times slower. No library does it this way.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import Group, Phase, Step, neighbours, uniform

OPS = frozenset({"all_reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op` on one chunk: a rank sends its own array, then passes on each array that arrives."""
    start = 0
    for level, fan in enumerate(group.levels):
        after = neighbours(group, level).tolist()
        for round_ in range(fan - 1):
            for rank in range(group.n):
                yield Step(start + round_, rank, after[rank], 0, reduce=True, relay=round_ > 0)
        start += fan - 1


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase per level, in which every rank sends (f-1)·S bytes to its neighbour in the ring of that level."""
    rank = np.arange(group.n, dtype=np.int64)
    levels = [(level, fan) for level, fan in enumerate(group.levels) if fan > 1]
    return tuple(uniform(fan - 1, rank, neighbours(group, level), fan - 1) for level, fan in levels)
