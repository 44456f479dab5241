"""GPipe: all forward passes, then all backward passes, the last microbatch first (Huang et al. 2019, figure 2c)."""

from __future__ import annotations

import numpy as np

from clustersim.schedules.action import BACKWARD, FORWARD, ActionRow, Schedule, one_chunk


def build(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of `stages` ranks with one stage each.

    Bubble: (p-1)/(m+p-1) of the step if stages are equal. Each rank keeps all m microbatches. Raises InputError if `chunks` > 1.
    """
    one_chunk("gpipe", chunks)
    every = np.arange(microbatches, dtype=np.int32)
    letter = np.repeat(np.array([FORWARD, BACKWARD], np.int32), microbatches)
    microbatch = np.concatenate([every, every[::-1]])
    return tuple(ActionRow(np.stack([np.full_like(letter, rank), letter, microbatch])) for rank in range(stages))
