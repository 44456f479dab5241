"""V-Min: split backward passes on stages that go down the ranks and back, with the least memory (arXiv 2405.15362)."""

from __future__ import annotations

from clustersim.schedules import folded
from clustersim.schedules.action import Schedule
from clustersim.schedules.folded import repeated, two_chunks

pipeline = folded.pipeline


def build(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Return the schedule of `stages` ranks with two stages each.

    Passes go down and come back in one unit of time per rank (Qi et al. 2024, figure 3). A rank keeps about 2p/3 microbatches of
    a stage, a third of 1F1B's memory. It waits in each microbatch if forward, input gradients and weight gradients take
    different times. Raises InputError unless `chunks` is 2.
    """
    two_chunks("v_min", chunks)
    p, gap = stages, 0 if stages % 3 else 2  # for p divisible by 3, two passes would otherwise coincide
    first = [(r, 2 * p - r - 1, 2 * p + gap + r, 4 * p + gap - r - 1) for r in range(p)]
    return repeated(first, microbatches)


def peak_microbatches(stages: int, chunks: int = 2) -> int:
    """Return a number of microbatches at which every rank reaches its peak memory; more do not raise it."""
    return stages + 2
