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


_MADE = partial(tuple.__new__, Action)
"""Action._make without a Python call for each."""
Schedule = tuple[tuple[Action, ...], ...]
"""A row of actions for each pipeline rank."""


class ScheduleKind(Protocol):
    """Function that builds a schedule of any size: the `build` of each file in `kinds/`, or any function with this signature."""

    def __call__(self, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
        """Return a row of actions for each of `stages` pipeline ranks.

        Rank r holds the global stages r, r + stages, …, `chunks` of them (1, or `vpp`). Rows may be any iterables of (stage,
        letter, microbatch). Raises InputError for unsupported sizes.
        """
        ...


def run(stage: int, letter: Letter, microbatches: Iterable[int]) -> list[Action]:
    """Return the actions of one letter on one stage, one per microbatch.

    >>> [str(action) for action in run(2, "F", range(3))]
    ['2F0', '2F1', '2F2']
    """
    return list(map(_MADE, zip(repeat(stage), repeat(letter), microbatches)))


def actions(stages: Iterable[int], letter: Letter, microbatches: Iterable[int]) -> list[Action]:
    """Return the actions of one letter for pairs of a stage and a microbatch."""
    return list(map(_MADE, zip(stages, repeat(letter), microbatches)))


def one_chunk(schedule: str, chunks: int) -> None:
    """Raise InputError unless `chunks` is 1, for a schedule that has one stage per rank."""
    if chunks != 1:
        raise InputError(f"{schedule} has one model chunk a rank, not {chunks}; set vpp to 1 or use interleaved")
