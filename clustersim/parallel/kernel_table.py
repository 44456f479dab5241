"""The kernels of a job, collected from its layers: the distinct ones to forecast, and a table with their launches per step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clustersim.model.kernel import Kernel
from clustersim.model.operator import Awaited, Collective, Layer, Started
from clustersim.parallel.fsdp import copies
from clustersim.parallel.job import Job
from clustersim.parallel.optimizer import update
from clustersim.parallel.stages import Stage, stages


def distinct_kernels(job: Job, parts: Sequence[Sequence[Stage]]) -> dict[Kernel, None]:
    """Return the distinct kernels of one step of a placed job, as keys: passes, copies of sharded parameters, weight updates.

    parts: all global stages as run by the rank at each position of the ep group.
    """
    layers = {id(layer): layer for part in parts for stage in part for layer, _ in stage.layers}
    kernels = dict[Kernel, None]()
    for layer in layers.values():
        kernels |= layer.kernels
    distinct_stages = {id(stage): stage for part in parts for stage in part} if job.sharded else {}
    kernels |= dict.fromkeys(kernel for stage in distinct_stages.values() for kernel in copies(job, stage))
    lanes = {tuple(map(id, lane)): lane for part in parts for lane in job.lanes(part)}
    updates = [update(job, sum(s.parameters for s in lane), sum(s.experts for s in lane)) for lane in lanes.values()]
    return kernels | dict.fromkeys(kernel for lane_update in updates for kernel in lane_update)


class KernelRow(NamedTuple):
    """One kernel or collective of one operator, with its number of launches."""

    layer: str
    """Name of the layer, or `optimizer`."""
    operator: str
    """Name of the operator in the layer, or of the optimizer."""
    direction: str
    """Part of the step: forward, recompute, backward, or update."""
    step: Kernel | Collective
    """The kernel or collective."""
    launches: int
    """Number of launches per step on one tp rank, summed over the stages of the table."""

    @property
    def shape(self) -> str:
        """Shape as text: `batch×m×n×k` for a GEMM, `rows×columns` for other kernels, the rank family of a collective."""
        if isinstance(self.step, Collective):
            return self.step.group
        k = self.step
        if k.kind == "flash_attention":
            return f"{k.batch}×{k.heads}/{k.kv_heads}×{k.m}×{k.n}×{k.k}"
        return "×".join(str(n) for n in ((k.batch, k.m, k.n, k.k) if k.k else (k.m, k.n)))

    @property
    def flop(self) -> float:
        """FLOP of one launch; 0 for a collective."""
        return self.step.flop if isinstance(self.step, Kernel) else 0.0

    @property
    def bytes(self) -> float:
        """Bytes that one launch of a kernel moves in GPU memory, or the size of a collective."""
        return self.step.bytes if isinstance(self.step, Kernel) else self.step.size


def rows(job: Job, stage: int | None = None) -> list[KernelRow]:
    """Return the kernel table of a placed job, in run order with the optimizer last. Equal rows are merged.

    stage: index of one global stage; None: all stages; an index beyond the last has no rows. With uneven routing, the rows are
    those of the rank with the most popular experts.
    """
    merged: dict[tuple[str, str, str, Kernel | Collective], int] = {}
    for content in (content for index, content in enumerate(stages(job)) if stage in (None, index)):
        for row in _stage_rows(job, content):
            merged[row[:4]] = merged.get(row[:4], 0) + row.launches
    table = [KernelRow(*key, launches) for key, launches in merged.items()]
    return sorted(table, key=lambda row: row.layer == "optimizer")


def _stage_rows(job: Job, stage: Stage) -> Iterator[KernelRow]:
    """Yield the rows of one stage for all microbatches of a step, and of the update of its weights."""
    for layer, count in stage.layers:
        yield from _layer_rows(stage, layer, count * job.microbatches)
    for kernel in update(job, stage.parameters, stage.experts):
        yield KernelRow("optimizer", job.training.optimizer, "update", kernel, 1)


def _layer_rows(stage: Stage, layer: Layer, count: int) -> Iterator[KernelRow]:
    """Yield the rows of one layer of a stage, each with `count` launches. Waits for collectives are left out."""
    recomputed = stage.recomputed(layer)
    for index, op in enumerate(layer.operators):
        parts = (
            ("forward", op.forward),
            ("recompute", recomputed.get(index, ())),
            ("backward", (*op.backward_input, *op.backward_weight)),
        )
        for direction, steps in parts:
            launched = (
                step.collective if isinstance(step, Started) else step
                for step in steps
                if not isinstance(step, Awaited)
            )
            yield from (KernelRow(layer.name, op.name, direction, step, count) for step in launched)
