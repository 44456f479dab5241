"""What happens inside a pass: its kernels and the flows between them, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clustersim.engine.compile import Source
from clustersim.engine.fabric import Activity
from clustersim.engine.launching import Seconds
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective


class Inside(NamedTuple):
    """A kernel, or a flow of a collective, from `start` to `end` seconds after the pass began."""

    what: Kernel | str
    """A kernel, the family of a flow, or `compute` where the kernels are not known."""
    start: float
    end: float


def inside(
    activity: Activity, source: Source | None, seconds: Sequence[Seconds], ends: Sequence[float] | None = None
) -> Iterator[Inside]:
    """Yield what a pass is made of, in order.

    source: of the activity; None: its kernels are not known. seconds: of each kernel on a nominal GPU. ends: when each half
    segment ended, in seconds after the begin of the pass; None: as if alone. Where kernels wait for the host, their starts are
    spread evenly over the time that they and the waiting take.
    """
    ends = activity.ends if ends is None else ends
    kernels = iter(_parted(source))
    begin = 0.0
    for place, segment in enumerate(activity.segments):
        computed, moved = ends[2 * place], ends[2 * place + 1]
        before, beside = next(kernels, ((), ()))
        yield from _run(before, begin, computed, source, seconds)
        if segment.flow is not None:
            yield Inside(segment.flow.family, computed, moved)
            if beside:
                yield from _run(beside, computed, moved, source, seconds)
        begin = moved


def _run(
    kernels: Sequence[Kernel], begin: float, end: float, source: Source | None, seconds: Sequence[Seconds]
) -> Iterator[Inside]:
    """Yield kernels between two times."""
    if source is None:
        if end > begin:
            yield Inside("compute", begin, end)
        return
    own = [seconds[source.speed.kind][kernel] * source.speed.slowdown for kernel in kernels]
    apart = max((end - begin) / (sum(own) or 1.0), 0.0)
    at = begin
    for kernel, took in zip(kernels, own, strict=True):
        yield Inside(kernel, at, at + took * min(apart, 1.0))
        at += took * apart


def _parted(source: Source | None) -> Iterator[tuple[list[Kernel], list[Kernel]]]:
    """Yield, by segment, the kernels before its flow and those beside it; those beside several flows at the first."""
    calls: list[tuple[list[Kernel], list[Kernel], int]] = []
    before: list[Kernel] = []
    over = 0
    for item in source.items if source else ():
        if isinstance(item, Kernel):
            (calls[-1][1] if over else before).append(item)
            over -= bool(over)
        elif isinstance(item, Collective) and source and item.group in source.families:
            calls.append((before, [], len(source.flows[item])))
            before, over = [], item.over
    kept: list[Kernel] = []
    for own, beside, flows in calls:
        if not flows:  # a group of one: nothing moves
            kept += [*own, *beside]
            continue
        yield [*kept, *own], beside
        kept = []
        yield from (([], []) for _ in range(flows - 1))
    yield [*kept, *before], []
