"""Direct exchange: every rank sends every other one its part, pair after pair (Thakur et al. 2005, pairwise exchange).

(n-1)/n·S/B + (n-1)·a for all_to_all, all_gather and reduce_scatter; all_reduce is the last two, twice that. With a share p
of all rows on one rank, what it receives in a dispatch and sends in a combine takes (n-1)·p·S/B.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import Floats, Group, Ints, Phase, Step, uniform
from clustersim.collectives.skew import OPS as SKEWED
from clustersim.errors import InputError

OPS = frozenset({*SKEWED, "all_gather", "reduce_scatter", "all_reduce"})
MOST = 2048
"""Ranks of a group at most: it has n² pairs, four million of them at this size."""


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


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase over all n(n-1) pairs, two for all_reduce. Raises InputError above `MOST` ranks."""
    n = group.n
    if n > MOST:
        raise InputError(f"direct exchange over {n} ranks has too many pairs; use ring, or groups of {MOST} at most")
    shift, rank = np.divmod(np.arange(n * (n - 1), dtype=np.int64), n)
    phase = uniform(n - 1, rank, (rank + shift + 1) % n, 1 / n)
    if group.shares:
        phase = _skewed(phase, np.array(group.shares), phase.source if op == "combine" else phase.destination)
    return (phase, phase) if op == "all_reduce" else (phase,)


def _skewed(phase: Phase, shares: Floats, owner: Ints) -> Phase:
    """Return the phase with the share of the position that owns the rows on every pair; those without rows are left out."""
    fraction = shares[owner]
    kept = fraction > 0
    return Phase(phase.rounds, phase.source[kept], phase.destination[kept], fraction[kept])
