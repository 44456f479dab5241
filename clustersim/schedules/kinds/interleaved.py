"""Interleaved 1F1B: each rank holds several model chunks (Narayanan et al. 2021, figure 4 bottom).

The order is that of Megatron-LM (megatron/core/pipeline_parallel/schedules.py) and PyTorch's ScheduleInterleaved1F1B.
`interleaved/5` runs groups of five microbatches on one chunk before the next (microbatch_group_size_per_vp_stage). Without a
number, groups have as many microbatches as the pipeline has ranks.
"""

from __future__ import annotations

import numpy as np

from clustersim.errors import InputError
from clustersim.schedules.action import Schedule
from clustersim.schedules.order import in_rounds, one_forward_one_backward


def build(stages: int, microbatches: int, chunks: int = 2, group: int | None = None) -> Schedule:
    """Return the schedule of `stages` ranks with `chunks` stages each; rank r has stages r, r+p, r+2p, ….

    Bubble: (p-1)(f+b)/v seconds per step, with f and b the times of all v chunks of a rank together (Narayanan et al. 2021,
    section 2.2.2). Raises InputError for one chunk, or as `sizes`.
    """
    if chunks < 2:
        raise InputError("interleaved needs 2 or more model chunks per rank; set vpp to 2 or more, or use 1f1b")
    sizes(stages, microbatches, chunks, group)
    total, size = microbatches * chunks, group or stages
    warmup = np.minimum(2 * np.arange(stages)[::-1] + (chunks - 1) * size, total)
    return in_rounds(one_forward_one_backward(warmup, total), microbatches, chunks, size)


def sizes(stages: int, microbatches: int, chunks: int = 2, group: int | None = None) -> None:
    """Raise InputError unless Megatron-Core supports these microbatches in groups of `group`.

    A group has from `stages` to `microbatches` microbatches, and the last one none or at least `stages`
    (megatron/core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving).
    """
    size = group or stages
    last = microbatches % size
    if stages <= size <= microbatches and (last == 0 or last >= stages):
        return
    if group is None:
        close = max(round(microbatches / stages), 1) * stages
        why = f"{microbatches} microbatches are not a multiple of {stages} pipeline stages; use, say, {close}"
    elif not stages <= size <= microbatches:
        why = f"groups of {size} must be between {stages} pipeline stages and {microbatches} microbatches"
    else:
        why = (
            f"{microbatches} microbatches in groups of {size} leave {last}, and Megatron-Core's last group is empty or has at "
            f"least {stages}, the pipeline stages; use, say, {microbatches - last} microbatches"
        )
    raise InputError(f"interleaved: {why}")


def peak_microbatches(stages: int, chunks: int = 2, group: int | None = None) -> int:
    """Return a number of microbatches at which every rank reaches its peak memory; more do not raise it."""
    return 3 * (group or stages)
