"""1F1B: after a warm-up each rank alternates forward and backward passes (Narayanan et al. 2021, figure 4 top)."""

from __future__ import annotations

import numpy as np

from clustersim.schedules.action import Schedule, one_chunk
from clustersim.schedules.order import in_rounds, one_forward_one_backward


def build(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of `stages` ranks with one stage each.

    Bubble: (p-1)/(m+p-1) of the step, as for GPipe, but rank r keeps only min(p-r, m) microbatches (PipeDream-Flush, Narayanan
    et al. 2021, section 2.2.1). Raises InputError unless `chunks` is 1.
    """
    one_chunk("1f1b", chunks)
    warmup = np.minimum(np.arange(stages)[::-1], microbatches)
    return in_rounds(one_forward_one_backward(warmup, microbatches), microbatches)


def peak_microbatches(stages: int, chunks: int = 1) -> int:
    """Return a number of microbatches at which every rank reaches its peak memory; more do not raise it."""
    return stages + 1
