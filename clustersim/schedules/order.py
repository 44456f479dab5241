"""In which order a rank with several model chunks works: `stages` microbatches of one chunk, then of the next."""

from __future__ import annotations

from clustersim.errors import InputError
from clustersim.schedules.action import Action, Letter


def rounds_of(schedule: str, stages: int, microbatches: int) -> None:
    """Raise InputError unless `microbatches` is a multiple of `stages`."""
    if microbatches % stages:
        close = max(round(microbatches / stages), 1) * stages
        raise InputError(
            f"{schedule}: {microbatches} microbatches are no multiple of {stages} pipeline stages; use, say, {close}"
        )


def forwards(rank: int, stages: int, microbatches: int, chunks: int) -> list[Action]:
    """Return the forwards of a rank in Megatron-LM's order: chunk 0 first."""
    return [_action(k, "F", rank, stages, range(chunks)) for k in range(microbatches * chunks)]


def backwards(rank: int, stages: int, microbatches: int, chunks: int, letter: Letter) -> list[Action]:
    """Return the backwards (letter B, I or W) of a rank in Megatron-LM's order: the last chunk first."""
    return [_action(k, letter, rank, stages, range(chunks)[::-1]) for k in range(microbatches * chunks)]


def _action(k: int, letter: Letter, rank: int, stages: int, chunks: range) -> Action:
    round_, within = divmod(k, stages * len(chunks))
    turn, i = divmod(within, stages)
    return Action(chunks[turn] * stages + rank, letter, round_ * stages + i)
