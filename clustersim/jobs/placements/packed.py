"""Next free nodes in order: a job touches as few leaves as it can."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def place(wanted: Sequence[int], free: Sequence[int], seed: int) -> list[list[int]]:
    """Return the nodes of each job: a run of the free ones, job after job."""
    return [list(free[a:b]) for a, b in pairwise([0, *accumulate(wanted)])]
