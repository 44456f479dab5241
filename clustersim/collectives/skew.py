"""How the rows of a mixture of experts fall on the GPUs that hold them: shares of dispatch, combine and all_to_all."""

from __future__ import annotations

import math

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
