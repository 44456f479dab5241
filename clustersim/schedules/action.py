"""An action of a pipeline schedule, written as PyTorch does: `2F0` is stage 2, Forward, microbatch 0.

Letters: F forward, B full backward, I gradient of the input only, W gradient of the weights only
(torch/distributed/pipelining/schedules.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from typing import Literal, NamedTuple, Protocol

from clustersim.errors import InputError, shown

Letter = Literal["F", "B", "I", "W"]
_NOTATION = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")


class Action(NamedTuple):
    """One step of one rank."""

    stage: int
    """Global stage."""
    letter: Letter
    """F, B, I or W."""
    microbatch: int
    """From 0."""

    def __str__(self) -> str:
        return f"{self.stage}{self.letter}{self.microbatch}"


Schedule = tuple[tuple[Action, ...], ...]
"""One row of actions a pipeline rank."""


class ScheduleKind(Protocol):
    """What a schedule of any size is made by: each file of `kinds/` has one as `build`. A plain function is one."""

    def __call__(self, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
        """Return a row of actions for each of `stages` pipeline ranks.

        Rank r holds the global stages r, r + stages, …: `chunks` of them, one unless the job says otherwise (`vpp`). Rows may be
        any iterables of (stage, letter, microbatch). Raises InputError for sizes that it cannot do.
        """
        ...


def run(stage: int, letter: Letter, microbatches: Iterable[int]) -> list[Action]:
    """Return the actions of one letter on one stage, a microbatch after the other."""
    return actions(repeat(stage), letter, microbatches)


def actions(stages: Iterable[int], letter: Letter, microbatches: Iterable[int]) -> list[Action]:
    """Return the actions of one letter, each with its stage and its microbatch."""
    made = partial(tuple.__new__, Action)  # what Action._make does, without a call of Python's for each
    return list(map(made, zip(stages, repeat(letter), microbatches)))


def parse(text: str) -> Action:
    """Return the action that `2F0` denotes. Raises InputError for anything else."""
    match = _NOTATION.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{shown(text)} is not an action; write stage, F, B, I or W, and microbatch, like 2F0")
    stage, letter, microbatch = match.groups()
    return Action(int(stage), letter, int(microbatch))  # type: ignore[arg-type]


def one_chunk(schedule: str, chunks: int) -> None:
    """Raise InputError unless `chunks` is 1, for a schedule that places one stage on a rank."""
    if chunks != 1:
        raise InputError(f"{schedule} has one model chunk a rank, not {chunks}; set vpp to 1 or use interleaved")
