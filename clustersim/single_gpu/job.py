"""A workload on one GPU as a graph: the kernels of its layers, without parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from clustersim.hardware.constants import BYTES
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Layer, Steps
from clustersim.parallel.job import Job
from clustersim.parallel.stages import stages
from clustersim.single_gpu.memory import job_memory
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
"""Overrides that remove all parallelism from a workload."""
LOSS = "cross_entropy"
VIEWS: Mapping[str, int] = {"linear": 3, "bmm": 6}
"""Number of view calls around a GEMM, as transformers makes them: a linear layer flattens rows, transposes weights and restores
its result; attention's products split, permute and merge heads."""


LibraryKernels = Callable[[str, Kernel], Iterable[Kernel]]
"""Function (operator name, kernel) -> kernels that a library launches instead."""


def unchanged(op: str, kernel: Kernel) -> Iterable[Kernel]:
    """Return the kernel unchanged."""
    return (kernel,)


def graph(job: Job, training: bool = False, logits: bool = True, variant: LibraryKernels = unchanged) -> Graph:
    """Return the graph of one microbatch of a job: the forward pass, and in training the loss and the backward pass.

    `logits` is False for a model without a language-model head, which ends with its last norm. `variant` replaces each kernel by
    those of a library.
    """
    placed = job.place(1, 1)
    [complete] = stages(placed)
    stage = complete
    if not logits:  # the final norm is all that is left of the head
        *others, (head, _) = complete.layers
        kept = replace(head, operators=tuple(op for op in head.operators if op.name == "final_norm"))
        stage = replace(complete, layers=(*others, (kept, 1)), reused=0)
    layers = [layer for layer, count in stage.layers for _ in range(count)]
    nodes = _forward(layers, training, "_norm" if job.model.norm_position == "post" else "_residual", variant)
    nodes += list(_backward(layers, variant)) if training else []
    return Graph(job.name, tuple(nodes), stage.parameters, memory=job_memory(placed, stage, training))


def _forward(layers: Sequence[Layer], training: bool, end: str, variant: LibraryKernels) -> list[OperatorCall]:
    """Return the calls of a forward pass. Each reads the output of the previous one.

    Sums and products of two tensors also read the input of their operator. A residual's sum reads the input of its half of the
    block, which is the output of the last operator whose name ends with `end`.
    """
    nodes: list[OperatorCall] = []
    half = OUTSIDE
    for place, op in ((layer.name, op) for layer in layers for op in layer.operators if training or op.name != LOSS):
        first = half if op.name.endswith("_residual") else len(nodes) - 1
        for kernel in _kernels(op.name, op.forward, variant):
            sources = {len(nodes) - 1, first} if kernel.op in ("add", "mul") else {len(nodes) - 1}
            reads = tuple((source, nodes[source].output) for source in sorted(sources) if source != OUTSIDE)
            nodes += _calls(f"{place}.{op.name}", "forward", kernel, reads)
        if op.name.endswith(end) or place == "embedding":
            half = len(nodes) - 1
    return nodes


def _backward(layers: Sequence[Layer], variant: LibraryKernels) -> Iterator[OperatorCall]:
    """Yield the calls of a backward pass. A weight's gradient is added to an existing one."""
    for layer in reversed(layers):
        for op in reversed(layer.operators):
            for kernel in _kernels(op.name, (*op.backward_input, *op.backward_weight), variant):
                phase: PassPhase = "accumulate" if kernel.op == "accumulate" else "backward"
                yield from _calls(f"{layer.name}.{op.name}", phase, kernel, ())


def _kernels(op: str, steps: Steps, variant: LibraryKernels) -> Iterator[Kernel]:
    return (kernel for step in steps if isinstance(step, Kernel) for kernel in variant(op, step))


def _calls(
    place: str, phase: PassPhase, kernel: Kernel, reads: tuple[tuple[int, float], ...]
) -> tuple[OperatorCall, ...]:
    """Return the call that launches a kernel, preceded by the view calls of its operands and result."""
    view = OperatorCall(place, "view", phase, (), (), 0.0)
    left = kernel.batch * kernel.m * kernel.n * BYTES[kernel.dtype]
    return (*[view] * VIEWS.get(kernel.kind, 0), OperatorCall(place, kernel.op, phase, (kernel,), reads, left))
