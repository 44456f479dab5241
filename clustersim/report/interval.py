"""The interval of the step time by the errors of its kernels alone, to first order.

It knows nothing of the errors of network, framework and host, so a user sees the one of `calibration.py` instead.

The step time is the longest of many sums of kernel times and transfers. While the longest stays the longest, it grows with a
kernel's time by as many seconds as that kernel has on the critical path: bubbles grow with the passes that they wait for, and
communication that is hidden counts for nothing.
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
from clustersim.engine.instruction import Compute
from clustersim.engine.script import Script, once_each
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Steps
from clustersim.predictors.uncertainty import Bounds, Margin
from clustersim.report.breakdown import Path

Pass = tuple[int, str, int]
"""Position in the ep group, kind and stage of a computation: 0, `F`, 3; 0, `optimizer`, -1."""


class StepKernels(NamedTuple):
    """What the kernels on the critical path say: the margin by their errors alone, and how many of them run."""

    margin: Margin
    launches: float


class PassKernels(NamedTuple):
    """How often passes run each of the distinct kernels of a job; those that run the same have one row."""

    kernels: tuple[Kernel, ...]
    row: Mapping[Pass, int]
    kernel: tuple[Ints, ...]
    """By row, which kernels, in order of appearance …"""
    often: tuple[Ints, ...]
    """… and how often each."""


def pass_kernels(scripts: Sequence[Script], positions: int, kernels: tuple[Kernel, ...]) -> PassKernels:
    """Count the kernels of the passes of all roles, of which `positions` belong to each pipeline rank."""
    number = {kernel: place for place, kernel in enumerate(kernels)}
    rows: dict[tuple[int, ...], int] = {}
    row, which, counts = dict[Pass, int](), list[Ints](), list[Ints]()
    for key, text in _passes(scripts, positions).items():
        same = tuple(map(id, text))  # many passes are the same, of other stages
        row[key] = rows.setdefault(same, len(rows))
        if row[key] == len(which):
            again = Counter(map(id, chain.from_iterable(text)))  # layers repeat the same ones
            found = Counter[int]()
            for item in once_each(chain.from_iterable(text)):
                if isinstance(item, Kernel):
                    found[number[item]] += again[id(item)]
            which.append(np.array(list(found), np.int64))
            counts.append(np.array(list(found.values()), np.int64))
    return PassKernels(kernels, row, tuple(which), tuple(counts))


def step_kernels(work: Work, plan: Plan, path: Path, end: float, bounds: Bounds, counted: PassKernels) -> StepKernels:
    """Return between which times a step of `end` seconds lies by the errors of kernels alone, and how many run in a row."""
    each = np.array([[own.get(kernel, math.inf) for kernel in counted.kernels] for own in work.seconds])
    critical = exposed(work, plan, path, counted, each)
    margin = bounds.margin(end, dict(zip(counted.kernels, critical.sum(axis=0).tolist(), strict=True)))
    launches = math.fsum((critical / each).ravel().tolist()) + _launched(work, plan, path, counted)
    return StepKernels(margin, launches)


def _launched(work: Work, plan: Plan, path: Path, counted: PassKernels) -> int:
    """Return the kernels of the passes whose launches are on the path themselves."""
    places = roles(work.job)[plan.first] % work.job.positions if work.job.positions > 1 else np.zeros_like(plan.first)
    total = 0
    for number, times in path.of_stream(HOST):
        task, rank = path.record.tasks.alike[number], path.record.graph.tasks[number][0]
        row = counted.row.get((int(places[rank]), task.kind, task.stage))
        total += 0 if row is None else times * int(counted.often[row].sum())
    return total


def exposed(work: Work, plan: Plan, path: Path, counted: PassKernels, each: Floats) -> Floats:
    """Return the seconds of each kernel on the critical path, by type of node (types, kernels); each: of one launch of it."""
    seconds = np.zeros((len(each), len(counted.often)))
    found, ranks, tasks = path.computed(), path.record.graph.tasks, path.record.tasks.alike
    places = roles(work.job)[plan.first] % work.job.positions if work.job.positions > 1 else np.zeros_like(plan.first)
    kinds = plan.network.topology.kind_of(work.gpus[plan.first]).tolist()
    for number in np.flatnonzero(found).tolist():
        task = tasks[number]
        cell = ranks[number][0]
        row = counted.row[int(places[cell]), task.kind, task.stage]
        seconds[kinds[cell], row] += float(found[number])
    result = np.zeros(each.shape)
    for kind, row in np.argwhere(seconds).tolist():
        which = counted.kernel[row]
        alone = counted.often[row] * each[kind, which]
        result[kind, which] += alone * (float(seconds[kind, row]) / math.fsum(alone.tolist()))
    return result


def _passes(scripts: Sequence[Script], positions: int) -> dict[Pass, list[Steps]]:
    """Return the kernels of each pass, in parts; equal passes share their objects."""
    result: dict[Pass, list[Steps]] = {}
    for role, script in enumerate(scripts):
        place = role % positions
        whole = (lines for key, lines in script.steps.items() if len(key) == 2)
        for line in chain.from_iterable((*whole, script.finish)):
            if isinstance(line, Compute):
                result.setdefault((place, line.kind, line.stage), []).append(line.items)
    return result
