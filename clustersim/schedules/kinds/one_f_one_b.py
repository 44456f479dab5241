"""1F1B: after a warm-up each rank alternates one forward and one backward (Narayanan et al. 2021, figure 4 top)."""

from __future__ import annotations

from clustersim.schedules.action import Action, Schedule, one_chunk


def build(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of `stages` ranks with one stage each.

    Bubble: (p-1)/(m+p-1), as GPipe, but rank r keeps only min(p-r, m) microbatches (PipeDream-Flush, Narayanan et al.
    2021, section 2.2.1). Raises InputError for chunks other than 1.
    """
    one_chunk("1f1b", chunks)
    return tuple(_row(rank, min(stages - 1 - rank, microbatches), microbatches) for rank in range(stages))


def _row(stage: int, warmup: int, microbatches: int) -> tuple[Action, ...]:
    row = [Action(stage, "F", i) for i in range(warmup)]
    for i in range(microbatches - warmup):
        row += (Action(stage, "F", warmup + i), Action(stage, "B", i))
    row += [Action(stage, "B", i) for i in range(microbatches - warmup, microbatches)]
    return tuple(row)
