"""DualPipeV: half of DualPipe, whose stages go down the ranks and come back (Qi et al. 2025, "cut-in-half").

Rank r of p holds stages r and 2p-1-r of one model. The order is that of deepseek-ai/DualPipe (dualpipe/dualpipev.py).
"""

from __future__ import annotations

from functools import partial

from clustersim.errors import InputError
from clustersim.schedules.action import Action, Letter, Schedule
from clustersim.schedules.dual import rank_actions
from clustersim.schedules.folded import two_chunks
from clustersim.schedules.pipeline import Pipeline


def build(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Return the schedule of `stages` ranks with two stages each.

    Bubble: (p-1)(f&b+b-3w) seconds, with f, b and w the times of a stage's forward, full backward and weight gradients, and f&b
    that of a forward overlapped with a backward pass. A rank keeps 2p + 1 microbatches of a stage. Raises InputError unless
    `chunks` is 2 and there are at least 2 microbatches per rank.
    """
    sizes(stages, microbatches, chunks)
    return tuple(rank_actions(rank, stages, microbatches, partial(_action, stages, rank)) for rank in range(stages))


def sizes(stages: int, microbatches: int, chunks: int = 2) -> None:
    """Raise InputError unless `chunks` is 2 and there are at least 2·stages microbatches."""
    two_chunks("dualpipev", chunks)
    if microbatches < 2 * stages:
        raise InputError(
            f"dualpipev needs 2 or more microbatches for each of {stages} pipeline ranks, not {microbatches}; use {2 * stages}"
        )


def pipeline(stages: int, chunks: int = 2) -> Pipeline:
    """Return the layout of two stages per rank that go down the ranks and come back."""
    return Pipeline(stages, chunks, folded=True, paired=True)


def peak_microbatches(stages: int, chunks: int = 2) -> int:
    """Return a number of microbatches at which every rank reaches its peak memory; more do not raise it."""
    return 2 * stages + 1


def _action(stages: int, rank: int, phase: int, letter: Letter, number: int) -> Action:
    return Action(2 * stages - 1 - rank if phase else rank, letter, number)
