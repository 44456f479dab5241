"""ZB-H2: ZB-H1 with twice as many forward passes before the first backward pass, and no bubble (Qi et al. 2023, figure 3
bottom)."""

from __future__ import annotations

import numpy as np

from clustersim.schedules.action import Schedule, one_chunk
from clustersim.schedules.order import split_rows


def build(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of `stages` ranks with one stage each.

    The bubble of a rank is (p-1)(f+i-2w) seconds, with f, i and w the times of forward, input gradients and weight gradients,
    and it keeps 2p-1 microbatches (Qi et al. 2023, table 1). Ranks end as far apart as they begin, so that a norm of all
    gradients makes each wait for the last (section 4 defers it). Raises InputError unless `chunks` is 1.
    """
    one_chunk("zb_h2", chunks)
    rank = np.arange(stages)
    return split_rows(microbatches, 2 * rank[::-1], 2 * rank)


def peak_microbatches(stages: int, chunks: int = 1) -> int:
    """Return a number of microbatches at which every rank reaches its peak memory; more do not raise it."""
    return 2 * stages
