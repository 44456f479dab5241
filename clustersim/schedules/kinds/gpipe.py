"""GPipe: all forward passes, then all backward passes, the last microbatch first (Huang et al. 2019, figure 2c)."""

from __future__ import annotations

from clustersim.schedules.action import Schedule, one_chunk, run


def build(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of `stages` ranks with one stage each.

    Bubble: (p-1)/(m+p-1) of the step if stages are equal. Each rank keeps all m microbatches. Raises InputError if `chunks` > 1.
    """
    one_chunk("gpipe", chunks)
    every = range(microbatches)
    return tuple((*run(rank, "F", every), *run(rank, "B", reversed(every))) for rank in range(stages))
