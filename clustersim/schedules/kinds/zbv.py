"""ZB-V: split backward passes on stages that go down the ranks and come back (Qi et al. 2023, section 6).

Rank r of p holds stages r and 2p-1-r. The order is that of PyTorch's ScheduleZBVZeroBubble.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from clustersim.schedules import folded
from clustersim.schedules.action import Action, Schedule
from clustersim.schedules.folded import two_chunks

pipeline = folded.pipeline


def build(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Return the schedule of `stages` ranks with two stages each.

    No bubble except p-1 passes of a stage if forward, input gradients and weight gradients take equal times. A rank keeps 2p
    microbatches of a stage, as much as 1F1B's p of twice the layers. Raises InputError unless `chunks` is 2.
    """
    two_chunks("zbv", chunks)
    count = max(microbatches, 2 * stages - 1)  # the order is defined from this number on
    return tuple(
        tuple(action for action in _row(rank, stages, count) if action.microbatch < microbatches)
        for rank in range(stages)
    )


def peak_microbatches(stages: int, chunks: int = 2) -> int:
    """Return a number of microbatches at which every rank reaches its peak memory; more do not raise it."""
    return 2 * stages + 1


def _row(rank: int, stages: int, microbatches: int) -> Iterator[Action]:
    count = Counter[str]()
    for step in _steps(rank, stages - rank, microbatches, 2 * stages - 1):
        stage = 2 * stages - 1 - rank if step[1] == "1" else rank
        yield Action(stage, step[0], count[step])  # type: ignore[arg-type]
        count[step] += 1


def _steps(depth: int, outer: int, microbatches: int, warmup: int) -> Iterator[str]:
    """Yield letter and chunk of each action of rank `depth`, such as `F0`. outer: ranks up to the turn. warmup: forward count."""
    yield from ("F0",) * (2 * outer - 1)
    yield from ("F1", "F0") * depth
    yield from ("F1", "I1", "W1") * outer
    for i in range(microbatches - depth - outer):
        yield from ("F0",) * (warmup - depth + i < microbatches)
        yield from ("I0", "W0", "F1", "I1", "W1")
    yield from ("I0", "I1") * depth
    yield from ("I0", "W0") * outer
    yield from ("W1",) * depth
    yield from ("W0",) * depth
