"""The order of DualPipe and DualPipeV: a rank has two stages, and most passes of one overlap a pass of the other.

The steps, their repetitions and the deferred weight gradients are those of deepseek-ai/DualPipe (`step` in dualpipe/dualpipe.py
and dualpipe/dualpipev.py). Of two overlapped passes the backward one is listed first (`Pipeline.paired`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from clustersim.schedules.action import Action, Letter

PhaseAction = Callable[[int, Letter, int], Action]
"""Function (phase, letter, i) -> action on the i-th microbatch of a phase. A phase, 0 or 1, is one of a rank's two stages; the
forward passes of phase 0 come first."""


def rank_actions(depth: int, ranks: int, microbatches: int, build_action: PhaseAction) -> tuple[Action, ...]:
    """Return the actions of a rank in a step.

    depth: the rank's distance from the nearer end of the pipeline. ranks: number of ranks from an end to the rank where
    stages turn, half of DualPipe's, all of DualPipeV's. microbatches: number per phase, at least 2·ranks.
    """
    count, deferred = Counter[str](), deque[Action]()
    row = list[Action]()
    for step in _steps(depth, ranks - depth - 1, microbatches - 2 * ranks + depth):
        if step == "W":
            row.append(deferred.popleft())
            continue
        letter, index = step[0], step[1]
        direction = f"{'F' if letter == 'F' else 'B'}{index}"
        row.append(build_action(int(index), letter, count[direction]))  # type: ignore[arg-type]
        if letter == "I":
            deferred.append(build_action(int(index), "W", count[direction]))
        count[direction] += 1
    return tuple(row)


def _steps(depth: int, outer: int, steady: int) -> Iterator[str]:
    """Yield letter and phase of each action, such as `F0`; W runs the oldest deferred weight gradients.

    outer: number of ranks after this one, up to the turn. steady: repetitions of the overlapped passes.
    """
    yield from ("F0",) * 2 * outer
    yield from ("F0", "F1") * (depth + 1)
    yield from ("I1", "W", "F1") * outer
    # the rank at the turn does not overlap its first two passes, which makes the bubble smaller
    yield from (*(("B1", "F0") if outer else ("F0", "B1")), "B0", "F1")
    yield from ("B1", "F0", "B0", "F1") * steady
    yield from ("B1", "B0", "F1") * outer
    for i in range(2 * (depth + 1)):
        yield f"{'B' if i <= depth else 'I'}{1 - i % 2}"
    yield from ("W", "I0") * outer
    yield from ("W",) * (depth + 1)
