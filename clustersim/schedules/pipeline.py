"""The layout of global stages on pipeline ranks, for one or more copies of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clustersim.schedules.action import Action


class Pipeline(NamedTuple):
    """Pipeline that schedules of one kind run on.

    Stages of a copy are numbered in the order of activations, before those of the next copy. Microbatch i uses copy i % copies.
    """

    ranks: int
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
    def closed(self) -> bool:
        """Whether one rank has both the first and the last stage of the model."""
        return any(self.after(stage) is None for stage in self.own(0))

    def back(self, stage: int) -> bool:
        """Return whether the chunk of a global stage is reversed: its next stage is on the previous rank."""
        return self.folded and stage // self.ranks % 2 == 1

    def rank(self, stage: int) -> int:
        """Return the rank of a global stage."""
        place = stage % self.ranks
        return self.ranks - 1 - place if self.back(stage) else place

    def own(self, rank: int) -> tuple[int, ...]:
        """Return the global stages of a rank in ascending order."""
        if not self.folded:
            return tuple(range(rank, self.stages * self.copies, self.ranks))
        starts = range(0, self.stages * self.copies, self.ranks)
        return tuple(start + (self.ranks - 1 - rank if self.back(start) else rank) for start in starts)

    def before(self, stage: int) -> int | None:
        """Return the stage that sends activations to a stage, or None for the first stage of a copy."""
        return stage - 1 if stage % self.stages else None

    def after(self, stage: int) -> int | None:
        """Return the stage that receives the activations of a stage, or None for the last stage of a copy."""
        return stage + 1 if (stage + 1) % self.stages else None


def together(row: Sequence[Action], paired: bool) -> Iterator[tuple[Action, ...]]:
    """Yield the actions of a row one by one, or with `paired` each backward pass together with a forward pass right after it."""
    held: tuple[Action, ...] = ()
    for action in row:
        if held and action.letter == "F":
            yield (*held, action)
            held = ()
            continue
        if held:
            yield held
        held = (action,) if paired and action.letter == "B" else ()
        if not held:
            yield (action,)
    if held:
        yield held
