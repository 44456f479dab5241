"""DualPipeV: DualPipe cut in half, whose stages go down the ranks and come back (Qi et al. 2025, "cut-in-half").

Rank r of p holds stages r and 2p-1-r of one model. The order is that of deepseek-ai/DualPipe (dualpipe/dualpipev.py).
"""

from __future__ import annotations

from functools import partial

from clustersim.errors import InputError
from clustersim.schedules.action import Action, Letter, Schedule
from clustersim.schedules.dual import row
from clustersim.schedules.folded import two_chunks
from clustersim.schedules.pipeline import Pipeline


def build(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Return the schedule of `stages` ranks with two stages each.

    Bubble: (p-1)(f&b+b-3w) seconds for times f, b and w of a stage's forward, whole backward and weight gradients, f&b being that
    of a forward beside a backward pass. A rank keeps 2p + 1 microbatches of a stage. Raises InputError for other chunks than 2
    and fewer microbatches than 2 a rank.
    """
    sizes(stages, microbatches, chunks)
    return tuple(row(rank, stages, microbatches, partial(_action, stages, rank)) for rank in range(stages))


def sizes(stages: int, microbatches: int, chunks: int = 2) -> None:
    """Raise InputError for sizes that it cannot do."""
    two_chunks("dualpipev", chunks)
    if microbatches < 2 * stages:
        raise InputError(
            f"dualpipev needs 2 or more microbatches for each of {stages} pipeline ranks, not {microbatches}; use {2 * stages}"
        )


def pipeline(stages: int, chunks: int = 2) -> Pipeline:
    """Return the pipeline that it runs on."""
    return Pipeline(stages, chunks, folded=True, paired=True)


def settled(stages: int, chunks: int = 2) -> int:
    """Return as many microbatches as fill the memory of every rank as much as any number more do."""
    return 2 * stages + 1


def period(stages: int, chunks: int = 2) -> int:
    """Return after how many microbatches every rank repeats itself, however many there are.

    Two of each phase: where messages are long, neighbours wait for each other by turns.
    """
    return 2


def _action(stages: int, rank: int, phase: int, letter: Letter, number: int) -> Action:
    return Action(2 * stages - 1 - rank if phase else rank, letter, number)
