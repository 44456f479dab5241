"""The interval of the step time from the errors of its kernels alone, to first order.

It ignores errors of network, framework and host, so users see the interval of `calibration.py` instead.

The step time is the longest of many sums of kernel times and transfers. While the longest sum stays the longest, the step grows
with a kernel's time by the seconds of that kernel on the critical path: bubbles grow with the passes they wait for, and hidden
communication has no effect.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compile import Plan, Work
from clustersim.engine.fabric import HOST
from clustersim.engine.groups import roles
from clustersim.engine.program import COMPUTE, Layout, Program, once_each
from clustersim.model.kernel import Kernel
from clustersim.model.operator import OperatorStep, Steps
from clustersim.predictors.uncertainty import Bounds, Margin
from clustersim.report.breakdown import Path

PassKey = tuple[int, str, int]
"""(position in the ep group, kind, stage) of a computation, such as (0, `F`, 3) or (0, `optimizer`, -1)."""


class StepKernels(NamedTuple):
    """Kernels on the critical path: interval from their errors alone, and number of launches."""

    margin: Margin
    launches: float


class PassKernels(NamedTuple):
    """How often passes run each distinct kernel of a job. Equal passes share a row."""

    kernels: tuple[Kernel, ...]
    row: Mapping[PassKey, int]
    kernel: tuple[Ints, ...]
    """Indices of the kernels in each row, in order of appearance."""
    often: tuple[Ints, ...]
    """Number of runs of each of these kernels."""


def pass_kernels(scripts: Sequence[Program], positions: int, kernels: tuple[Kernel, ...]) -> PassKernels:
    """Return the kernels of the passes of all roles. Each pipeline rank has `positions` roles."""
    number: dict[OperatorStep, int] = {kernel: place for place, kernel in enumerate(kernels)}
    rows: dict[tuple[int, ...], int] = {}
    row, which, counts = dict[PassKey, int](), list[Ints](), list[Ints]()
    passes = _passes(scripts, positions)
    distinct = {id(parts): parts for parts in passes.values()}
    # many passes of different stages are equal
    same = {key: rows.setdefault(tuple(map(id, parts)), len(rows)) for key, parts in distinct.items()}
    for key, parts in passes.items():
        row[key] = same[id(parts)]
        if row[key] == len(which):
            items = list(chain.from_iterable(parts))
            once = once_each(items, Kernel)  # layers repeat the same steps objects
            place = dict(zip(map(id, once), map(number.get, once), strict=True))
            found = Counter(map(place.get, map(id, items)))
            del found[None]  # None stands for an item that is not a kernel
            which.append(np.array(list(found), np.int64))
            counts.append(np.array(list(found.values()), np.int64))
    return PassKernels(kernels, row, tuple(which), tuple(counts))


def step_kernels(work: Work, plan: Plan, path: Path, end: float, bounds: Bounds, counted: PassKernels) -> StepKernels:
    """Return the interval of a step of `end` seconds from the errors of kernels alone, and the number of kernels in sequence."""
    critical, each = exposed(work, plan, path, counted)
    margin = bounds.margin(end, dict(zip(counted.kernels, critical.sum(axis=0).tolist(), strict=True)))
    launches = math.fsum((critical / each).ravel().tolist()) + _launched(work, plan, path, counted)
    return StepKernels(margin, launches)


def _launched(work: Work, plan: Plan, path: Path, counted: PassKernels) -> int:
    """Return the number of kernels in passes whose launches are on the path themselves."""
    places = roles(work.job)[plan.first] % work.job.positions if work.job.positions > 1 else np.zeros_like(plan.first)
    total, shape = 0, path.record.shape
    on_host = np.array([line.stream == HOST for line in shape.lines], bool)[shape.line[path.tasks]]
    for number in path.tasks[on_host].tolist():
        kind, rank = shape.task(number).kind, shape.task_rank[number]
        row = counted.row.get((int(places[rank]), kind, int(shape.stage[number])))
        total += 0 if row is None else int(counted.often[row].sum())
    return total


def exposed(work: Work, plan: Plan, path: Path, counted: PassKernels) -> tuple[Floats, Floats]:
    """Return the seconds of each kernel on the critical path, and of one launch of it, both (node types, kernels)."""
    each = np.array([[own.get(kernel, math.inf) for kernel in counted.kernels] for own in work.seconds])
    seconds = np.zeros((len(each), len(counted.often)))
    found, ranks, shape = path.computed(), path.record.shape.task_rank, path.record.shape
    places = roles(work.job)[plan.first] % work.job.positions if work.job.positions > 1 else np.zeros_like(plan.first)
    kinds = plan.network.topology.kind_of(work.gpus[plan.first]).tolist()
    for number in np.flatnonzero(found).tolist():
        cell = int(ranks[number])
        row = counted.row[int(places[cell]), shape.task(number).kind, int(shape.stage[number])]
        seconds[kinds[cell], row] += float(found[number])
    result = np.zeros(each.shape)
    for kind, row in np.argwhere(seconds).tolist():
        which = counted.kernel[row]
        alone = counted.often[row] * each[kind, which]
        result[kind, which] += alone * (float(seconds[kind, row]) / math.fsum(alone.tolist()))
    return result, each


def _passes(scripts: Sequence[Program], positions: int) -> dict[PassKey, list[Steps]]:
    """Return {pass: its kernels, in parts between collectives}. Equal passes share their objects."""
    result: dict[PassKey, list[Steps]] = {}
    known: dict[Layout, dict[tuple[str, int], list[Steps]]] = {}
    for role, script in enumerate(scripts):
        place, layout, own = role % positions, script.layout, script.own
        if layout not in known:
            whole = (tasks for key, tasks in layout.steps.items() if len(key) == 2)
            parts = known[layout] = dict[tuple[str, int], list[Steps]]()
            for task in chain.from_iterable((*whole, layout.finish)):
                if task.stream == COMPUTE and task.kind:
                    parts.setdefault((task.kind, task.chunk), []).append(task.items)
        for (kind, chunk), items in known[layout].items():
            if chunk >= 0:
                result[place, kind, own[chunk]] = items
            else:  # the update of all pipeline ranks is one
                result[place, kind, -1] = [*result.get((place, kind, -1), ()), *items]
    return result
