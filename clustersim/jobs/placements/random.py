"""Assigns random free nodes, as on a cluster whose jobs come and go. `random:7` draws other nodes than `random`."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random


def place(wanted: Sequence[int], free: Sequence[int], seed: int) -> list[list[int]]:
    """Return the nodes of each job: a sample without replacement, equal for equal seeds."""
    drawn = iter(Random(seed).sample(list(free), sum(wanted)))
    return [[next(drawn) for _ in range(count)] for count in wanted]
