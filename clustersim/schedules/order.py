"""The order of a rank with several model chunks: a group of microbatches on one chunk, then on the next."""

from __future__ import annotations

from clustersim.errors import InputError
from clustersim.schedules.action import Action, Letter, actions


def require_full_rounds(schedule: str, stages: int, microbatches: int) -> None:
    """Raise InputError unless `microbatches` is a multiple of `stages`. schedule: name for the message."""
    if microbatches % stages:
        close = max(round(microbatches / stages), 1) * stages
        raise InputError(
            f"{schedule}: {microbatches} microbatches are not a multiple of {stages} pipeline stages; use, say, {close}"
        )


def forwards(rank: int, stages: int, microbatches: int, chunks: int, group: int | None = None) -> list[Action]:
    """Return the forward passes of a rank in Megatron-LM's order, chunk 0 first, in rounds of `group` microbatches (None:
    `stages`)."""
    return _rounds("F", rank, stages, microbatches, range(chunks), group or stages)


def backwards(
    rank: int, stages: int, microbatches: int, chunks: int, letter: Letter, group: int | None = None
) -> list[Action]:
    """Return the passes of letter B, I or W of a rank in Megatron-LM's order, the last chunk first. group: as in `forwards`."""
    return _rounds(letter, rank, stages, microbatches, range(chunks)[::-1], group or stages)


def _rounds(letter: Letter, rank: int, stages: int, microbatches: int, chunks: range, group: int) -> list[Action]:
    """Return the actions of a letter: each group of microbatches on one chunk after the other. The last group may be smaller."""
    starts = range(0, microbatches, group)
    rounds = [range(start, min(start + group, microbatches)) for start in starts]
    stage_of_action = [chunk * stages + rank for part in rounds for chunk in chunks for _ in part]
    return actions(stage_of_action, letter, [microbatch for part in rounds for _ in chunks for microbatch in part])


def split_row(rank: int, stages: int, microbatches: int, chunks: int, warmup: int, deferred: int) -> tuple[Action, ...]:
    """Return the actions of a rank that begins with `warmup` forward passes and splits its backward passes.

    deferred: number of weight gradients by which these lag behind input gradients; they fill the bubbles at the end.
    """
    total = microbatches * chunks
    warmup = min(total, warmup)
    forward = forwards(rank, stages, microbatches, chunks)
    inputs = backwards(rank, stages, microbatches, chunks, "I")
    weights = backwards(rank, stages, microbatches, chunks, "W")
    row = forward[:warmup]
    for k in range(total):
        row += (*forward[warmup + k : warmup + k + 1], inputs[k])
        row += weights[k - deferred : k - deferred + 1] if k >= deferred else []
    return (*row, *weights[max(total - deferred, 0) :])
