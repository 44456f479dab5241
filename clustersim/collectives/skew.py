"""How the rows of a mixture of experts fall on the GPUs that hold them: shares of dispatch, combine and all_to_all."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from clustersim.errors import InputError

OPS = ("all_to_all", "dispatch", "combine")
"""The operations that take shares: dispatch is all_to_all, combine its way back (the names are DeepEP's)."""


def checked(shares: tuple[float, ...], n: int) -> tuple[float, ...]:
    """Return the shares of `n` positions, () when all are alike. Raises InputError when they are no shares of a whole."""
    if not shares:
        return ()
    if len(shares) != n or not min(shares) >= 0 or not abs(math.fsum(shares) - 1) < 1e-9:
        raise InputError(
            f"the shares of a group are one number of 0 or more for each of its {n} ranks, with the sum 1; "
            f"these are {len(shares)} with the sum {math.fsum(shares):g}"
        )
    return shares if max(shares) > min(shares) else ()


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
