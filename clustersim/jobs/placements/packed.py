"""Assigns the next free nodes in order, so that a job uses as few leaves as possible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def place(wanted: Sequence[int], free: Sequence[int], seed: int) -> list[list[int]]:
    """Return the nodes of each job: consecutive free nodes, job after job."""
    return [list(free[a:b]) for a, b in pairwise([0, *accumulate(wanted)])]
