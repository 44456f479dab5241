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
    """Another way to place a job: values by dotted key, the job so placed, and how many GPUs it uses."""

    changes: Mapping[str, object]
    job: Job
    gpus: int

    @property
    def options(self) -> str:
        """The changes as options of `clustersim run`."""
        return " ".join(change_words(self.changes))


def nearby(job: Job, gpus: int, gpus_per_node: int) -> list[Nearby]:
    """Return legal ways that use more GPUs than `job` does as placed, best first; job: placed on some of `gpus`.

    Those that use the most come first, and among these those that change tp, pp and the batch by the smallest factors. Whether
    they fit into memory is not looked at.
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
    """Yield the batches around that of the job which `most` replicas, or as many as hold whole experts, share evenly."""
    p, batch = job.parallelism, job.training.global_batch
    least = least_dp(p.model_copy(update={"tp": tp}), p.ep)
    unit = most // least * least * job.training.micro_batch * (pp if p.vpp > 1 else 1)
    if unit:
        yield from around(batch, unit) - {batch}


def around(batch: int, unit: int) -> set[int]:
    """Return the multiples of `unit` next to a batch, below and above; the batch alone where it is one."""
    return {max(batch // unit, 1) * unit, -(-batch // unit) * unit}


def _placed(job: Job, changes: dict[str, object], gpus: int, gpus_per_node: int) -> Nearby | None:
    """Return the job with these values and dp auto, or None where that is illegal."""
    try:
        placed = check(job.changed({"parallelism.dp": "auto"} | changes)).place(gpus, gpus_per_node)
    except ConfigError:
        return None
    return Nearby(changes, placed, placed.mesh.size)


def _far(job: Job, one: Nearby) -> float:
    """Return how far another way is: the sum of by how many e-folds tp, pp and the batch change."""
    p, q = job.parallelism, one.job.parallelism
    factors = (q.tp / p.tp, q.pp / p.pp, one.job.training.global_batch / job.training.global_batch)
    return math.fsum(abs(log(factor)) for factor in factors)
