"""1F1B: after a warm-up each rank alternates forward and backward passes (Narayanan et al. 2021, figure 4 top)."""

from __future__ import annotations

from itertools import chain

from clustersim.schedules.action import Action, Schedule, one_chunk, run


def build(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of `stages` ranks with one stage each.

    Bubble: (p-1)/(m+p-1) of the step, as for GPipe, but rank r keeps only min(p-r, m) microbatches (PipeDream-Flush, Narayanan
    et al. 2021, section 2.2.1). Raises InputError unless `chunks` is 1.
    """
    one_chunk("1f1b", chunks)
    return tuple([_row(rank, min(stages - 1 - rank, microbatches), microbatches) for rank in range(stages)])


def peak_microbatches(stages: int, chunks: int = 1) -> int:
    """Return a number of microbatches at which every rank reaches its peak memory; more do not raise it."""
    return stages + 1


def _row(stage: int, warmup: int, microbatches: int) -> tuple[Action, ...]:
    forward, backward = run(stage, "F", range(microbatches)), run(stage, "B", range(microbatches))
    steady = chain.from_iterable(zip(forward[warmup:], backward, strict=False))
    return (*forward[:warmup], *steady, *backward[microbatches - warmup :])
