"""How many rows of a mixture of experts each rank of an expert-parallel group receives.

Balanced, all receive as many. Else their shares follow Zipf's law, the first rank being the most popular.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from clustersim.errors import InputError


def shares_of(ep: int, imbalance: float) -> tuple[float, ...]:
    """Return the share of each ep rank, () when all are alike."""
    return zipf_shares(ep, imbalance) if imbalance > 1 else ()


@lru_cache(maxsize=64)
def zipf_shares(n: int, imbalance: float) -> tuple[float, ...]:
    """Return the share of all rows that goes to each of `n` positions, the first the most popular.

    Zipf's law: share j is proportional to (j + 1)^-s, with the s at which the largest share is `imbalance` times the mean.
    Raises InputError unless 1 <= imbalance <= n.
    """
    if not 1 <= imbalance <= n:
        raise InputError(
            f"an imbalance of {imbalance:g} is not possible over {n} GPUs; it is the rows of the busiest over the mean, "
            f"from 1 (all alike) to {n} (one gets all)"
        )
    if imbalance == n:
        return (1.0, *(0.0,) * (n - 1))
    weight = np.exp(-_exponent(n, imbalance) * np.log(np.arange(1, n + 1)))
    return tuple((weight / math.fsum(weight)).tolist())


def _exponent(n: int, imbalance: float) -> float:
    """Return s with n / sum(j^-s) = imbalance, by Newton's method on the logarithm of the sum.

    That is convex and falls with s, so steps from s = 0 never pass the root.
    """
    log = np.log(np.arange(1, n + 1))
    s = 0.0
    while True:
        weight = np.exp(-s * log)
        total = math.fsum(weight)
        step = math.log(total * imbalance / n) * total / float(weight @ log)
        if step <= 1e-15 * max(s, 1.0):
            return s
        s += step


def split(rows: int, shares: tuple[float, ...]) -> tuple[int, ...]:
    """Return `rows` cut by shares into whole numbers that add up to `rows`, each within one of its share."""
    edges = [0, *(math.floor(rows * part + 0.5) for part in accumulate(shares))]
    edges[-1] = rows
    return tuple(b - a for a, b in pairwise(edges))
