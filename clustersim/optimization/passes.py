"""The least seconds of passes: kernels, and tensor- and context-parallel communication that these cannot hide, on an idle fabric.

A collective is waited for where it stands, but for the part that runs beside kernels: with k seconds of these, its c seconds add
max(0, c - k) to them. Layers that are alike are looked at once, whatever the stages that they are in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, distinct_rows
from clustersim.collectives.model import Group
from clustersim.collectives.nccl.shape import shapes
from clustersim.collectives.plan import MESSAGES, NCCL, plan
from clustersim.engine.script import EXCHANGE
from clustersim.engine.traffic import Family, traffic
from clustersim.model.kernel import Kernel
from clustersim.model.moe import COUNTS
from clustersim.model.operator import Awaited, Collective, Layer, Started, Steps
from clustersim.model.sharding import TOKENS
from clustersim.parallel.job import Job
from clustersim.parallel.stages import Stage
from clustersim.preparation import Preparation


class Waited(NamedTuple):
    """A collective where it is waited for."""

    collective: Collective
    beside: tuple[Kernel | Waited, ...]
    """What runs meanwhile."""


class PassSeconds(NamedTuple):
    """Least seconds of a stage for one microbatch."""

    forward: float
    backward: float
    weights: float
    """Of the weight gradients, part of `backward`."""
    inputs: float
    """Of the rest where the two are passes of their own, in which less runs beside collectives."""


class LayerSteps(NamedTuple):
    """What a layer runs and keeps for one microbatch."""

    layer: Layer
    forward: Counter[Kernel | Waited]
    backward: Counter[Kernel | Waited]
    weights: Counter[Kernel | Waited]
    """Of those of `backward` that yield the gradients of the weights."""
    inputs: Counter[Kernel | Waited]
    """Where those are a pass of their own, the rest of `backward`."""
    saved: float
    """Bytes."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The different kernels of both passes."""
        return tuple({item: None for part in self[1:3] for item in part if isinstance(item, Kernel)})


class LeastPasses:
    """The least seconds of passes on one cluster."""

    def __init__(self, preparation: Preparation) -> None:
        self.preparation = preparation
        self._layers: dict[int, LayerSteps] = {}
        self._passes: dict[tuple[object, ...], PassSeconds] = {}
        self._elapsed: dict[tuple[object, ...], list[float]] = {}
        self._collectives: dict[tuple[object, ...], float] = {}
        self._layouts: dict[tuple[int, int], list[Ints]] = {}

    def steps(self, stage: Stage, layer: Layer) -> LayerSteps:
        """Return how often each kernel and collective stands in the passes of a layer, and what it keeps."""
        if id(layer) not in self._layers:
            passes = (_waited(stage.steps(layer, letter)) for letter in "FBWI")
            forward, backward, weights, inputs = (Counter(item for item in one if item is not None) for one in passes)
            self._layers[id(layer)] = LayerSteps(layer, forward, backward, weights, inputs, stage.saved(layer))
        return self._layers[id(layer)]

    def seconds(self, job: Job, stage: Stage) -> PassSeconds:
        """Return the least seconds of the passes of a stage of a job."""
        times = _times(job)
        each = [(self._seconds(job, self.steps(stage, layer), times), count) for layer, count in stage.layers]
        return PassSeconds(*(math.fsum(one[i] * count for one, count in each) for i in range(4)))

    def _seconds(self, job: Job, one: LayerSteps, times: tuple[object, ...]) -> PassSeconds:
        key = id(one.layer), *times
        if key not in self._passes:
            least = self._least(job, one)
            self._passes[key] = PassSeconds(*(math.fsum(n * least[i] for i, n in part.items()) for part in one[1:5]))
        return self._passes[key]

    def elapsed(self, job: Job, stage: Stage, letter: str, steps: Sequence[int]) -> list[float]:
        """Return the least seconds that so many steps of a pass of a stage take, in ascending order; letter: F or B."""
        found: list[float] = []
        done, time = 0, 0.0
        for layer, count in reversed(stage.layers) if letter == "B" else stage.layers:
            within = self._within(job, stage, layer, letter)
            own = len(within) - 1
            for step in steps[len(found) :]:
                if step > done + own * count:
                    break
                whole, rest = divmod(step - done, own) if own else (0, 0)
                found.append(time + whole * within[-1] + within[rest])
            done, time = done + own * count, time + within[-1] * count
        return found

    def _within(self, job: Job, stage: Stage, layer: Layer, letter: str) -> list[float]:
        """Return the least seconds until each step of a pass of a layer begins, and until all are over."""
        key = id(layer), letter, *_times(job)
        if key not in self._elapsed:
            least = self._least(job, self.steps(stage, layer))
            steps = (0.0 if step is None else least[step] for step in _waited(stage.steps(layer, letter)))
            self._elapsed[key] = [0.0, *accumulate(steps)]
        return self._elapsed[key]

    def _least(self, job: Job, one: LayerSteps) -> dict[Kernel | Waited, float]:
        """Return the seconds that each kernel and collective of a layer adds at least."""
        known = self.preparation.seconds(job, one.kernels)

        def least(item: Kernel | Waited) -> float:
            if isinstance(item, Kernel):
                return known[item]
            return max(0.0, self._collective(job, item.collective) - math.fsum(map(least, item.beside)))

        return {item: least(item) for part in (one.forward, one.backward, one.inputs) for item in part}

    def _collective(self, job: Job, call: Collective) -> float:
        """Return seconds that a collective takes on an idle fabric in the fastest of its groups, 0 where that is not bounded.

        It is not where the cluster has no room for a group, nor where exchanges run beside another microbatch.
        """
        kind = _GROUPS.get(call.group)
        if kind is None or (call.group == EXCHANGE and job.parallelism.overlap.ep == "microbatch"):
            return 0.0
        n, apart = kind.of(job)
        algorithm = getattr(job.parallelism.algorithms, kind.algorithm)
        if call.group == COUNTS or call.op in MESSAGES:
            algorithm = NCCL  # counts of rows are gathered, which none of TOKENS does
        if algorithm not in (NCCL, *TOKENS) or n * apart > self.preparation.cluster.gpus:
            return 0.0
        group = Group(n, (n,), *((job.shares, job.router) if call.group == EXCHANGE else ()))
        key = n, apart, algorithm, group, call
        if key not in self._collectives:
            self._collectives[key] = min(self._alone(rows, algorithm, group, call) for rows in self._rows(n, apart))
        return self._collectives[key]

    def _rows(self, n: int, apart: int) -> Sequence[Ints]:
        """Return the first group of n GPUs, so far apart, of each layout on nodes (1, n)."""
        if (key := (n, apart)) not in self._layouts:
            topology = self.preparation.cluster
            room = topology.gpus // (n * apart) * n * apart
            rows = np.arange(room).reshape(-1, n, apart).swapaxes(1, 2).reshape(-1, n)
            node = topology.numbering.node_of(rows)
            types = topology.kind_of(rows) if topology.pools else rows[:, :0]
            first, _ = distinct_rows(np.concatenate((node - node[:, :1], types), axis=1))
            self._layouts[key] = [rows[[row]] for row in first]
        return self._layouts[key]

    def _alone(self, rows: Ints, algorithm: str, group: Group, call: Collective) -> float:
        """Return the seconds of a collective in a group that is alone on the fabric, carried as it is in a simulation."""
        topology = self.preparation.cluster
        [kind], _ = shapes(topology, rows, group.shares)
        carried = plan(topology, algorithm, [kind], group, call)
        family = Family(call.group, rows, group.levels, algorithm, shares=group.shares, router=group.router)
        phases = traffic(topology, family, call.op, carried.phases, carried.latency is None)
        seconds = topology.launch if carried.latency is None else carried.latency
        for one in phases:
            seconds += one.latency[0] * (carried.latency is None) + call.size / min(one.bound[0], carried.rate)
        return float(seconds)


