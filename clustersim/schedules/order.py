"""Rows of schedules whose passes of one letter follow a fixed order, so that the letters of a row determine its actions."""

from __future__ import annotations

import numpy as np

from clustersim.arrays import Ints
from clustersim.schedules.action import BACKWARD, FORWARD, INPUTS, WEIGHTS, ActionRow, Schedule


def in_rounds(letters: Ints, microbatches: int, chunks: int = 1, group: int | None = None) -> Schedule:
    """Return the rows of all ranks from the letters of their actions (ranks, actions), as indices into `LETTERS`.

    Passes of one letter are in Megatron-LM's order: a round of `group` microbatches (None: the number of ranks) on one chunk
    after the other, then the next round; the last round may have fewer. Forward passes begin with chunk 0, all others with the
    last chunk.
    """
    ranks, size, number = len(letters), group or len(letters), np.arange(microbatches * chunks)
    first = number // (size * chunks) * size  # microbatch of each round
    chunk, place = np.divmod(number - first * chunks, np.minimum(size, microbatches - first))
    which = np.empty_like(letters)
    for letter in (FORWARD, BACKWARD, INPUTS, WEIGHTS):
        own = letters == letter
        which[own] = own.cumsum(axis=1)[own] - 1
    forward = letters == FORWARD
    stage = np.where(forward, chunk[which], chunks - 1 - chunk[which]) * ranks + np.arange(ranks)[:, np.newaxis]
    columns = np.stack([stage, letters, (first + place)[which]], axis=1, dtype=np.int32)
    return tuple(map(ActionRow, columns))


def one_forward_one_backward(warmup: Ints, total: int) -> Ints:
    """Return the letters of each rank (ranks, 2·total) that alternates forward and backward passes.

    warmup: forward passes of each rank before the first backward pass, at most `total`, the number of its forward passes.
    """
    place = np.arange(2 * total) - warmup[:, np.newaxis]
    alternating = (place % 2 == 0) & (place < 2 * (total - warmup)[:, np.newaxis])
    return np.where((place < 0) | alternating, FORWARD, BACKWARD)


def split_rows(microbatches: int, warmup: Ints, deferred: Ints, chunks: int = 1) -> Schedule:
    """Return the rows of ranks that begin with `warmup` forward passes each, and split their backward passes.

    deferred: number of weight gradients of each rank by which these lag behind input gradients; they fill the bubbles at the end.
    """
    total, warmup, deferred = microbatches * chunks, warmup[:, np.newaxis], deferred[:, np.newaxis]
    number, ranks = np.arange(total), len(warmup)
    # each input gradient may have a forward pass before it, and weight gradients after it
    steady = np.broadcast_arrays(number < total - warmup, True, number >= deferred)
    present = np.concatenate([number < warmup, np.stack(steady, axis=2).reshape(ranks, -1), number < deferred], axis=1)
    each = [[FORWARD] * total, [FORWARD, INPUTS, WEIGHTS] * total, [WEIGHTS] * total]
    letters = np.broadcast_to(np.concatenate(each), present.shape)[present].reshape(ranks, -1)
    return in_rounds(letters, microbatches, chunks)
