"""The lower bounds of one placed job, as a search has them of many."""

from __future__ import annotations

import numpy as np

from clustersim.optimization.estimate import CandidateBounds, CandidateRows, Estimator
from clustersim.optimization.space import shape_of


def bounds(simulator, job, computed=False):
    """Return the seconds that no step of a placed job is shorter than, and the bytes that it needs at least."""
    split, estimator = job.parallelism, Estimator(simulator.preparation)
    numbers = (np.array([value]) for value in (job.microbatches, job.dp, split.zero))
    overlap = split.overlap
    flags = (np.array([value]) for value in (overlap.grad_reduce, overlap.param_gather, overlap.p2p))
    rows = CandidateRows([shape_of(split.schedule, split.pp, split.vpp)], [split.schedule], *numbers, *flags)
    tile = estimator.tile(job)
    found = estimator.bounds(tile, rows, computed)
    seconds = float(found.seconds[0]) if computed else float(estimator.refined(tile, rows)[0])
    return CandidateBounds(seconds, float(found.memory[0]))
