"""The order of DualPipe and DualPipeV: a rank has two stages, and most passes of one run beside a pass of the other.

The steps, how often each is done and where weight gradients are put off are those of deepseek-ai/DualPipe (`step` in
dualpipe/dualpipe.py and dualpipe/dualpipev.py). Of two passes beside each other the backward one is written first
(`Pipeline.paired`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from clustersim.schedules.action import Action, Letter

PhaseAction = Callable[[int, Letter, int], Action]
"""Returns the action of a phase, 0 for the stage whose forward passes come first, with a letter on its i-th microbatch."""


def row(depth: int, ranks: int, microbatches: int, phase: PhaseAction) -> tuple[Action, ...]:
    """Return the actions of a rank in a step.

    depth: how far the rank is from the nearer end of the pipeline. ranks: from an end to where the stages turn, half of
    DualPipe's and all of DualPipeV's. microbatches: of each phase, 2·ranks or more.
    """
    count, put_off = Counter[str](), deque[Action]()
    found = list[Action]()
    for step in _steps(depth, ranks - depth - 1, microbatches - 2 * ranks + depth):
        if step == "W":
            found.append(put_off.popleft())
            continue
        letter, which = step[0], step[1]
        way = f"{'F' if letter == 'F' else 'B'}{which}"
        found.append(phase(int(which), letter, count[way]))  # type: ignore[arg-type]
        if letter == "I":
            put_off.append(phase(int(which), "W", count[way]))
        count[way] += 1
    return tuple(found)


def _steps(depth: int, outer: int, steady: int) -> Iterator[str]:
    """Yield letter and phase of each action, W being the longest that was put off; outer: ranks between it and the turn."""
    yield from ("F0",) * 2 * outer
    yield from ("F0", "F1") * (depth + 1)
    yield from ("I1", "W", "F1") * outer
    # the rank at the turn does not run its first two side by side, which makes the bubble smaller
    yield from (*(("B1", "F0") if outer else ("F0", "B1")), "B0", "F1")
    yield from ("B1", "F0", "B0", "F1") * steady
    yield from ("B1", "B0", "F1") * outer
    for i in range(2 * (depth + 1)):
        yield f"{'B' if i <= depth else 'I'}{1 - i % 2}"
    yield from ("W", "I0") * outer
    yield from ("W",) * (depth + 1)
