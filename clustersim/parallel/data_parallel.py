"""Parameters gathered into buckets that are reduced or gathered at once, as Megatron's overlap does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clustersim.parallel.job import Job


def copied(job: Job) -> list[tuple[str, bool]]:
    """Return the families over which parameters have copies, and whether it is those of experts that are spread over ranks."""
    found = [("dp", False), ("edp", True)] if job.parallelism.spread else [("dp", False)]
    return [(family, expert) for family, expert in found if job.copies(expert) > 1]


class Bucket(NamedTuple):
    """Parameters whose gradients are reduced together, or that are gathered together."""

    position: int
    """Where in a pass they are ready, or first read."""
    parameters: float
    """How many they are."""


def bucket(job: Job) -> float:
    """Return the parameters of a bucket; the default is Megatron's (megatron/core/distributed/distributed_data_parallel.py)."""
    return job.parallelism.bucket or max(40_000_000, 1_000_000 * job.copies(expert=False))


def last_ready(ready: Sequence[tuple[int, float]], size: float) -> list[Bucket]:
    """Gather (position, parameters) into buckets of at least `size`, each at its last position; the last takes the rest."""
    result: list[Bucket] = []
    filled = 0.0
    for position, parameters in ready:
        filled += parameters
        if filled >= size:
            result.append(Bucket(position, filled))
            filled = 0.0
    if filled or not result:
        result.append(Bucket(ready[-1][0] if ready else 0, filled))
    return result


def first_reads(used: Sequence[tuple[int, float]], size: float) -> list[Bucket]:
    """Gather (position, parameters) into buckets of at least `size`, each at its first position."""
    result: list[Bucket] = []
    for position, parameters in used:
        if result and result[-1].parameters < size:
            result[-1] = Bucket(result[-1].position, result[-1].parameters + parameters)
        else:
            result.append(Bucket(position, parameters))
    return result or [Bucket(0, 0.0)]
