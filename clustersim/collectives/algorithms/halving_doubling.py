"""Recursive halving and doubling (Rabenseifner 2004; Thakur, Rabenseifner & Gropp 2005), for n a power of two.

In round k each rank swaps S/2^(k+1) bytes with the rank whose number differs in bit k. The nearest partner comes first, so that
the longest messages travel the shortest way. all_reduce takes 2·log2 n·a + 2(n-1)/n·S/B; all_gather and reduce_scatter take half
of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import Group, Phase, Step, halves, uniform
from clustersim.errors import InputError

OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op` on n chunks; chunk c starts (all_gather) or ends (reduce_scatter) on rank c."""
    return halves(op, _doubling(group.n))


def _doubling(n: int) -> Iterator[Step]:
    """Yield the steps of an all_gather: in each round, ranks that differ in one bit, the highest first, swap all their chunks."""
    for round_, bit in enumerate(reversed(range(_bits(n)))):
        for rank in range(n):
            for chunk in range(rank % (2 << bit), n, 2 << bit):  # chunks whose low bits are those of the rank
                yield Step(round_, rank, rank ^ 1 << bit, chunk, reduce=False)


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return a phase of n pairs for each round. Raises InputError if n is not a power of two."""
    bits = _bits(group.n)
    rank = np.arange(group.n, dtype=np.int64)
    halving = tuple(uniform(1, rank, rank ^ 1 << k, 0.5 ** (k + 1)) for k in range(bits))
    return {"reduce_scatter": halving, "all_gather": halving[::-1], "all_reduce": halving + halving[::-1]}[op]


def _bits(n: int) -> int:
    """Return the binary logarithm of the number of ranks. Raises InputError unless it is a power of two."""
    bits = n.bit_length() - 1
    if n != 1 << bits:
        raise InputError(f"halving_doubling needs a power of two of ranks, not {n}; use {1 << bits}, or ring or tree")
    return bits
