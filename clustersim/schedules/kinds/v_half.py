"""V-Half: split backward passes on stages that go down the ranks and back, with half of 1F1B's memory (arXiv 2405.15362)."""

from __future__ import annotations

from clustersim.schedules import folded
from clustersim.schedules.action import Schedule
from clustersim.schedules.folded import repeated, two_chunks

pipeline = folded.pipeline


def build(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Return the schedule of `stages` ranks with two stages each.

    A forward pass goes down in two units of time per rank and comes back in one, and so do gradients (Qi et al. 2024, figure 3).
    A rank keeps about p microbatches of a stage, half of 1F1B's memory. Raises InputError unless `chunks` is 2.
    """
    two_chunks("v_half", chunks)
    p, gap = stages, 0 if stages % 2 else 3  # for even p, two passes would otherwise coincide on a rank
    first = [(2 * r, 3 * p - r - 2, 3 * p + gap + 2 * r - 1, 6 * p + gap - r - 2) for r in range(p)]
    return repeated(first, microbatches)


def peak_microbatches(stages: int, chunks: int = 2) -> int:
    """Return a number of microbatches at which every rank reaches its peak memory; more do not raise it."""
    return stages + 2
