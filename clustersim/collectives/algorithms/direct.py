"""Direct exchange: every rank sends every other rank its part, one after the other (Thakur et al. 2005, pairwise exchange).

Time is (n-1)/n·S/B + (n-1)·a for all_to_all, all_gather and reduce_scatter. all_reduce is a reduce_scatter and an all_gather, so
twice that. With a share p of all rows on one rank, the rows that it receives in a dispatch and sends in a combine take
(n-1)·p·S/B.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import SKEWED, AllPairs, Group, Step

OPS = frozenset({*SKEWED, "all_gather", "reduce_scatter", "all_reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op`: in round k rank r sends to rank r + k + 1."""
    n = group.n
    for round_ in range(n - 1):
        for rank in range(n):
            other = (rank + round_ + 1) % n
            if op in SKEWED:
                yield Step(round_, rank, other, rank * n + other, reduce=False)
            if op in ("reduce_scatter", "all_reduce"):
                yield Step(round_, rank, other, other, reduce=True)
            if op in ("all_gather", "all_reduce"):
                start = n - 1 if op == "all_reduce" else 0
                yield Step(start + round_, rank, other, rank, reduce=False)


def phases(op: str, group: Group) -> tuple[AllPairs, ...]:
    """Return one phase in which all ranks send to all others; two such phases for all_reduce."""
    ones = np.ones(group.n)
    shares = np.array(group.shares) if group.shares else ones / group.n
    every = AllPairs(group.n - 1, *((shares, ones) if op == "combine" and group.shares else (ones, shares)))
    return (every, every) if op == "all_reduce" else (every,)
