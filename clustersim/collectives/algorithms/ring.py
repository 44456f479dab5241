"""Ring: every rank sends to the next rank only (Patarasuk & Yuan 2009). It is optimal in bandwidth and the default.

Time on an idle ring of n links with B bytes/s and latency a: all_reduce 2(n-1)/n·S/B + 2(n-1)·a; all_gather and reduce_scatter
half of it. broadcast and reduce run along a chain of n-1 links, in chunks small enough to fill it: S/B + (n-1)·a.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import Group, Phase, Step, halves, uniform

OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op`: n chunks around the ring, or one chunk along the chain."""
    n = group.n
    if op in ("broadcast", "reduce"):
        yield from halves(op, (Step(r, r, r + 1, 0, reduce=False) for r in range(n - 1)))
    else:
        if op != "all_gather":
            yield from _around(n, 0, first=1, reduce=True)
        if op != "reduce_scatter":
            yield from _around(n, 0 if op == "all_gather" else n - 1, first=0, reduce=False)


def _around(n: int, start: int, first: int, reduce: bool) -> Iterator[Step]:
    """Yield the steps of one trip around a ring of n ranks from round `start` on; rank r first sends chunk r - `first`."""
    for round_ in range(n - 1):
        for rank in range(n):
            yield Step(start + round_, rank, (rank + 1) % n, (rank - first - round_) % n, reduce)


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase: n links that carry (n-1)/n·S per trip around the ring, or the n-1 links of a chain that carry S."""
    n = group.n
    ranks = np.arange(n, dtype=np.int64)
    if op == "broadcast":
        return (uniform(n - 1, ranks[:-1], ranks[1:], 1.0),)
    if op == "reduce":
        return (uniform(n - 1, ranks[1:], ranks[:-1], 1.0),)
    times = 2 if op == "all_reduce" else 1
    return (uniform(times * (n - 1), ranks, np.roll(ranks, -1), times * (n - 1) / n),)
