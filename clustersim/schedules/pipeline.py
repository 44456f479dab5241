"""The layout of global stages on pipeline ranks, for one or more copies of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clustersim.schedules.action import Action


class Pipeline(NamedTuple):
    """Layout of global stages on the ranks of a pipeline.

    Stages of a copy are numbered in the order of activations, before those of the next copy. Microbatch i uses copy i % copies.
    """

    ranks: int
    """Number of ranks."""
    chunks: int = 1
    """Number of stages per rank of one copy of the model."""
    copies: int = 1
    """Number of copies of the model."""
    folded: bool = False
    """Whether every second chunk is reversed, with its first stage on the last rank; otherwise every chunk begins on rank 0."""
    paired: bool = False
    """Whether a backward pass and the forward pass after it overlap: they begin and end together."""

    @property
    def stages(self) -> int:
        """Number of global stages of one copy of the model."""
        return self.ranks * self.chunks

    @property
    def ends_on_one_rank(self) -> bool:
        """Whether one rank has both the first and the last stage of the model."""
        return any(self.next_stage(stage) is None for stage in self.rank_stages(0))

    def is_reversed(self, stage: int) -> bool:
        """Return whether the chunk of a global stage is reversed: its next stage is on the previous rank."""
        return self.folded and stage // self.ranks % 2 == 1

    def rank(self, stage: int) -> int:
        """Return the rank that runs a global stage."""
        position = stage % self.ranks
        return self.ranks - 1 - position if self.is_reversed(stage) else position

    def rank_stages(self, rank: int) -> tuple[int, ...]:
        """Return the global stages of a rank, of all copies of the model, in ascending order."""
        if not self.folded:
            return tuple(range(rank, self.stages * self.copies, self.ranks))
        starts = range(0, self.stages * self.copies, self.ranks)
        return tuple(start + (self.ranks - 1 - rank if self.is_reversed(start) else rank) for start in starts)

    def previous_stage(self, stage: int) -> int | None:
        """Return the stage that sends activations to a stage, or None for the first stage of a copy."""
        return stage - 1 if stage % self.stages else None

    def next_stage(self, stage: int) -> int | None:
        """Return the stage that receives the activations of a stage, or None for the last stage of a copy."""
        return stage + 1 if (stage + 1) % self.stages else None


def action_units(row: Sequence[Action], paired: bool) -> Iterator[tuple[Action, ...]]:
    """Yield the actions of a row in order as (action,), or with `paired` as (B, F) if F directly follows a full backward B."""
    waiting: tuple[Action, ...] = ()
    for action in row:
        if waiting and action.letter == "F":
            yield (*waiting, action)
            waiting = ()
            continue
        if waiting:
            yield waiting
        waiting = (action,) if paired and action.letter == "B" else ()
        if not waiting:
            yield (action,)
    if waiting:
        yield waiting
