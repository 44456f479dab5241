"""The interval of the step time from the errors of its kernels alone, to first order.

It ignores errors of network, framework and host, so users see the interval of `calibration.py` instead.

The step time is the longest of many sums of kernel times and transfers. While the longest sum stays the longest, the step grows
with a kernel's time by the seconds of that kernel on the critical path: bubbles grow with the passes they wait for, and hidden
communication has no effect.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compile import Work
from clustersim.engine.fabric import HOST
from clustersim.engine.program import once_each
from clustersim.model.kernel import Kernel
from clustersim.model.operator import OperatorStep, Steps
from clustersim.predictors.uncertainty import Bounds, Margin
from clustersim.report.breakdown import Path


class StepKernels(NamedTuple):
    """Kernels on the critical path: interval from their errors alone, and number of launches."""

    margin: Margin
    launches: float


def step_kernels(work: Work, path: Path, bounds: Bounds) -> StepKernels:
    """Return the interval of a step (s) from the errors of its kernels alone, and the number of launches on its path.

    bounds: errors of kernels. Launches are kernels in sequence, each by its share of time on the path, and launches by the host.
    """
    critical, each = exposed(work, path)
    margin = bounds.margin(path.record.end, dict(zip(work.kernels, critical.sum(axis=0).tolist(), strict=True)))
    shape = path.record.shape
    # READY marks launch no kernel: shapes have them on a stream of their own
    on_host = path.tasks[shape.stream[path.tasks] == shape.streams.index(HOST)]
    launched = sum(isinstance(item, Kernel) for task in on_host.tolist() for item in shape.task(task).items)
    return StepKernels(margin, math.fsum((critical / each).ravel().tolist()) + launched)


def exposed(work: Work, path: Path) -> tuple[Floats, Floats]:
    """Return the seconds of each kernel on the path, and of one launch of it (inf if unknown), both (node types, kernels)."""
    each = np.array([[of_kernel.get(kernel, math.inf) for kernel in work.kernels] for of_kernel in work.seconds])
    number: dict[OperatorStep, int] = {kernel: place for place, kernel in enumerate(work.kernels)}
    shape, computed, seconds = path.record.shape, path.computed(), defaultdict[tuple[int, int], float](float)
    plan = path.record.plan
    kinds = plan.network.topology.kind_of(work.gpus[plan.first]).tolist()
    for task in np.flatnonzero(computed).tolist():
        seconds[kinds[int(shape.task_rank[task])], int(shape.line[task])] += float(computed[task])
    result, counts = np.zeros(each.shape), path.record.tasks.once("kernel counts", dict[int, tuple[Ints, Ints]])
    for (kind, line), on_path in seconds.items():
        items = shape.lines[line].items  # several lines share one list
        which, count = counts.get(id(items)) or counts.setdefault(id(items), _counted(items, number))
        line_seconds = count * each[kind, which]
        result[kind, which] += line_seconds * (on_path / math.fsum(line_seconds.tolist()))
    return result, each


def _counted(items: Steps, number: Mapping[OperatorStep, int]) -> tuple[Ints, Ints]:
    """Return the `number` of each distinct kernel of a pass, and how often it runs there, in order of appearance (distinct,)."""
    once = once_each(items, Kernel)  # layers repeat the same objects
    place = dict(zip(map(id, once), map(number.get, once), strict=True))
    counts = Counter(map(place.get, map(id, items)))
    del counts[None]  # None counts items that are not kernels
    return np.array(list(counts), np.int64), np.array(list(counts.values()), np.int64)
