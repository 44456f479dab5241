"""What data-parallel traffic adds to a step at least: what computation cannot hide, on an idle network.

Gradients that are reduced after the passes delay their norm by the whole reduction. Those that are reduced bucket by bucket
(`overlap.grad_reduce`) begin in the last backward pass of a stage, each when its bucket is full, one after the other. Parameters
that are gathered after the update delay the end of the step; those that the first forward pass waits for
(`overlap.param_gather`) delay that, each bucket where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.collectives.nccl.choose import choose, collective_seconds
from clustersim.collectives.nccl.shape import Shape, layout
from clustersim.collectives.plan import NCCL
from clustersim.engine.groups import holders
from clustersim.hardware.constants import BYTES
from clustersim.parallel.job import Job
from clustersim.parallel.mesh import Mesh
from clustersim.parallel.optimizer import bucket, copied, first_reads, last_ready, weight_bytes
from clustersim.parallel.stages import Stage
from clustersim.schedules.pipeline import Pipeline
from clustersim.topology.model import Topology

Elapsed = Callable[[Stage, str, Sequence[int]], list[float]]
"""Returns the least seconds that so many steps of a forward (F) or a backward pass (B) of a stage take, in ascending order."""


class Exposed(NamedTuple):
    """Least seconds by pipeline rank (pp,)."""

    before: Floats
    """That the first forward pass of a rank lasts longer than its kernels."""
    behind: Floats
    """From the last backward pass of a rank to reduced gradients; from its last pass where weight gradients are passes."""
    after: Floats
    """From the update to gathered parameters."""


class DataParallelSeconds:
    """What collectives among the ranks that hold the same parameters take at least, on one cluster."""

    def __init__(self, cluster: Topology) -> None:
        self.cluster = cluster
        self._shapes: dict[tuple[Mesh, int], Shape] = {}
        self._known: dict[tuple[Mesh, int, str, float], float] = {}
        self._ready: dict[tuple[int, bool, str], tuple[Stage, Sequence[tuple[int, int]]]] = {}

    def least(self, job: Job, expert: bool, op: str, size: float) -> float:
        """Return the seconds of a collective of so many bytes in the first such group, no matter how long its routes are.

        NCCL's choice for other groups is never faster.
        """
        mesh = job.expert_mesh if expert else job.mesh
        if (key := (mesh, job.pipeline.copies, op, size)) not in self._known:
            choice = choose(op, size, self._shape(mesh, job.pipeline), self.cluster.node)
            self._known[key] = collective_seconds(choice, size, self.cluster.node.nccl.launch)
        return self._known[key]

    def ready(self, stage: Stage, expert: bool, letter: str) -> Sequence[tuple[int, int]]:
        """Return after how many steps of a pass parameters are first read (F), or have their gradient (B), as a stage says."""
        if (key := (id(stage), expert, letter)) not in self._ready:
            found = stage.parameters_used(expert) if letter == "F" else stage.gradient_ready(expert)
            self._ready[key] = stage, found
        return self._ready[key][1]

    def _shape(self, mesh: Mesh, pipeline: Pipeline) -> Shape:
        if (key := (mesh, pipeline.copies)) not in self._shapes:
            self._shapes[key] = layout(self.cluster, np.sort(holders(mesh, pipeline)[0]))[0]
        return self._shapes[key]


def exposed(
    job: Job, part: Sequence[Stage], elapsed: Elapsed, seconds: DataParallelSeconds, splits: bool = False
) -> Exposed:
    """Return what data-parallel traffic adds to the step of a placed job, whose stages are `part`.

    splits: whether weight gradients are passes of their own, one of which is a rank's last. Nothing where it is not NCCL's, where
    parameters are sharded or the optimizer has several copies, or on nodes of several types: these are not bounded.
    """
    split = job.parallelism
    none = np.zeros(split.pp)
    kinds = [kind for _, kind in copied(job)]
    bounded = split.algorithms.dp == NCCL and not job.sharded and split.optimizer_instances == 1
    if not kinds or not bounded or seconds.cluster.pools:
        return Exposed(none, none, none)
    one = _Traffic(job, elapsed, seconds, splits)
    lanes = job.lanes(part)
    known: dict[tuple[int, ...], tuple[float, float, float]] = {}
    for lane in lanes:
        key = tuple(map(id, lane))
        if key not in known:
            known[key] = one.before(lane, kinds), one.behind(lane, kinds), one.after(lane, kinds)
    return Exposed(*np.array([known[tuple(map(id, lane))] for lane in lanes]).T)


class _Traffic(NamedTuple):
    """The traffic of one job."""

    job: Job
    elapsed: Elapsed
    seconds: DataParallelSeconds
    splits: bool

    def before(self, lane: Sequence[Stage], kinds: Sequence[bool]) -> float:
        """Return how much later the first forward pass of a rank ends than if all its parameters were there.

        It is one of its lowest stage, or where microbatches enter at both ends of any.
        """
        if not (self.job.parallelism.zero and self.job.parallelism.overlap.param_gather):
            return 0.0
        return min(self._late(stage, kinds) for stage in lane[: self.job.pipeline.copies])

    def _late(self, stage: Stage, kinds: Sequence[bool]) -> float:
        """Return how much later a first forward pass of a stage ends than if all its parameters were there."""
        late = 0.0
        for kind in kinds:
            buckets = first_reads(self.seconds.ready(stage, kind, "F"), bucket(self.job))
            there = accumulate(self._gather(kind, one.parameters) for one in buckets)
            read = self.elapsed(stage, "F", [one.position for one in buckets])
            late = max(late, *(end - begin for begin, end in zip(read, there, strict=True)))
        return late

    def behind(self, lane: Sequence[Stage], kinds: Sequence[bool]) -> float:
        """Return how much later than the last backward pass of a rank its gradients are reduced.

        A pass of weight gradients yields all of a stage, of which nothing is reduced before it ends.
        """
        if not self.job.parallelism.overlap.grad_reduce:
            return sum(self._reduce(kind, stage.held(kind)) for kind in kinds for stage in lane)
        if self.splits:
            return min(max(self._reduce(kind, stage.held(kind)) for kind in kinds) for stage in lane)
        late = 0.0
        for kind in kinds:
            buckets = last_ready(self.seconds.ready(lane[0], kind, "B"), bucket(self.job))
            left = [*accumulate(self._reduce(kind, one.parameters) for one in reversed(buckets))][::-1]
            *full, end = self.elapsed(lane[0], "B", [*(one.position for one in buckets), len(lane[0].backward)])
            late = max(late, *(begin + rest - end for begin, rest in zip(full, left, strict=True)))
        return late

    def after(self, lane: Sequence[Stage], kinds: Sequence[bool]) -> float:
        """Return how long the parameters of a rank are gathered after its update."""
        if not self.job.parallelism.zero or self.job.parallelism.overlap.param_gather:
            return 0.0
        return sum(self._gather(kind, stage.held(kind)) for kind in kinds for stage in lane)

    def _reduce(self, kind: bool, parameters: float) -> float:
        op = "reduce_scatter" if self.job.parallelism.zero else "all_reduce"
        size = parameters * BYTES[self.job.training.gradients]
        return self.seconds.least(self.job, kind, op, size) if size else 0.0

    def _gather(self, kind: bool, parameters: float) -> float:
        size = parameters * weight_bytes(self.job)
        return self.seconds.least(self.job, kind, "all_gather", size) if size else 0.0
