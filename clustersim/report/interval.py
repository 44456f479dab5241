"""The interval of the step time by the errors of its kernels alone, to first order.

It knows nothing of the errors of network, framework and host, so a user sees the one of `calibration.py` instead.

The step time is the longest of many sums of kernel times and transfers. While the longest stays the longest, it grows with a
kernel's time by as many seconds as that kernel has on the critical path: bubbles grow with the passes that they wait for, and
communication that is hidden counts for nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import NamedTuple

from clustersim.arrays import Ints
from clustersim.engine.compile import Plan, Work
from clustersim.engine.groups import roles
from clustersim.engine.program import COMPUTE
from clustersim.engine.script import Compute
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Steps
from clustersim.predictors.uncertainty import Bounds, Margin
from clustersim.report.critical_path import Path

Pass = tuple[int, str, int]
"""Position in the ep group, kind and stage of a computation: 0, `F`, 3; 0, `optimizer`, -1."""


class StepKernels(NamedTuple):
    """What the kernels on the critical path say: the margin by their errors alone, and how many of them run."""

    margin: Margin
    launches: float


def step_kernels(work: Work, plan: Plan, path: Path, end: float, bounds: Bounds) -> StepKernels:
    """Return between which times a step of `end` seconds lies by the errors of kernels alone, and how many run in a row."""
    critical = exposed(work, plan, path)
    launches = math.fsum(seconds / work.seconds[kernel] for kernel, seconds in critical.items())
    return StepKernels(bounds.margin(end, critical), launches)


def exposed(work: Work, plan: Plan, path: Path) -> dict[Kernel, float]:
    """Return the seconds of each kernel on the critical path."""
    places = roles(work.job)[plan.first] % work.job.positions
    passes, seconds = _passes(work), dict[tuple[int, ...], float]()
    texts: dict[tuple[int, ...], list[Steps]] = {}
    for key, took in _computed(path, places).items():  # many passes are the same, of other stages
        same = tuple(map(id, passes[key]))
        texts[same] = passes[key]
        seconds[same] = seconds.get(same, 0.0) + took
    result: defaultdict[Kernel, float] = defaultdict(float)
    for same, text in texts.items():
        counts = Counter(item for items in text for item in items)
        alone = {kernel: count * work.seconds[kernel] for kernel, count in counts.items() if isinstance(kernel, Kernel)}
        share = seconds[same] / math.fsum(alone.values())
        for kernel, took in alone.items():
            result[kernel] += took * share
    return result


def _computed(path: Path, places: Ints) -> dict[Pass, float]:
    """Return the seconds of computation on the path by pass; places: of the rank cells in their ep groups."""
    result: defaultdict[Pass, float] = defaultdict(float)
    for span, times in path:
        if span.stream == COMPUTE and span.activity and span.activity.compute:
            seconds = min(span.activity.compute, span.end - span.start) * times
            result[int(places[span.rank]), span.kind, span.stage] += seconds
    return result


def _passes(work: Work) -> dict[Pass, list[Steps]]:
    """Return what each pass runs, in parts; passes that run the same have the same objects."""
    result: dict[Pass, list[Steps]] = {}
    for role, script in enumerate(work.scripts):
        place = role % work.job.positions
        for line in (line for lines in (*script.steps.values(), script.finish) for line in lines):
            if isinstance(line, Compute):
                result.setdefault((place, line.kind, line.stage), []).append(line.items)
    return result
