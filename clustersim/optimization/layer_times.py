"""The least seconds of passes: kernels, plus tensor- and context-parallel communication that they cannot hide.

On an idle fabric. A collective is waited for at its position, except for the part that overlaps kernels: with k seconds of these,
its c seconds add max(0, c - k). Equal layers are computed once, whatever their stages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, distinct_rows
from clustersim.collectives.levels import levels
from clustersim.collectives.model import Group
from clustersim.collectives.nccl.shape import shapes
from clustersim.collectives.plan import MESSAGES, NCCL, plan
from clustersim.engine.script import EXCHANGE
from clustersim.engine.traffic import Family, traffic
from clustersim.model.kernel import Kernel
from clustersim.model.moe import COUNTS
from clustersim.model.operator import Awaited, Collective, Layer, OperatorStep, Started, Steps
from clustersim.model.sharding import TOKENS
from clustersim.parallel.job import Job
from clustersim.parallel.stages import Stage
from clustersim.preparation import Preparation

TENSOR, EXPERTS = ("tp", "etp"), (EXCHANGE,)
"""Groups whose collectives overlap kernels with `overlap.tp` and with `overlap.ep`."""


class Waited(NamedTuple):
    """A collective at the position where it is waited for."""

    collective: Collective
    overlapped: tuple[Kernel | Waited, ...]
    """Items that run meanwhile."""


class PassSeconds(NamedTuple):
    """Least seconds of a stage for one microbatch."""

    forward: float
    backward: float
    weights: float
    """Seconds of weight gradients, part of `backward`."""
    inputs: float
    """Seconds of the rest of `backward` if the two are separate passes, in which less overlaps collectives."""
    forward_exchanged: float
    """Seconds of expert exchanges in a forward pass that overlap another microbatch."""
    backward_exchanged: float
    """Seconds of expert exchanges in a backward pass that overlap another microbatch."""
    read: float
    """Seconds of kernels from the last operator with parameters to the end of the forward pass."""
    ready: float
    """Seconds of kernels from the start of the backward pass until that operator has its gradients."""
    forward_waits: float
    """Seconds of expert exchanges in a forward pass that overlaps no other microbatch; not in `forward`."""
    backward_waits: float
    """Seconds of expert exchanges in a backward pass that overlaps no other microbatch; not in `backward`."""


class LayerSteps(NamedTuple):
    """Kernels and collectives of a layer for one microbatch."""

    forward: Counter[Kernel | Waited]
    backward: Counter[Kernel | Waited]
    weights: Counter[Kernel | Waited]
    """Items of `backward` that compute weight gradients."""
    inputs: Counter[Kernel | Waited]
    """Other items of `backward`, if the two are separate passes."""
    read: Counter[Kernel]
    """Items of `forward` from the last operator with parameters on."""
    ready: Counter[Kernel]
    """Items of `backward` until that operator has its gradients."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Distinct kernels of both passes."""
        return tuple({item: None for part in self[:2] for item in part if isinstance(item, Kernel)})


