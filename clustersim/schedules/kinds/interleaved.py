"""Interleaved 1F1B: each rank holds several model chunks (Narayanan et al. 2021, figure 4 bottom).

The order is that of Megatron-LM (megatron/core/pipeline_parallel/schedules.py) and PyTorch's ScheduleInterleaved1F1B.
"""

from __future__ import annotations

from clustersim.errors import InputError
from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.order import backwards, forwards, rounds_of


def build(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Return the schedule of `stages` ranks with `chunks` stages each; rank r has stages r, r+p, r+2p, ….

    Bubble: (p-1)(f+b)/v seconds a step, f and b being the times of all v chunks of a rank together (Narayanan et al.
    2021, section 2.2.2). Raises InputError for one chunk, or when `microbatches` is no multiple of `stages`.
    """
    if chunks < 2:
        raise InputError("interleaved needs 2 or more model chunks a rank; set vpp to 2 or more, or use 1f1b")
    rounds_of("interleaved", stages, microbatches)
    return tuple(_row(rank, stages, microbatches, chunks) for rank in range(stages))


def settled(stages: int, chunks: int = 2) -> int:
    """Return as many microbatches as fill the memory of every rank as much as any number more do."""
    return 3 * stages


def period(stages: int, chunks: int = 2) -> int:
    """Return after how many microbatches every rank repeats itself, however many there are."""
    return stages


def _row(rank: int, stages: int, microbatches: int, chunks: int) -> tuple[Action, ...]:
    total = microbatches * chunks
    warmup = min(total, 2 * (stages - 1 - rank) + (chunks - 1) * stages)
    forward = forwards(rank, stages, microbatches, chunks)
    backward = backwards(rank, stages, microbatches, chunks, "B")
    steady = [action for pair in zip(forward[warmup:], backward, strict=False) for action in pair]
    return (*forward[:warmup], *steady, *backward[total - warmup :])
