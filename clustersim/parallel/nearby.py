"""Batches and splits near those of a job that leave fewer GPUs of the cluster idle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from math import log
from typing import NamedTuple

from clustersim.errors import ConfigError
from clustersim.parallel.check import check
from clustersim.parallel.job import Job, least_dp
from clustersim.parallel.options import change_words


class Nearby(NamedTuple):
    """Another way to place a job: the changed values by dotted key, the changed job, and its number of GPUs."""

    changes: Mapping[str, object]
    job: Job
    gpus: int

    @property
    def options(self) -> str:
        """The changes as options of `clustersim run`."""
        return " ".join(change_words(self.changes))


def nearby(job: Job, gpus: int, gpus_per_node: int) -> list[Nearby]:
    """Return legal changes with which a job on some of `gpus` GPUs would use more of them, best first.

    Sorted by most GPUs, then by the smallest factors on tp, pp and the batch. Memory is not checked.
    """
    found = [
        one for changes in _changes(job, gpus, gpus_per_node) if (one := _placed(job, changes, gpus, gpus_per_node))
    ]
    more = [one for one in found if one.gpus > job.mesh.size]
    return sorted(more, key=lambda one: (-one.gpus, _far(job, one)))


def _changes(job: Job, gpus: int, gpus_per_node: int) -> Iterator[dict[str, object]]:
    p = job.parallelism
    yield {"parallelism.dp": "auto"}
    for tp in dict.fromkeys((p.tp, p.tp // 2 or 1, 2 * p.tp)):
        for pp in range(max(p.pp // 2, 1), 2 * p.pp + 1):
            split: dict[str, object] = {}
            if tp != p.tp:
                split["parallelism.tp"] = tp
            if pp != p.pp:
                split["parallelism.pp"] = pp
            if split:
                yield split
            yield from (
                {**split, "training.global_batch": batch} for batch in _batches(job, gpus // (tp * p.cp * pp), tp, pp)
            )


def _batches(job: Job, most: int, tp: int, pp: int) -> Iterator[int]:
    """Yield the batches near the job's that `most` replicas, or the next smaller possible number, share evenly."""
    p, batch = job.parallelism, job.training.global_batch
    least = least_dp(p.model_copy(update={"tp": tp}), p.ep)
    unit = most // least * least * job.training.micro_batch * (pp if p.vpp > 1 else 1)
    if unit:
        yield from around(batch, unit) - {batch}


def around(batch: int, unit: int) -> set[int]:
    """Return the multiples of `unit` next to a batch, below and above; only the batch itself if it is a multiple."""
    return {max(batch // unit, 1) * unit, -(-batch // unit) * unit}


def _placed(job: Job, changes: dict[str, object], gpus: int, gpus_per_node: int) -> Nearby | None:
    """Return the job with changed values and dp auto, or None if it is illegal."""
    try:
        placed = check(job.changed({"parallelism.dp": "auto"} | changes)).place(gpus, gpus_per_node)
    except ConfigError:
        return None
    return Nearby(changes, placed, placed.mesh.size)


def _far(job: Job, one: Nearby) -> float:
    """Return the size of a change: the sum of |ln(new / old)| over tp, pp and the batch."""
    p, q = job.parallelism, one.job.parallelism
    factors = (q.tp / p.tp, q.pp / p.pp, one.job.training.global_batch / job.training.global_batch)
    return math.fsum(abs(log(factor)) for factor in factors)
