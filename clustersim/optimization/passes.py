"""The least seconds of passes: kernels, and tensor- and context-parallel communication that these cannot hide, on an idle fabric.

A collective is waited for where it stands, but for the part that runs beside kernels: with k seconds of these, its c seconds add
max(0, c - k) to them. Layers that are alike are looked at once, whatever the stages that they are in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np

from clustersim.collectives.nccl.choose import choose, collective_seconds
from clustersim.collectives.nccl.shape import Shape, shapes
from clustersim.collectives.plan import MESSAGES, NCCL, ring_exchange
from clustersim.engine.traffic import Family, traffic
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Awaited, Collective, Layer, Started, Steps
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
        self._collectives: dict[tuple[int, int, Collective], float] = {}
        self._rings: dict[tuple[int, int], tuple[tuple[Shape, ...], float]] = {}

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

        It is not where the cluster has no room for a group.
        """
        name, _, _ = call.group.partition("_")
        groups = _groups(job, call.group)
        if groups is None or (call.op not in MESSAGES and getattr(job.parallelism.algorithms, name) != NCCL):
            return 0.0
        if math.prod(groups) > self.preparation.cluster.gpus:  # bounds of a plan are worked out on one node
            return 0.0
        if (key := (*groups, call)) not in self._collectives:
            self._collectives[key] = (self._ring if call.op in MESSAGES else self._nccl)(*groups, call)
        return self._collectives[key]

    def _nccl(self, n: int, apart: int, call: Collective) -> float:
        """Return the seconds of the first group, of nodes of several types the first on each: NCCL's choice for others is never
        faster."""
        topology = self.preparation.cluster
        firsts = [0] if topology.pool is None else np.unique(topology.pool, return_index=True)[1].tolist()
        last = topology.gpus - 1 - (n - 1) * apart
        kinds, _ = shapes(topology, np.array([min(first, last) + np.arange(n) * apart for first in firsts]))
        found = [choose(call.op, call.size, kind, topology.facts(kind.types)) for kind in kinds]
        return min(collective_seconds(one, call.size, topology.node.nccl.launch) for one in found)

    def _ring(self, n: int, apart: int, call: Collective) -> float:
        """Return the seconds of messages around a ring, of all rings that the cluster has room for those of the fastest."""
        topology = self.preparation.cluster
        if (key := (n, apart)) not in self._rings:
            room = topology.gpus // (n * apart) * n * apart
            rings = np.arange(room).reshape(-1, n, apart).swapaxes(1, 2).reshape(-1, n)
            [moved] = traffic(topology, Family(call.group, rings, (), ""), call.op, ring_exchange(n))
            self._rings[key] = shapes(topology, rings)[0], float(moved.bound.max())
        kinds, links = self._rings[key]
        messages = [choose("send", call.size / (n - 1), kind, topology.facts(kind.types)) for kind in kinds]
        latency = (topology.node.nccl.launch or 0.0) + min(one.latency_s for one in messages)
        return (n - 1) * latency + call.size / min(links, max(one.rate_bytes_per_s for one in messages))


def _groups(job: Job, name: str) -> tuple[int, int] | None:
    """Return the ranks of a group of one kind, and how far apart neighbours are; None where its communication is not bounded."""
    split = job.parallelism
    inner = split.cp_inner or 1
    return {
        "tp": (split.tp, 1),
        "cp": (split.cp, split.tp),
        "cp_a2a": (inner, split.tp),
        "cp_ring": (split.cp // inner, split.tp * inner),
    }.get(name)


def _times(job: Job) -> tuple[object, ...]:
    """Return what the seconds of a layer's passes depend on: predictor, clocks, and who carries collectives."""
    return job.spec.predictor, job.spec.clocks, job.parallelism.algorithms.tp, job.parallelism.algorithms.cp


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
