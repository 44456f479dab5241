"""Hierarchical: reduce-scatter inside each level, ring all-reduce across the outermost level, all-gather back inside.

Each level is a ring over one digit of the position and passes 1/f of its array outwards, f being its fan-out: BlueConnect (Cho
et al. 2019), or with two levels Horovod's hierarchical all-reduce (NCCLHierarchicalAllreduce). With g ranks inside at B1 bytes/s
and k outside at B2: 2(g-1)/g·S/B1 + 2(k-1)/k·S/(g·B2) + 2(g+k-2)·a.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from clustersim.collectives.model import Group, Phase, Step, digits, neighbours, uniform

OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


def steps(op: str, group: Group) -> Iterator[Step]:
    """Yield the steps of `op` on n chunks; chunk c starts (all_gather) or ends (reduce_scatter) on rank c."""
    inwards, start = list(range(len(group.levels))), 0
    if op != "all_gather":
        for level in inwards:
            yield from _ring(group, level, start, reduce=True)
            start += group.levels[level] - 1
    if op != "reduce_scatter":
        for level in reversed(inwards):
            yield from _ring(group, level, start, reduce=False)
            start += group.levels[level] - 1


def _ring(group: Group, level: int, start: int, reduce: bool) -> Iterator[Step]:
    """Yield the steps of the rings at one level, from round `start` on: a reduce-scatter if `reduce`, else an all-gather."""
    digit, stride, fan = digits(group, level)
    after = neighbours(group, level)
    for round_ in range(fan - 1):
        for rank in range(group.n):
            part = (int(digit[rank]) - reduce - round_) % fan
            # At this level a rank deals with the chunks that share its inner digits and have `part` as this digit.
            for chunk in range(rank % stride + part * stride, group.n, stride * fan):
                yield Step(start + round_, rank, int(after[rank]), chunk, reduce)


def phases(op: str, group: Group) -> tuple[Phase, ...]:
    """Return one phase per level inwards and outwards; the outermost level of an all_reduce is one phase."""
    levels = [level for level, fan in enumerate(group.levels) if fan > 1]
    inside = tuple(_phase(group, level, 1) for level in levels)
    if op == "reduce_scatter":
        return inside
    if op == "all_gather":
        return inside[::-1]
    return (*inside[:-1], _phase(group, levels[-1], 2), *inside[-2::-1])


def _phase(group: Group, level: int, times: int) -> Phase:
    """Return the phase of `times` trips around the rings at one level: each rank sends to the next rank of its ring."""
    fan = group.levels[level]
    share = times * (fan - 1) / math.prod(group.levels[: level + 1])
    return uniform(times * (fan - 1), np.arange(group.n, dtype=np.int64), neighbours(group, level), share)
