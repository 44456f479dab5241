"""DualPipe: microbatches enter at both ends, into two copies of the model (DeepSeek-V3, section 3.2.1 and figure 5).

Rank r holds stage r of one copy and stage p-1-r of the other. The order is that of deepseek-ai/DualPipe (dualpipe/dualpipe.py).
"""

from __future__ import annotations

from functools import partial

from clustersim.errors import InputError
from clustersim.schedules.action import Action, Letter, Schedule, one_chunk
from clustersim.schedules.dual import rank_actions
from clustersim.schedules.pipeline import Pipeline


def build(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of `stages` ranks with one stage of each of two copies; even microbatches enter at rank 0.

    Bubble: (p/2-1)(f&b+b-3w) seconds, with f, b and w the times of forward, full backward and weight gradients, and f&b that of
    a forward overlapped with a backward pass. A rank keeps p + 1 microbatches. Raises InputError unless the number of stages is
    even and there are at least two microbatches per rank, an even number.
    """
    sizes(stages, microbatches, chunks)
    return tuple(
        rank_actions(min(rank, stages - 1 - rank), stages // 2, microbatches // 2, partial(_action, stages, rank))
        for rank in range(stages)
    )


def sizes(stages: int, microbatches: int, chunks: int = 1) -> None:
    """Raise InputError unless `chunks` is 1, `stages` is even, and there is an even number of at least 2·stages microbatches."""
    one_chunk("dualpipe", chunks)
    if stages % 2:
        raise InputError(f"dualpipe needs an even number of pipeline stages, not {stages}; use {stages + 1}")
    if microbatches % 2 or microbatches < 2 * stages:
        least = max(microbatches + microbatches % 2, 2 * stages)
        raise InputError(
            f"dualpipe needs an even number of microbatches, 2 or more per stage, not {microbatches} on {stages}; use {least}"
        )


def pipeline(stages: int, chunks: int = 1) -> Pipeline:
    """Return the layout of two copies of the model, the second one reversed."""
    return Pipeline(stages, chunks, copies=2, folded=True, paired=True)


def peak_microbatches(stages: int, chunks: int = 1) -> int:
    """Return a number of microbatches at which every rank reaches its peak memory; more do not raise it."""
    return 2 * stages + 2


def _action(stages: int, rank: int, phase: int, letter: Letter, number: int) -> Action:
    """Return the action on microbatch `number` of a phase. Phase 0 is the copy whose microbatches enter at the nearer end."""
    copy = phase ^ (rank >= stages // 2)
    return Action(2 * stages - 1 - rank if copy else rank, letter, 2 * number + copy)
