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
    """A changed job that has been placed on a cluster."""

    changes: Mapping[str, object]
    """Changed values by dotted key, such as {`parallelism.tp`: 4}."""
    job: Job
    """Job with the changes, checked and placed."""
    gpus: int
    """Number of GPUs that the job uses."""

    @property
    def options(self) -> str:
        """Options of `clustersim run` that make the changes, such as `--tp 4 --dp auto`."""
        return " ".join(change_words(self.changes))


def nearby(job: Job, gpus: int, gpus_per_node: int) -> list[Nearby]:
    """Return legal changes of a placed job that use more GPUs of a cluster, best first; [] if there are none.

    Candidates change dp, the batch, tp by a factor of 2, and pp by up to a factor of 2. They are sorted by most GPUs, then by the
    smallest factors on tp, pp and the batch. Memory is not checked.

    gpus: number of GPUs of the cluster.
    """
    placed = (_placed(job, changes, gpus, gpus_per_node) for changes in _changes(job, gpus))
    larger = [candidate for candidate in placed if candidate and candidate.gpus > job.mesh.size]
    return sorted(larger, key=lambda candidate: (-candidate.gpus, _change_size(job, candidate.job)))


def _changes(job: Job, gpus: int) -> Iterator[dict[str, object]]:
    """Yield candidate changes {dotted key: value} of dp, tp, pp and the batch, for a cluster of `gpus` GPUs; some are illegal."""
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


def _batches(job: Job, replicas: int, tp: int, pp: int) -> Iterator[int]:
    """Yield at most two batches near the job's that the replicas share evenly, with `tp` and `pp` in place of the job's degrees.

    replicas: largest number of replicas; it is rounded down to a legal dp. Yield nothing if that is 0.
    """
    p, batch = job.parallelism, job.training.global_batch
    unit_dp = least_dp(p.model_copy(update={"tp": tp}), p.ep)
    unit = replicas // unit_dp * unit_dp * job.training.micro_batch * (pp if p.vpp > 1 else 1)
    if unit:
        yield from adjacent_multiples(batch, unit) - {batch}


def adjacent_multiples(batch: int, unit: int) -> set[int]:
    """Return the multiples of `unit` next to `batch`, below and above; only `batch` itself if it is one. None is below `unit`."""
    return {max(batch // unit, 1) * unit, -(-batch // unit) * unit}


def _placed(job: Job, changes: dict[str, object], gpus: int, gpus_per_node: int) -> Nearby | None:
    """Return the job with `changes`, checked and placed with dp auto unless they set it; None if it is illegal."""
    try:
        placed = check(job.changed({"parallelism.dp": "auto"} | changes)).place(gpus, gpus_per_node)
    except ConfigError:
        return None
    return Nearby(changes, placed, placed.mesh.size)


def _change_size(job: Job, changed: Job) -> float:
    """Return the size of the change from one job to another: the sum of |ln(new / old)| over tp, pp and the batch."""
    p, q = job.parallelism, changed.parallelism
    factors = (q.tp / p.tp, q.pp / p.pp, changed.training.global_batch / job.training.global_batch)
    return math.fsum(abs(log(factor)) for factor in factors)
