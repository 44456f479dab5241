"""Actions of pipeline schedules in PyTorch's notation: `2F0` is the forward pass of microbatch 0 on stage 2.

Letters: F forward, B full backward, I gradients of inputs only, W gradients of weights only
(torch/distributed/pipelining/schedules.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import repeat
from typing import Literal, NamedTuple, Protocol

from clustersim.errors import InputError

Letter = Literal["F", "B", "I", "W"]


class Action(NamedTuple):
    """One pass of a pipeline schedule."""

    stage: int
    """Index of the global stage."""
    letter: Letter
    """Kind of pass: F, B, I or W."""
    microbatch: int
    """Index of the microbatch, from 0."""

    def __str__(self) -> str:
        return f"{self.stage}{self.letter}{self.microbatch}"


_new_action = partial(tuple.__new__, Action)
"""`Action._make` for one (stage, letter, microbatch), without the cost of a Python call."""
Schedule = tuple[tuple[Action, ...], ...]
"""Row of actions of each pipeline rank, in run order."""


class ScheduleKind(Protocol):
    """Function that builds a schedule of any size: the `build` of each file in `kinds/`, or any function with this signature."""

    def __call__(self, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
        """Return the row of actions, in run order, of each of `stages` pipeline ranks.

        Rank r holds the global stages r, r + stages, …, `chunks` of them (1, or `vpp`). Rows may be any iterables of (stage,
        letter, microbatch). Raises InputError for unsupported sizes.
        """
        ...


def run(stage: int, letter: Letter, microbatches: Iterable[int]) -> list[Action]:
    """Return the actions of one letter on one stage, one per microbatch, in the order of `microbatches`.

    >>> [str(action) for action in run(2, "F", range(3))]
    ['2F0', '2F1', '2F2']
    """
    return list(map(_new_action, zip(repeat(stage), repeat(letter), microbatches)))


def actions(stages: Iterable[int], letter: Letter, microbatches: Iterable[int]) -> list[Action]:
    """Return the action of one letter for each i: on the i-th stage, for the i-th microbatch."""
    return list(map(_new_action, zip(stages, repeat(letter), microbatches)))


def one_chunk(schedule: str, chunks: int) -> None:
    """Raise InputError unless `chunks` is 1. schedule: name for the message."""
    if chunks != 1:
        raise InputError(f"{schedule} has one model chunk per rank, not {chunks}; set vpp to 1 or use interleaved")
