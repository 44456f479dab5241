"""The distinct kernels of a job, collected from its layers, so that they are forecast before anything is scheduled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clustersim.model.kernel import Kernel
from clustersim.model.operator import Awaited, Collective, Layer, Started
from clustersim.parallel.fsdp import copies
from clustersim.parallel.job import Job
from clustersim.parallel.optimizer import update
from clustersim.parallel.stages import Stage, stages


def distinct_kernels(job: Job, parts: Sequence[Sequence[Stage]]) -> list[Kernel]:
    """Return the distinct kernels of a placed job. `parts` holds all stages for each position in the ep group."""
    layers = {id(layer): layer for part in parts for stage in part for layer, _ in stage.layers}
    found = dict.fromkeys(kernel for layer in layers.values() for kernel in _of_layer(layer))
    kinds = {id(stage): stage for part in parts for stage in part} if job.sharded else {}
    found |= dict.fromkeys(kernel for stage in kinds.values() for kernel in copies(job, stage))
    lanes = {tuple(map(id, own)): own for part in parts for own in job.lanes(part)}
    updates = [update(job, sum(s.parameters for s in own), sum(s.experts for s in own)) for own in lanes.values()]
    return list(found | dict.fromkeys(kernel for kernels in updates for kernel in kernels))


def _of_layer(layer: Layer) -> Iterator[Kernel]:
    for op in layer.operators:
        steps = (*op.forward, *op.backward_input, *op.backward_weight)
        yield from (step for step in steps if isinstance(step, Kernel))


class KernelRow(NamedTuple):
    """One kernel or exchange of one operator, with its number of `launches` per step over all stages of one tp rank."""

    layer: str
    operator: str
    direction: str
    step: Kernel | Collective
    launches: int

    @property
    def shape(self) -> str:
        """Shape as text: `batch×m×n×k` for a GEMM, `rows×columns` for other kernels."""
        if isinstance(self.step, Collective):
            return self.step.group
        k = self.step
        if k.kind == "flash_attention":
            return f"{k.batch}×{k.heads}/{k.kv_heads}×{k.m}×{k.n}×{k.k}"
        return "×".join(str(n) for n in ((k.batch, k.m, k.n, k.k) if k.k else (k.m, k.n)))

    @property
    def flop(self) -> float:
        """FLOP of one launch."""
        return self.step.flop if isinstance(self.step, Kernel) else 0.0

    @property
    def bytes(self) -> float:
        """Bytes that one launch moves in memory, or the size of the exchange."""
        return self.step.bytes if isinstance(self.step, Kernel) else self.step.size


def rows(job: Job, stage: int | None = None) -> list[KernelRow]:
    """Return the rows of a placed job, equal ones merged. `stage` selects one global stage; by default all.

    With uneven routing, the rows are those of the rank with the most popular experts.
    """
    chosen = [one for index, one in enumerate(stages(job)) if stage in (None, index)]
    merged: dict[tuple[str, str, str, Kernel | Collective], int] = {}
    for one in chosen:
        for row in _stage_rows(job, one):
            merged[row[:4]] = merged.get(row[:4], 0) + row.launches
    found = [KernelRow(*key, launches) for key, launches in merged.items()]
    return sorted(found, key=lambda row: row.layer == "optimizer")


def _stage_rows(job: Job, stage: Stage) -> Iterator[KernelRow]:
    for layer, count in stage.layers:
        yield from _layer_rows(stage, layer, count * job.microbatches)
    for kernel in update(job, stage.parameters, stage.experts):
        yield KernelRow("optimizer", job.training.optimizer, "update", kernel, 1)


def _layer_rows(stage: Stage, layer: Layer, count: int) -> Iterator[KernelRow]:
    again = stage.recomputed(layer)
    for place, op in enumerate(layer.operators):
        parts = (
            ("forward", op.forward),
            ("recompute", again.get(place, ())),
            ("backward", (*op.backward_input, *op.backward_weight)),
        )
        for direction, steps in parts:
            own = (
                step.collective if isinstance(step, Started) else step
                for step in steps
                if not isinstance(step, Awaited)
            )
            yield from (KernelRow(layer.name, op.name, direction, step, count) for step in own)
