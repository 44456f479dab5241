"""Actions of pipeline schedules in PyTorch's notation: `2F0` is the forward pass of microbatch 0 on stage 2.

Letters: F forward, B full backward, I gradients of inputs only, W gradients of weights only
(torch/distributed/pipelining/schedules.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import index
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np

from clustersim.arrays import Ints
from clustersim.errors import InputError, SimulationError, shown

Letter = Literal["F", "B", "I", "W"]
LETTERS: tuple[Letter, ...] = get_args(Letter)
FORWARD, BACKWARD, INPUTS, WEIGHTS = range(4)
"""Indices of the letters in `LETTERS`."""


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


class ActionRow(Sequence[Action]):
    """Actions of one pipeline rank in run order, stored as columns of integers, so that long rows take no object per action.

    >>> row = ActionRow(np.array([[2, 2], [FORWARD, BACKWARD], [0, 0]]))
    >>> [str(action) for action in row], row.letter
    (['2F0', '2B0'], array([0, 1]))
    """

    __slots__ = ("letter", "microbatch", "stage")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, columns: Iterable[Ints]) -> None:
        """columns: stage, index of the letter in `LETTERS`, and microbatch of each action (3, actions)."""
        self.stage, self.letter, self.microbatch = columns

    @classmethod
    def of(cls, actions: Iterable[Action]) -> ActionRow:
        """Return the row of some actions, which may be a row already. Raises SimulationError for an unknown letter."""
        if isinstance(actions, ActionRow):
            return actions
        rows = [(index(stage), _number(letter), index(microbatch)) for stage, letter, microbatch in actions]
        columns = np.array(rows, np.int64).reshape(-1, 3).T
        return cls(columns if rows and np.abs(columns).max() > np.iinfo(np.int32).max else columns.astype(np.int32))

    @property
    def code(self) -> Ints:
        """Number of the stage and letter of each action: `len(LETTERS)` times the stage, plus the index of the letter."""
        found: Ints = self.stage * len(LETTERS) + self.letter
        return found

    def __len__(self) -> int:
        return len(self.stage)

    def __iter__(self) -> Iterator[Action]:
        letters = map(LETTERS.__getitem__, self.letter.tolist())
        return map(_new_action, zip(self.stage.tolist(), letters, self.microbatch.tolist(), strict=True))

    def __getitem__(self, place: Any) -> Any:
        """Return an action, or the actions of a slice as a tuple."""
        columns = self.stage[place], self.letter[place], self.microbatch[place]
        if isinstance(place, slice):
            return tuple(ActionRow(columns))
        return Action(int(columns[0]), LETTERS[columns[1]], int(columns[2]))

    def __repr__(self) -> str:
        return f"ActionRow({' '.join(map(str, self))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)


def _number(letter: str) -> int:
    """Return the index of a letter in `LETTERS`. Raises SimulationError for an unknown one."""
    if letter not in LETTERS:
        raise SimulationError(f"{shown(letter)} is not the letter of an action; write F, B, I or W")
    return LETTERS.index(letter)


Schedule = tuple[Sequence[Action], ...]
"""Row of actions of each pipeline rank, in run order."""


class ScheduleKind(Protocol):
    """Function that builds a schedule of any size: the `build` of each file in `kinds/`, or any function with this signature."""

    def __call__(self, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
        """Return the row of actions, in run order, of each of `stages` pipeline ranks.

        Rank r holds the global stages r, r + stages, …, `chunks` of them (1, or `vpp`). Rows may be any iterables of (stage,
        letter, microbatch). Raises InputError for unsupported sizes.
        """
        ...


def one_chunk(schedule: str, chunks: int) -> None:
    """Raise InputError unless `chunks` is 1. schedule: name for the message."""
    if chunks != 1:
        raise InputError(f"{schedule} has one model chunk per rank, not {chunks}; set vpp to 1 or use interleaved")
