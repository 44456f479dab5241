"""ZB-H1: the backward pass is split, and the gradients of the weights fill the bubbles (Qi et al. 2023, figure 3 top).

With several model chunks it is PyTorch's ScheduleInterleavedZeroBubble, whose order is followed here.
"""

from __future__ import annotations

from clustersim.schedules.action import Schedule
from clustersim.schedules.order import rounds_of, split_row


def build(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of `stages` ranks with `chunks` stages each.

    With one chunk the bubble is (p-1)(f+i-w) seconds for times f, i and w of forward, input gradients and weight
    gradients, and no rank keeps more than p microbatches, as 1F1B (Qi et al. 2023, table 1). Raises InputError when
    there are several chunks and `microbatches` is no multiple of `stages`.
    """
    if chunks > 1:
        rounds_of("zero_bubble", stages, microbatches)
    first = (chunks - 1) * stages
    return tuple(
        split_row(rank, stages, microbatches, chunks, first + stages - 1 - rank, held=rank) for rank in range(stages)
    )


def settled(stages: int, chunks: int = 1) -> int:
    """Return as many microbatches as fill the memory of every rank as much as any number more do."""
    return 3 * stages if chunks > 1 else stages + 1


def period(stages: int, chunks: int = 1) -> int:
    """Return after how many microbatches every rank repeats itself, however many there are."""
    return stages if chunks > 1 else 1


def repeating(stages: int, chunks: int = 1) -> int:
    """Return as many microbatches as run two periods in the middle: weight gradients are put off for many."""
    return 5 * stages if chunks > 1 else 2 * stages + 1
