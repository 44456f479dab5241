"""The array types of the whole package, and what numpy lacks or does slowly: compressed rows, distinct values, remainders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.signedinteger]
"""Numbers of things: GPUs, links, endpoints, rows; 64 bits, but for columns that `narrow` made."""
Floats = NDArray[np.float64]
"""Quantities in SI units: seconds, bytes, bytes/s; or parts of a whole."""
Mask = NDArray[np.bool_]
"""True where something holds."""
Number = TypeVar("Number", np.int64, np.uint64)


def entries(start: Ints, rows: Ints) -> Ints:
    """Return the positions of all entries of `rows`, one row after the other; row i is start[i] to start[i + 1]."""
    lengths = start[rows + 1] - start[rows]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    found: Ints = np.arange(total) + np.repeat(start[rows] - ends + lengths, lengths)
    return found


def offsets(counts: NDArray[np.integer | np.bool_]) -> Ints:
    """Return where rows of so many entries each begin that stand one after the other, and the number of all entries."""
    found: Ints = np.append(0, np.cumsum(counts))
    return found


def chained(starts: Iterable[Ints]) -> Ints:
    """Return where the rows of tables begin that stand one after the other; starts: where those of each do, as `offsets`."""
    return offsets(np.concatenate([np.diff(start) for start in starts]))


def narrow(column: Ints) -> Ints:
    """Return a column of integers in 32 bits, half the memory; a product of two such columns needs 64 bits."""
    return column.astype(np.int32)


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """Return the different values, ascending; by sorting, which is ten times as fast as numpy.unique's hash table."""
    found = np.sort(values)
    new = np.ones(len(found), bool)
    np.not_equal(found[1:], found[:-1], out=new[1:])
    return found[new]


def distinct_rows(rows: Ints) -> tuple[Ints, Ints]:
    """Return the first of each kind of rows, in ascending order of these, and which kind each row is, as numpy.unique does.

    Sums that stand for rows are sorted in their place, and the rows compared: that takes a tenth of the time.
    """
    weights = np.cumprod(np.full(rows.shape[1], 0x9E3779B97F4A7C15, np.uint64))
    _, first, of = np.unique(rows.view(np.uint64) @ weights, return_index=True, return_inverse=True)
    if not np.array_equal(rows, rows[first[of]]):  # two kinds have one sum
        _, first, of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return first, of.reshape(-1)
    order = np.lexsort(rows[first].T[::-1])
    return first[order], np.argsort(order)[of]


def connected(count: int, one: Ints, other: Ints) -> Ints:
    """Return for each of so many vertices the least one that edges, from `one` to `other`, connect it with."""
    least = np.arange(count)
    while True:
        known = least.copy()
        np.minimum.at(least, one, known[other])
        np.minimum.at(least, other, known[one])
        if (least == known).all():
            return least
        least = least[least]  # a long chain is halved each time


def divide(x: Ints, by: int) -> tuple[Ints, Ints]:
    """Return (x // by, x % by) for x >= 0; numpy divides by a constant fast, but has no fast remainder."""
    if by & (by - 1) == 0:
        return x >> (by.bit_length() - 1), x & (by - 1)
    quotient = x // by
    return quotient, x - quotient * by


def counted(used: Mask) -> Ints:
    """Return how many entries of each row are true: in whole numbers, and faster than a sum of rows so short."""
    found: Ints = np.einsum("ij->i", used.view(np.uint8), dtype=np.int64)
    return found


def summed(place: Ints, weight: Floats, count: int) -> Floats:
    """Return the sums of weights by place (count,): numpy.bincount, which gives whole numbers where there is nothing."""
    return np.bincount(place, weight, count).astype(float, copy=False)


def ones(count: int) -> Floats:
    """Return so many ones that take no memory; they must not be written to."""
    return np.broadcast_to(1.0, count)