class _GroupKind(NamedTuple):
    """Groups whose collectives passes wait for."""

    of: Callable[[Job], tuple[int, int]]
    """Returns the ranks of a group, and how far apart neighbours are."""
    algorithm: str
    """Field of `parallelism.algorithms`."""


def _inner(job: Job) -> int:
    return job.parallelism.cp_inner or 1


_GROUPS = {
    "tp": _GroupKind(lambda job: (job.parallelism.tp, 1), "tp"),
    "cp": _GroupKind(lambda job: (job.parallelism.cp, job.parallelism.tp), "cp"),
    "cp_a2a": _GroupKind(lambda job: (_inner(job), job.parallelism.tp), "cp"),
    "cp_ring": _GroupKind(lambda job: (job.parallelism.cp // _inner(job), job.parallelism.tp * _inner(job)), "cp"),
    "etp": _GroupKind(lambda job: (job.parallelism.etp, 1), "tp"),
    "amax": _GroupKind(lambda job: (job.mesh.size // job.parallelism.pp, 1), "dp"),
    EXCHANGE: _GroupKind(lambda job: (job.parallelism.ep, job.parallelism.etp), "ep"),
    COUNTS: _GroupKind(lambda job: (job.parallelism.ep * job.parallelism.etp, 1), "ep"),
}


def _times(job: Job) -> tuple[object, ...]:
    """Return what the seconds of a layer's passes depend on: predictor, clocks, and who carries collectives."""
    carried = job.parallelism.algorithms
    return job.spec.predictor, job.spec.clocks, carried.tp, carried.cp, carried.ep, job.parallelism.overlap.ep


def _waited(steps: Steps) -> Iterator[Kernel | Waited | None]:
    """Yield the kernel of each step, or the collective that is waited for there; None where one is only started."""
    started: dict[str, tuple[Collective, list[Kernel | Waited]]] = {}
    for place, step in enumerate(steps):
        item: Kernel | Waited | None = None
        if isinstance(step, Started):
            started[step.collective.group] = step.collective, []
        elif isinstance(step, Awaited):
            collective, beside = started.pop(step.group)
            item = Waited(collective, tuple(beside))
        elif isinstance(step, Collective):
            following = (one for one in steps[place + 1 :] if isinstance(one, Kernel))
            item = Waited(step, tuple(islice(following, step.over)))
        else:
            item = step
        if item is not None:
            for _, beside in started.values():
                beside.append(item)
        yield item
