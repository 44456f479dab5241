"""The least seconds of passes: kernels, and tensor-parallel collectives at the rate that their protocol reaches alone.

Layers that are alike are looked at once, whatever the stages that they are in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from clustersim.collectives.nccl.choose import choose, collective_seconds
from clustersim.collectives.nccl.shape import shapes
from clustersim.collectives.plan import NCCL
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective, Layer, Steps
from clustersim.parallel.job import Job
from clustersim.parallel.stages import Stage
from clustersim.preparation import Preparation

SERIAL = frozenset({"grad_reduce", "param_gather", "p2p"})
"""Kinds of overlap that leave the collectives of a pass between its kernels."""

OFF = (False, None, "none")
"""What says that a kind of overlap is not used."""


class PassSeconds(NamedTuple):
    """Least seconds of a stage for one microbatch."""

    forward: float
    backward: float
    weights: float
    """Of the weight gradients, part of `backward`."""


class LayerSteps(NamedTuple):
    """What a layer runs and keeps for one microbatch."""

    layer: Layer
    forward: Counter[Kernel | Collective]
    backward: Counter[Kernel | Collective]
    weights: Counter[Kernel | Collective]
    """Of those of `backward` that yield the gradients of the weights."""
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
        self._collectives: dict[tuple[int, Collective], float] = {}

    def steps(self, stage: Stage, layer: Layer) -> LayerSteps:
        """Return how often each kernel and collective stands in the passes of a layer, and what it keeps."""
        if id(layer) not in self._layers:
            forward, backward, weights = (_counter(stage.steps(layer, letter)) for letter in "FBW")
            self._layers[id(layer)] = LayerSteps(layer, forward, backward, weights, stage.saved(layer))
        return self._layers[id(layer)]

    def seconds(self, job: Job, stage: Stage) -> PassSeconds:
        """Return the least seconds of the passes of a stage of a job."""
        times = _times(job)
        each = [(self._seconds(job, self.steps(stage, layer), times), count) for layer, count in stage.layers]
        return PassSeconds(*(math.fsum(one[i] * count for one, count in each) for i in range(3)))

    def _seconds(self, job: Job, one: LayerSteps, times: tuple[object, ...]) -> PassSeconds:
        key = id(one.layer), *times
        if key not in self._passes:
            least = self._least(job, one)
            self._passes[key] = PassSeconds(*(math.fsum(n * least[i] for i, n in part.items()) for part in one[1:4]))
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
            steps = (
                least[step] if isinstance(step, Kernel | Collective) else 0.0 for step in stage.steps(layer, letter)
            )
            self._elapsed[key] = [0.0, *accumulate(steps)]
        return self._elapsed[key]

    def _least(self, job: Job, one: LayerSteps) -> dict[Kernel | Collective, float]:
        """Return the seconds that each kernel and collective of a layer takes at least."""
        known = self.preparation.seconds(job, one.kernels)
        _, _, alone, algorithm = _times(job)

        def least(item: Kernel | Collective) -> float:
            if isinstance(item, Kernel):
                return known[item]
            bounded = alone and algorithm == NCCL and item.group == "tp"
            return self._collective(job.parallelism.tp, item) if bounded else 0.0

        return {item: least(item) for part in (one.forward, one.backward) for item in part}

    def _collective(self, tp: int, call: Collective) -> float:
        """Return seconds that a collective of the first tp group takes alone; NCCL's choice for others is never faster.

        Of nodes of several types, the first group on each.
        """
        key = tp, call
        if key not in self._collectives:
            topology = self.preparation.cluster
            firsts = [0] if topology.pool is None else np.unique(topology.pool, return_index=True)[1].tolist()
            kinds, _ = shapes(topology, np.array([min(first, topology.gpus - tp) + np.arange(tp) for first in firsts]))
            found = [choose(call.op, call.size, kind, topology.facts(kind.types)) for kind in kinds]
            launch = topology.node.nccl.launch
            self._collectives[key] = min(collective_seconds(one, call.size, launch) for one in found)
        return self._collectives[key]


def _times(job: Job) -> tuple[object, ...]:
    """Return what the seconds of a pass depend on: predictor, clocks, whether tp's collectives stand between kernels, by whom."""
    alone = not any(value not in OFF for name, value in job.parallelism.overlap if name not in SERIAL)
    return job.spec.predictor, job.spec.clocks, alone, job.parallelism.algorithms.tp


def _counter(steps: Steps) -> Counter[Kernel | Collective]:
    return Counter(step for step in steps if isinstance(step, Kernel | Collective))
