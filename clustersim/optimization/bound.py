"""A lower bound of a step's time without playing it: what must happen one after the other, on an idle network.

Let f and b be the seconds of a stage's forward and backward pass, kernels and tensor-parallel collectives at the rate that
their protocol reaches alone, and m the microbatches. All that runs on a rank runs in turn, so a rank is busy for m times the sum
of f + b of its stages. Its first pass waits for one forward pass of every stage before it. Its last backward pass is one of
its lowest stage, as every other backward pass of that microbatch comes before it, and the stages before that follow with
one each. All gradients are there before their norm is, and the norm before the update:

    step >= max over ranks r of (f before r + m · busy of r + b before r) + update

A message to another node takes its bytes over a NIC's rate, and a rank waits until it is away (unless `overlap.p2p`). Where a
schedule splits backward passes, weight gradients may come last, and what follows a rank's last pass is left out. What shares
links, gradient reductions and the host only add to it. So does a slow GPU.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from clustersim.collectives.model import Group
from clustersim.collectives.nccl.shape import shapes
from clustersim.collectives.plan import NCCL, plan
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective, Steps
from clustersim.parallel.job import Job
from clustersim.parallel.memory import at_rest
from clustersim.parallel.optimizer import update
from clustersim.parallel.stages import Stage
from clustersim.preparation import Preparation
from clustersim.schedules.check import load as load_schedule

SERIAL = frozenset({"grad_reduce", "param_gather", "p2p"})
"""Kinds of overlap that leave the collectives of a pass between its kernels."""

OFF = (False, None, "none")
"""What says that a kind of overlap is not used."""


class PassSeconds(NamedTuple):
    """Least seconds of a stage for one microbatch."""

    forward: float
    backward: float


class LowerBounds:
    """Lower bounds of jobs on one cluster; stages that are alike, and their kernels, are looked at once."""

    def __init__(self, preparation: Preparation) -> None:
        self.preparation = preparation
        self._counts: dict[int, tuple[Stage, Counter[Kernel | Collective], Counter[Kernel | Collective]]] = {}
        self._passes: dict[tuple[object, ...], PassSeconds] = {}
        self._collectives: dict[tuple[int, Collective], float] = {}
        self._parts: dict[tuple[object, ...], Sequence[Stage]] = {}
        self._needed: dict[int, tuple[Kernel, ...]] = {}

    def part(self, job: Job) -> Sequence[Stage]:
        """Return the stages of a job, those of the first position of its ep groups."""
        split = job.parallelism.model_copy(
            update={"dp": 1, "schedule": "1f1b", "zero": 0 if job.parallelism.zero < 3 else job.parallelism.zero}
        )
        key = job.model, job.training.model_copy(update={"global_batch": 1}), split
        if key not in self._parts:
            self._parts[key] = self.preparation.parts(job)[0]
        return self._parts[key]

    def _kernels(self, stage: Stage) -> tuple[Kernel, ...]:
        if id(stage) not in self._needed:
            both = self._counted(stage)[1:]
            self._needed[id(stage)] = tuple({item: None for one in both for item in one if isinstance(item, Kernel)})
        return self._needed[id(stage)]

    def memory(self, job: Job) -> float:
        """Return bytes that the fullest GPU of a placed job holds at least: one microbatch, and what lies there between steps."""
        pp = job.parallelism.pp
        part = self.part(job)
        lanes = {tuple(map(id, part[r::pp])): part[r::pp] for r in range(pp)}
        return max(at_rest(job, own).total + sum(stage.saved_bytes for stage in own) for own in lanes.values())

    def kernels(self, job: Job) -> dict[Kernel, None]:
        """Return the kernels that `step` asks for."""
        found: dict[Kernel, None] = {}
        for stage in {id(stage): stage for stage in self.part(job)}.values():
            found |= dict.fromkeys(self._kernels(stage))
        return found | dict.fromkeys(kernel for own in self._own(job) for kernel in own)

    def step(self, job: Job) -> float:
        """Return seconds that no step of a placed job is shorter than."""
        own = self._own(job)
        seconds = self.preparation.seconds(job, [kernel for one in own for kernel in one])
        part = self.part(job)
        stages = [self._pass(job, stage) for stage in part]
        sends = self._sends(job, part)
        pp, m, beside = job.parallelism.pp, job.microbatches, job.parallelism.overlap.p2p
        fill = [0.0, *accumulate(one.forward + send.forward for one, send in zip(stages, sends, strict=True))]
        drain = [0.0, *accumulate(one.backward + send.backward for one, send in zip(stages, sends, strict=True))]
        whole = [sum(one) + (0.0 if beside else sum(send)) for one, send in zip(stages, sends, strict=True)]
        split = _splits(job.parallelism.schedule, job.parallelism.vpp)
        busy = [m * math.fsum(whole[rank::pp]) for rank in range(pp)]
        passes = max(fill[rank] + busy[rank] + (0.0 if split else drain[rank]) for rank in range(pp))
        ends = [math.fsum(seconds[kernel] for kernel in one) for one in own]
        last = max(ends) if job.training.clip_gradients else min(ends)
        return (passes + last) * (1 - 1e-9)  # sums in another order end in other digits

    def _sends(self, job: Job, part: Sequence[Stage]) -> list[PassSeconds]:
        """Return least seconds that the messages of a stage take to the next one and to the one before, at a NIC's rate.

        Neighbours are on other nodes where a stage fills at least one; else nothing is counted.
        """
        cluster = self.preparation.cluster
        nic = max(kind.facts.nic for kind in cluster.kinds)
        if job.mesh.size // job.parallelism.pp < cluster.gpus_per_node or not nic:
            return [PassSeconds(0.0, 0.0)] * len(part)
        last = len(part) - 1
        return [
            PassSeconds(one.output_bytes / nic * (i < last), one.input_bytes / nic * (i > 0))
            for i, one in enumerate(part)
        ]

    def _own(self, job: Job) -> list[tuple[Kernel, ...]]:
        """Return the kernels of the update, by pipeline rank; equal ones once."""
        pp, part = job.parallelism.pp, self.part(job)
        held = {(sum(s.parameters for s in part[r::pp]), sum(s.experts for s in part[r::pp])) for r in range(pp)}
        return [update(job, *one) for one in held]

    def _pass(self, job: Job, stage: Stage) -> PassSeconds:
        serial = not any(value not in OFF for name, value in job.parallelism.overlap if name not in SERIAL)
        algorithm = job.parallelism.algorithms.tp
        key = id(stage), job.spec.predictor, job.spec.clocks, serial, algorithm
        if key not in self._passes:
            _, *both = self._counted(stage)
            known = self.preparation.seconds(job, self._kernels(stage))

            def least(item: Kernel | Collective) -> float:
                if isinstance(item, Kernel):
                    return known[item]
                alone = serial and algorithm == NCCL and item.group == "tp"
                return self._collective(job.parallelism.tp, item) if alone else 0.0

            self._passes[key] = PassSeconds(*(math.fsum(n * least(item) for item, n in one.items()) for one in both))
        return self._passes[key]

    def _counted(self, stage: Stage) -> tuple[Stage, Counter[Kernel | Collective], Counter[Kernel | Collective]]:
        """Return how often each kernel and collective stands in the passes of a stage, which is kept with them."""
        if id(stage) not in self._counts:
            self._counts[id(stage)] = stage, _counter(stage.forward), _counter(stage.backward)
        return self._counts[id(stage)]

    def _collective(self, tp: int, call: Collective) -> float:
        """Return seconds that a collective of the first tp group takes alone; NCCL's choice for others is never faster.

        Of nodes of several types, the first group on each.
        """
        key = tp, call
        if key not in self._collectives:
            topology = self.preparation.cluster
            firsts = [0] if topology.pool is None else np.unique(topology.pool, return_index=True)[1].tolist()
            kinds, _ = shapes(topology, np.array([min(first, topology.gpus - tp) + np.arange(tp) for first in firsts]))
            found = [plan(topology, NCCL, [kind], Group(tp, (tp,)), call) for kind in kinds]
            self._collectives[key] = min((one.latency or 0.0) + call.size / one.rate for one in found)
        return self._collectives[key]


def _counter(steps: Steps) -> Counter[Kernel | Collective]:
    return Counter(step for step in steps if isinstance(step, Kernel | Collective))


@lru_cache(maxsize=256)
def _splits(schedule: str, chunks: int) -> bool:
    """Return whether a schedule runs the gradients of weights as passes of their own."""
    return any(action.letter in "IW" for row in load_schedule(schedule, 2, 2, chunks) for action in row)
