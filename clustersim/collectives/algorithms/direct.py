"""Direct exchange: every rank sends every other rank its part, one after the other (Thakur et al. 2005, pairwise exchange).

Time is (n-1)/n·S/B + (n-1)·a for all_to_all, all_gather and reduce_scatter. all_reduce is a reduce_scatter and an all_gather, so
twice that. With a share p of all rows on one rank, the rows that it receives in a dispatch and sends in a combine take
(n-1)·p·S/B.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import SKEWED, AllPairs, Group, Step, halves

OPS = frozenset({*SKEWED, "all_gather", "reduce_scatter", "all_reduce"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op`: in round k rank r sends to rank r + k + 1."""
    n = group.n
    messages = ((round_, rank, (rank + round_ + 1) % n) for round_ in range(n - 1) for rank in range(n))
    if op in SKEWED:
        return (Step(round_, rank, other, rank * n + other, reduce=False) for round_, rank, other in messages)
    return halves(op, (Step(round_, rank, other, rank, reduce=False) for round_, rank, other in messages))


def phases(op: str, group: Group) -> tuple[AllPairs, ...]:
    """Return one phase in which all ranks send to all others; two such phases for all_reduce."""
    ones = np.ones(group.n)
    shares = np.array(group.shares) if group.shares else ones / group.n
    every = AllPairs(group.n - 1, *((shares, ones) if op == "combine" and group.shares else (ones, shares)))
    return (every, every) if op == "all_reduce" else (every,)
