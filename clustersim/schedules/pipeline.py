"""Which pipeline rank has which global stages, and how many copies of the model run through a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clustersim.schedules.action import Action


class Pipeline(NamedTuple):
    """The pipeline that schedules of one kind run on.

    Stages of a copy are numbered in the order in which activations pass them, those of the next copy behind them. Microbatch i
    runs through copy i % copies.
    """

    ranks: int
    chunks: int = 1
    """Stages of a copy of the model on each rank."""
    copies: int = 1
    """Copies of the model."""
    folded: bool = False
    """Whether every second chunk lies the other way round, its first stage on the last rank; else each begins on rank 0."""
    paired: bool = False
    """Whether a backward pass and a forward pass right behind it begin and hand on together, as one cell of a drawing."""

    @property
    def stages(self) -> int:
        """Global stages of one copy of the model."""
        return self.ranks * self.chunks

    @property
    def closed(self) -> bool:
        """Whether one rank has the first and the last stage of the model."""
        return any(self.after(stage) is None for stage in self.own(0))

    def back(self, stage: int) -> bool:
        """Return whether the chunk of a global stage lies the other way round: the stage after it is on the rank before."""
        return self.folded and stage // self.ranks % 2 == 1

    def rank(self, stage: int) -> int:
        """Return the rank of a global stage."""
        place = stage % self.ranks
        return self.ranks - 1 - place if self.back(stage) else place

    def own(self, rank: int) -> tuple[int, ...]:
        """Return the global stages of a rank in ascending order."""
        starts = range(0, self.stages * self.copies, self.ranks)
        return tuple(start + (self.ranks - 1 - rank if self.back(start) else rank) for start in starts)

    def before(self, stage: int) -> int | None:
        """Return the stage that hands activations to a stage, None for the first of a copy."""
        return stage - 1 if stage % self.stages else None

    def after(self, stage: int) -> int | None:
        """Return the stage that takes the activations of a stage, None for the last of a copy."""
        return stage + 1 if (stage + 1) % self.stages else None


def together(row: Sequence[Action], paired: bool) -> Iterator[tuple[Action, ...]]:
    """Yield the actions of a row, one by one; paired: a backward pass with the forward pass right behind it."""
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
