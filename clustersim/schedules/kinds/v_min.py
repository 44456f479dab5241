"""V-Min: split backward passes on stages that go down the ranks and come back, in the least memory (arXiv 2405.15362)."""

from __future__ import annotations

from clustersim.schedules import folded
from clustersim.schedules.action import Schedule
from clustersim.schedules.folded import repeated, two_chunks

pipeline = folded.pipeline


def build(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Return the schedule of `stages` ranks with two stages each.

    Passes go down and come back in one unit a rank (figure 3 of Qi et al. 2024): a rank keeps about 2p/3 microbatches of a stage,
    a third of 1F1B's memory, and waits in each where forward, input gradients and weight gradients take unlike times. Raises
    InputError for other chunks than 2.
    """
    two_chunks("v_min", chunks)
    p, gap = stages, 0 if stages % 3 else 2  # without it two passes of three ranks fall together
    first = [(r, 2 * p - r - 1, 2 * p + gap + r, 4 * p + gap - r - 1) for r in range(p)]
    return repeated(first, microbatches)


def settled(stages: int, chunks: int = 2) -> int:
    """Return as many microbatches as fill the memory of every rank as much as any number more do."""
    return stages + 2


def period(stages: int, chunks: int = 2) -> int:
    """Return after how many microbatches every rank repeats itself, however many there are."""
    return 1
