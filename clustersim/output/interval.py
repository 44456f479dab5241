"""The interval of the step time, to first order in the errors of the kernels.

The step time is the longest of many sums of kernel times and transfers. While the longest stays the longest, it grows with a
kernel's time by as many seconds as that kernel has on the critical path: bubbles grow with the passes that they wait for, and
communication that is hidden counts for nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from clustersim.engine.plan import Work
from clustersim.engine.program import Span
from clustersim.engine.script import Compute
from clustersim.engine.simulate import Record
from clustersim.output.critical import critical_path
from clustersim.predictors.margins import Bounds, Margin
from clustersim.workload.kernel import Kernel

Pass = tuple[str, int]
"""Kind and stage of a computation: `F`, 3; `optimizer`, -1."""


def step_margin(work: Work, record: Record, bounds: Bounds) -> Margin:
    """Return between which times the step lies, by the errors of kernels alone: no more simulations are needed."""
    return bounds.margin(record.end, exposed(work, critical_path(record.spans)))


def exposed(work: Work, path: Iterable[Span]) -> dict[Kernel, float]:
    """Return the seconds of each kernel on the critical path."""
    result: defaultdict[Kernel, float] = defaultdict(float)
    kernels = _kernels(work)
    for key, seconds in _computed(path).items():
        whole = sum(count * work.seconds[kernel] for kernel, count in kernels[key].items())
        for kernel, count in kernels[key].items():
            result[kernel] += seconds * count * work.seconds[kernel] / whole
    return result


def _computed(path: Iterable[Span]) -> dict[Pass, float]:
    """Return the seconds of computation on the path by pass."""
    result: defaultdict[Pass, float] = defaultdict(float)
    for span in path:
        if span.stream == "compute" and span.activity and span.activity.compute:
            result[span.kind, span.stage] += min(span.activity.compute, span.end - span.start)
    return result


def _kernels(work: Work) -> dict[Pass, Counter[Kernel]]:
    """Return how often each pass runs each kernel."""
    result: dict[Pass, Counter[Kernel]] = {}
    for script in work.scripts:
        for line in (line for lines in (*script.steps.values(), script.finish) for line in lines):
            if isinstance(line, Compute):
                found = result.setdefault((line.kind, line.stage), Counter())
                found.update(item for item in line.items if isinstance(item, Kernel))
    return result
