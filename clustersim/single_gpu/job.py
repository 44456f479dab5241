"""A workload of ours on one GPU as a graph: the kernels of its layers, without any split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clustersim.model.kernel import Kernel
from clustersim.model.operator import Layer
from clustersim.parallel.job import Job
from clustersim.parallel.stages import stages
from clustersim.single_gpu.memory import of_job
from clustersim.single_gpu.model import OUTSIDE, Graph, OperatorCall, PassPhase

ALONE: Mapping[str, object] = {
    "parallelism.tp": 1,
    "parallelism.pp": 1,
    "parallelism.dp": 1,
    "parallelism.vpp": 1,
    "parallelism.zero": 0,
    "parallelism.sequence_parallel": False,
    "parallelism.schedule": "1f1b",
    "parallelism.overlap.grad_reduce": False,
    "parallelism.overlap.param_gather": False,
}
"""What undoes any split of a workload."""
LOSS = "cross_entropy"


def graph(job: Job, training: bool = False) -> Graph:
    """Return one microbatch of a job: forward, and in training loss and backward; the loss is left out of inference."""
    placed = job.place(1, 1)
    [stage] = stages(placed)
    forward = [node for layer, count in stage.layers for node in list(_forward(layer, training)) * count]
    backward = [node for layer, count in reversed(stage.layers) for node in list(_backward(layer)) * count]
    nodes = (*forward, *(backward if training else ()))
    return Graph(job.name, nodes, stage.parameters, memory=of_job(placed, stage, training))


def _forward(layer: Layer, training: bool) -> Iterator[OperatorCall]:
    for op in layer.operators:
        if training or op.name != LOSS:
            yield from (_node(f"{layer.name}.{op.name}", "forward", k) for k in op.forward if isinstance(k, Kernel))


def _backward(layer: Layer) -> Iterator[OperatorCall]:
    for op in reversed(layer.operators):
        steps = (*op.backward_input, *op.backward_weight)
        yield from (_node(f"{layer.name}.{op.name}", "backward", k) for k in steps if isinstance(k, Kernel))


def _node(place: str, phase: PassPhase, kernel: Kernel) -> OperatorCall:
    return OperatorCall(place, kernel.op, phase, (kernel,), ((OUTSIDE, kernel.bytes),), 0.0)
