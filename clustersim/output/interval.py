"""The interval of the step time, to first order in the errors of the kernels.

The step time is the longest of many sums of kernel times and transfers. While the longest stays the longest, it grows with a
kernel's time by as many seconds as that kernel has on the critical path: bubbles grow with the passes that they wait for, and
communication that is hidden counts for nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from clustersim.engine.plan import Plan, Work, roles
from clustersim.engine.program import Span
from clustersim.engine.script import Compute
from clustersim.predictors.uncertainty import Bounds, Margin
from clustersim.topology.model import Ints
from clustersim.workload.kernel import Kernel

Pass = tuple[int, str, int]
"""Position in the ep group, kind and stage of a computation: 0, `F`, 3; 0, `optimizer`, -1."""


def step_margin(work: Work, plan: Plan, path: Iterable[Span], end: float, bounds: Bounds) -> Margin:
    """Return between which times a step of `end` seconds lies, by the errors of kernels alone: no more simulations are needed."""
    return bounds.margin(end, exposed(work, plan, path))


def exposed(work: Work, plan: Plan, path: Iterable[Span]) -> dict[Kernel, float]:
    """Return the seconds of each kernel on the critical path."""
    result: defaultdict[Kernel, float] = defaultdict(float)
    kernels = _kernels(work)
    places = roles(work.job)[plan.first] % work.job.positions
    for key, seconds in _computed(path, places).items():
        whole = math.fsum(count * work.seconds[kernel] for kernel, count in kernels[key].items())
        for kernel, count in kernels[key].items():
            result[kernel] += seconds * count * work.seconds[kernel] / whole
    return result


def _computed(path: Iterable[Span], places: Ints) -> dict[Pass, float]:
    """Return the seconds of computation on the path by pass; places: of the rank cells in their ep groups."""
    result: defaultdict[Pass, float] = defaultdict(float)
    for span in path:
        if span.stream == "compute" and span.activity and span.activity.compute:
            result[int(places[span.rank]), span.kind, span.stage] += min(span.activity.compute, span.end - span.start)
    return result


def _kernels(work: Work) -> dict[Pass, Counter[Kernel]]:
    """Return how often each pass runs each kernel."""
    result: dict[Pass, Counter[Kernel]] = {}
    for role, script in enumerate(work.scripts):
        place = role % work.job.positions
        for line in (line for lines in (*script.steps.values(), script.finish) for line in lines):
            if isinstance(line, Compute):
                found = result.setdefault((place, line.kind, line.stage), Counter())
                found.update(item for item in line.items if isinstance(item, Kernel))
    return result