class LayerTimes:
    """Least seconds of the passes of layers on one cluster."""

    def __init__(self, preparation: Preparation) -> None:
        self.preparation = preparation
        self._collectives: dict[tuple[object, ...], float] = {}
        self._layouts: dict[tuple[int, int], list[Ints]] = {}

    @staticmethod
    def steps(stage: Stage, layer: Layer) -> LayerSteps:
        """Return the number of each kernel and collective in the passes of a layer."""
        passes = (_waited(stage.steps(layer, letter)) for letter in "FBWI")
        forward, backward, weights, inputs = map(Counter, passes)
        last = max((place for place, op in enumerate(layer.operators) if op.parameters), default=len(layer.operators))
        read = Counter(_only_kernels(step for op in layer.operators[last:] for step in op.forward))
        ready = Counter(
            _only_kernels(i for op in layer.operators[last:] for i in (*op.backward_input, *op.backward_weight))
        )
        return LayerSteps(forward, backward, weights, inputs, read, ready)

    def seconds(self, job: Job, layer: LayerSteps, hidden: Collection[str] = ()) -> PassSeconds:
        """Return the least seconds of the passes of one layer. hidden: groups whose collectives some overlap may hide."""
        least = self._least(job, layer, hidden)
        forward, backward, weights, inputs, *ends = (math.fsum(n * least[i] for i, n in part.items()) for part in layer)
        left_out = EXCHANGE in hidden
        apart, exchanged, waits = left_out or job.parallelism.overlap.ep == "microbatch", [0.0, 0.0], [0.0, 0.0]
        for index, part in enumerate((layer.forward, layer.backward) if apart else ()):
            for item, n in part.items():
                if isinstance(item, Waited) and item.collective.group == EXCHANGE:
                    seconds = self._fastest_seconds(job, item.collective)
                    exchanged[index] += n * seconds
                    if not left_out:
                        waits[index] += n * max(0.0, seconds - math.fsum(least[i] for i in item.overlapped))
        return PassSeconds(forward, backward, weights, inputs, *exchanged, *ends, *waits)

    def _least(self, job: Job, layer: LayerSteps, hidden: Collection[str]) -> dict[Kernel | Waited, float]:
        """Return {item: least seconds that one execution adds}; of a collective what overlapped kernels leave, 0 if `hidden`."""
        known = self.preparation.seconds(job, layer.kernels)

        def least(item: Kernel | Waited) -> float:
            """Return the seconds that an item adds to a pass."""
            if isinstance(item, Kernel):
                return known[item]
            if item.collective.group in hidden:
                return 0.0
            return max(0.0, self._collective(job, item.collective) - math.fsum(map(least, item.overlapped)))

        return {item: least(item) for part in (layer.forward, layer.backward, layer.inputs) for item in part}

    def _collective(self, job: Job, call: Collective) -> float:
        """Return the seconds of a collective as `_fastest_seconds`, 0 if exchanges overlap another microbatch."""
        overlapped = call.group == EXCHANGE and job.parallelism.overlap.ep == "microbatch"
        return 0.0 if call.group not in _GROUPS or overlapped else self._fastest_seconds(job, call)

    def _fastest_seconds(self, job: Job, call: Collective) -> float:
        """Return the seconds of a collective on an idle fabric in the fastest of its groups, 0 if there is no bound."""
        kind = _GROUPS[call.group]
        n, apart = kind.ranks(job)
        algorithm = getattr(job.parallelism.algorithms, kind.algorithm)
        if call.group == COUNTS or call.op in MESSAGES:
            algorithm = NCCL  # counts of rows are gathered, which none of TOKENS does
        if algorithm not in (NCCL, *TOKENS) or n * apart > self.preparation.cluster.gpus:
            return 0.0
        group = Group(n, (n,), *((job.shares, job.router) if call.group == EXCHANGE else ()))
        key = n, apart, algorithm, group, call
        if key not in self._collectives:
            self._collectives[key] = min(self._timed(rows, algorithm, group, call) for rows in self._rows(n, apart))
        return self._collectives[key]

    def _rows(self, n: int, apart: int) -> Sequence[Ints]:
        """Return the GPUs (1, n) of the first group of n, `apart` from each other, for each distinct layout on nodes."""
        if (key := (n, apart)) not in self._layouts:
            topology = self.preparation.cluster
            room = topology.gpus // (n * apart) * n * apart
            rows = np.arange(room).reshape(-1, n, apart).swapaxes(1, 2).reshape(-1, n)
            node = topology.numbering.node_of(rows)
            types = topology.kind_of(rows) if topology.pools else rows[:, :0]
            first, _ = distinct_rows(np.concatenate((node - node[:, :1], types), axis=1))
            self._layouts[key] = [rows[[row]] for row in first]
        return self._layouts[key]

    def _timed(self, rows: Ints, algorithm: str, group: Group, call: Collective) -> float:
        """Return the seconds of a collective in a group that has the fabric to itself, planned as in a simulation."""
        topology = self.preparation.cluster
        group = group._replace(levels=levels(topology.numbering.node_of(rows), ()))
        [kind], _ = shapes(topology, rows, group.shares)
        carried = plan(topology, algorithm, [kind], group, call)
        family = Family(call.group, rows, group.levels, algorithm, shares=group.shares, router=group.router)
        phases = traffic(topology, family, call.op, carried.phases, carried.latency is None)
        seconds = topology.launch if carried.latency is None else carried.latency
        for phase in phases:
            seconds += phase.latency[0] * (carried.latency is None) + call.size / min(phase.bound[0], carried.rate)
        return float(seconds)


class _GroupKind(NamedTuple):
    """Groups whose collectives are waited for by passes."""

    ranks: Callable[[Job], tuple[int, int]]
    """Function from a job to (ranks of a group, distance of neighbours)."""
    algorithm: str
    """Field of `parallelism.algorithms`."""


def _inner(job: Job) -> int:
    """Return the ranks of cp's inner groups, which exchange by all-to-all; 1 without these groups."""
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


def _only_kernels(steps: Iterable[OperatorStep]) -> Iterator[Kernel]:
    return (step for step in steps if isinstance(step, Kernel))


def _waited(steps: Steps) -> Iterator[Kernel | Waited]:
    """Yield the kernel of each step, or the collective that is waited for there; nothing if it is only started."""
    started: dict[str, tuple[Collective, list[Kernel | Waited]]] = {}
    for place, step in enumerate(steps):
        item: Kernel | Waited | None = None
        if isinstance(step, Started):
            started[step.collective.group] = step.collective, []
        elif isinstance(step, Awaited):
            collective, overlapped = started.pop(step.group)
            item = Waited(collective, tuple(overlapped))
        elif isinstance(step, Collective):
            following = (later for later in steps[place + 1 :] if isinstance(later, Kernel))
            item = Waited(step, tuple(islice(following, step.over)))
        else:
            item = step
        if item is not None:
            for _, overlapped in started.values():
                overlapped.append(item)
            yield item
