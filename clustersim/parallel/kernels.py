"""The distinct kernels of a job, from its layers: what has to be forecast before anything is scheduled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clustersim.model.kernel import Kernel
from clustersim.model.operator import Layer
from clustersim.parallel.fsdp import copies
from clustersim.parallel.job import Job
from clustersim.parallel.optimizer import update
from clustersim.parallel.stages import Stage


def distinct_kernels(job: Job, parts: Sequence[Sequence[Stage]]) -> list[Kernel]:
    """Return the distinct kernels of a placed job; parts: all stages, by position in the ep group."""
    layers = {id(layer): layer for part in parts for stage in part for layer, _ in stage.layers}
    found = dict.fromkeys(kernel for layer in layers.values() for kernel in _of_layer(layer))
    kinds = {id(stage): stage for part in parts for stage in part} if job.sharded else {}
    found |= dict.fromkeys(kernel for stage in kinds.values() for kernel in copies(job, stage))
    lanes = {tuple(map(id, own)): own for part in parts for own in job.lanes(part)}
    return list(found | dict.fromkeys(kernel for own in lanes.values() for kernel in _of_update(job, own)))


def _of_layer(layer: Layer) -> Iterator[Kernel]:
    for op in layer.operators:
        steps = (*op.forward, *op.backward_input, *op.backward_weight)
        yield from (step for step in steps if isinstance(step, Kernel))


def _of_update(job: Job, own: Sequence[Stage]) -> tuple[Kernel, ...]:
    return update(job, sum(stage.parameters for stage in own), sum(stage.experts for stage in own))
