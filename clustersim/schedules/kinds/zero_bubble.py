"""ZB-H1: backward passes are split, and weight gradients fill the bubbles (Qi et al. 2023, figure 3 top).

With several model chunks it is PyTorch's ScheduleInterleavedZeroBubble, with the same order.
"""

from __future__ import annotations

import numpy as np

from clustersim.errors import InputError
from clustersim.schedules.action import Schedule
from clustersim.schedules.order import split_rows


def build(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of `stages` ranks with `chunks` stages each.

    With one chunk the bubble is (p-1)(f+i-w) seconds, with f, i and w the times of forward, input gradients and weight
    gradients, and no rank keeps more than p microbatches, as in 1F1B (Qi et al. 2023, table 1). Raises InputError for several
    chunks if `microbatches` is not a multiple of `stages`.
    """
    sizes(stages, microbatches, chunks)
    rank = np.arange(stages)
    return split_rows(microbatches, (chunks - 1) * stages + rank[::-1], rank, chunks)


def sizes(stages: int, microbatches: int, chunks: int = 1) -> None:
    """Raise InputError for several chunks if `microbatches` is not a multiple of `stages`."""
    if chunks > 1 and microbatches % stages:
        close = max(round(microbatches / stages), 1) * stages
        why = f"{microbatches} microbatches are not a multiple of {stages} pipeline stages; use, say, {close}"
        raise InputError(f"zero_bubble: {why}")


def peak_microbatches(stages: int, chunks: int = 1) -> int:
    """Return a number of microbatches at which every rank reaches its peak memory; more do not raise it."""
    return 3 * stages if chunks > 1 else stages + 1
