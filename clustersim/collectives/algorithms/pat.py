"""PAT: one binomial tree for each rank's part, all at once, the longest hops first (Jeaugey, arXiv 2506.20252).

The part of rank r goes to rank r + 2^k for the largest k, then both copies go on with 2^(k-1). After ceil(log2 n) rounds every
rank has sent (n-1)/n·S, and long hops have carried few bytes. reduce_scatter runs the same backwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import Group, Phase, Step, halves, merged

OPS = frozenset({"all_gather", "reduce_scatter"})


def _distances(n: int) -> list[int]:
    """Return the distance in ranks over which each round sends, the largest first: the powers of two below `n`."""
    return [1 << k for k in reversed(range((n - 1).bit_length()))]


def _offsets(n: int, distance: int) -> range:
    """Return the parts that a rank sends on over `distance` ranks, each as the distance of the rank from the part's owner."""
    return range(0, n - distance, 2 * distance)


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op` on n chunks; chunk r belongs to rank r."""
    n = group.n
    hops = ((round_, hop, part) for round_, hop in enumerate(_distances(n)) for part in _offsets(n, hop))
    sends = ((round_, rank, (rank + hop) % n, (rank - part) % n) for round_, hop, part in hops for rank in range(n))
    return halves(op, (Step(*send, reduce=False) for send in sends))


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase with n pairs for each distance: forward in an all_gather, backward in a reduce_scatter."""
    n, rank = group.n, np.arange(group.n, dtype=np.int64)
    parts = []
    for distance in _distances(n):
        receiver = (rank + distance) % n
        ends = (rank, receiver) if op == "all_gather" else (receiver, rank)
        parts.append((*ends, len(_offsets(n, distance)) / n))
    return (merged(len(parts), *parts),)
