"""The lower bounds of one placed job, as a search has them of many."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.optimization.estimate import CandidateRows, Estimator
from clustersim.optimization.layer_times import EXPERTS, TENSOR
from clustersim.optimization.space import shape_of


class Bounds(NamedTuple):
    seconds: float
    memory: float
    any_order: tuple[float, float]
    """Seconds and bytes that any schedule, chunks, traffic and zero need."""


def bounds(simulator, job, computed=False):
    """Return the seconds that no step of a placed job is shorter than, and the bytes that it needs at least."""
    split, estimator = job.parallelism, Estimator(simulator.preparation)
    numbers = (np.array([value]) for value in (job.microbatches, job.dp, split.zero))
    overlap = split.overlap
    flags = (np.array([value]) for value in (overlap.grad_reduce, overlap.param_gather, overlap.p2p))
    rows = CandidateRows([shape_of(split.schedule, split.pp, split.vpp)], [split.schedule], *numbers, *flags)
    tile = estimator.tile(job)
    seconds = estimator.seconds(tile, rows, (*TENSOR, *EXPERTS) if computed else (), in_order=not computed)
    plain = rows._replace(shape=[shape_of("1f1b", split.pp, 1)], schedule=["1f1b"])
    free = estimator.tile(job.changed({"parallelism.layout": None}))
    hidden = EXPERTS if overlap.ep != "none" else ()
    any_order = np.maximum(
        *(estimator.any_order(free, order, hidden) for order in (plain, rows))
    )  # a plan may have either
    return Bounds(
        float(seconds[0]), float(estimator.memory(tile, rows)[0]), (float(any_order[0][0]), float(any_order[1][0]))
    )
