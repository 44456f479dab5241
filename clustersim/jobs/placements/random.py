"""Any free nodes, as a cluster gives them whose jobs come and go; `random:7` is another draw than `random`."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random


def place(wanted: Sequence[int], free: Sequence[int], seed: int) -> list[list[int]]:
    """Return the nodes of each job: a sample without replacement, the same for the same seed."""
    drawn = iter(Random(seed).sample(list(free), sum(wanted)))
    return [[next(drawn) for _ in range(count)] for count in wanted]
