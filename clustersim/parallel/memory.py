"""Memory of one GPU in bytes, by kind.

Parameters, gradients and optimizer state follow from the parameter count (18 bytes per parameter for 16-bit Adam with fp32
gradients: 2 + 4 + 12; Rajbhandari et al. 2020, section 3.1, with 4-byte gradients as Megatron accumulates them). stages.py has
the activations of a pass, engine/memory.py the microbatches in flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from clustersim.config.evidence import Declared
from clustersim.config.workload import DeepSpeed
from clustersim.hardware.constants import BYTES
from clustersim.hardware.formats import format_of
from clustersim.model.kernel import Kernel
from clustersim.model.moe import ROUTER
from clustersim.model.operator import Layer, Operator
from clustersim.parallel.deepspeed import moments, persistent
from clustersim.parallel.fsdp import BLOCKS, spread
from clustersim.parallel.job import Job
from clustersim.parallel.optimizer import bucket, gradients_leave, main_bytes, state_bytes, weight_bytes
from clustersim.parallel.stages import Stage

FRAMEWORK: Annotated[float, Declared("B")] = 1.5 * 2**30
"""Bytes outside all tensors: CUDA context and loaded kernels (about 0.5 GiB), cuBLAS workspaces (32 MiB per stream on Hopper,
docs.pytorch.org CUDA semantics) and NCCL's buffers (NCCL_BUFFSIZE, 4 MiB per channel, over three communicators). More
communicators and messages take more; report/verdicts.py accounts for that by the share of published runs at a memory level that
succeeded."""


class Memory(NamedTuple):
    """Bytes on one GPU, by kind. They add up to `total`."""

    parameters: float
    """Bytes of the rank's parameters."""
    gradients: float
    """Bytes of accumulated gradients."""
    optimizer: float
    """Bytes of optimizer state, master weights included."""
    activations: float
    """Bytes of activations saved for backward passes."""
    workspace: float
    """Bytes of the largest temporary buffers of a pass."""
    framework: float
    """Bytes outside tensors: context, library workspaces, NCCL's buffers."""
    gathered: float = 0.0
    """Bytes of sharded parameters while gathered, and of their gradients until they are reduced."""
    buffers: float = 0.0
    """Bytes that the framework keeps besides the model's tensors: unread gradients, workspaces of libraries."""

    @property
    def total(self) -> float:
        """Sum of all kinds, in bytes."""
        return math.fsum(self)


def at_rest(job: Job, stages: Sequence[Stage]) -> Memory:
    """Return the bytes on the GPU of the rank with `stages` between two steps, when there are no activations and no workspace.

    With zero: 2, `gradients` has only the rank's share; the function `gradients` also returns what a stage adds until the
    reduction. With zero: 3, `parameters` has the rank's shard, in the type in which the optimizer updates it.
    """
    parameters, shard = float(sum(stage.parameters for stage in stages)) * weight_bytes(job), shard_size(job, stages)
    if job.sharded:
        parameters = shard_bytes(job) * shard
    frozen = 0.0 if job.training.offload.parameters else frozen_bytes(job, stages)
    return Memory(
        parameters=parameters + frozen,
        gradients=math.fsum(gradients(job, stage)[0] for stage in stages),
        optimizer=shard * state_bytes(job) * (1 - job.training.offload.optimizer_states),
        activations=0.0,
        workspace=0.0,
        framework=FRAMEWORK,
        buffers=buffers(job, stages),
    )


def frozen_bytes(job: Job, stages: Sequence[Stage]) -> float:
    """Return the bytes of the frozen weights of the rank with `stages`: its shard of them if parameters are sharded."""
    counts = (n / (job.shards(kind == 1) if job.sharded else 1) for s in stages for kind, n in enumerate(s.frozen))
    return weight_bytes(job) * math.fsum(counts)


def shard_bytes(job: Job) -> float:
    """Return the bytes per parameter of a shard on its GPU. The part that the host updates has the type in which it is gathered,
    the rest has the type in which it is updated. Return 0 if parameters are on the host."""
    offload = job.training.offload
    if offload.parameters:
        return 0.0
    return (1 - offload.optimizer_states) * main_bytes(job) + offload.optimizer_states * weight_bytes(job)


def buffers(job: Job, stages: Sequence[Stage]) -> float:
    """Return the bytes that a framework keeps besides the model's tensors on the rank with `stages`; 0 if the job names none."""
    if not job.training.framework:
        return 0.0
    kept = job.keeps
    layers = {id(layer): layer for stage in stages for layer, _ in stage.layers}.values()  # stages share layer objects
    relevant = layers if kept.dummy_gradients.value or kept.grouped_workspaces.value else ()
    products = [product for layer in relevant for op in layer.operators for product in _weight_gradients(op)]
    shapes = {(product.m, product.n) for product in products} if kept.dummy_gradients.value else set()
    dummies = weight_bytes(job) * sum(rows * columns for rows, columns in shapes)
    grouped = any(product.kind == "grouped_gemm" for product in products)
    copied = (
        kept.flat_gathers if job.parallelism.zero else kept.reducer_buckets
    )  # a sharded optimizer reduces gradients itself
    if copied.value and job.copies(False) > 1:
        dummies += weight_bytes(job) * sum(stage.parameters for stage in stages)
    copies = narrow_weights(job, stages) if kept.narrow_weights.value else 0.0
    return dummies + copies + kept.workspaces.value + (kept.grouped_workspaces.value if grouped else 0.0)


def narrow_weights(job: Job, stages: Sequence[Stage]) -> float:
    """Return the bytes of weights stored in the narrow format of their GEMMs on the rank with `stages`, row- and column-wise.

    0 for GEMMs in 16 bits or more, sharded parameters, and adapters of quantized weights.
    """
    narrow, lora = format_of(job.training.precision, job.training.fp8_scaling), job.training.lora
    if narrow is None or job.sharded or (lora and lora.base):
        return 0.0
    layers = ((layer, count) for stage in stages for layer, count in stage.layers)
    products = ((gemm, count) for layer, count in layers for op in layer.operators for gemm in _products(op))
    weights = sum(count * gemm.batch * gemm.m * gemm.n for gemm, count in products if gemm.dtype == narrow.product)
    return 2 * narrow.size * weights


def _products(op: Operator) -> Iterator[Kernel]:
    """Yield one GEMM per weight of an operator's linear layer, with m × n the shape of the weight."""
    steps = dict.fromkeys(op.backward_input) if op.frozen else ()  # chunks of one GEMM are equal
    yield from (step._replace(m=step.k) for step in steps if isinstance(step, Kernel) and step.op == "dgrad")
    yield from _weight_gradients(op)


def _weight_gradients(op: Operator) -> Iterator[Kernel]:
    """Yield the weight-gradient GEMMs of an operator, which have the shapes m × n of its weights; none for a router."""
    return (kernel for kernel in op.backward_weight if kernel.op == "wgrad" and op.name != ROUTER)


def gradients(job: Job, stage: Stage) -> tuple[float, float]:
    """Return (bytes kept all the time, bytes kept only from first to last backward pass of a step) of a stage's gradients.

    They are (all, 0) with zero: 0 or 1. With zero: 2, the rank's share, and the rest if microbatches are summed before reduction
    (Rajbhandari et al. 2020, section 5.2), else two buckets, one being filled and one reduced or moved to the host (DeepSpeed,
    stage_1_and_2.py: clear_grad_attribute). With zero: 3, the rank's shard, and all gradients if they are summed first.
    """
    width = BYTES[job.training.gradients]
    all_bytes = stage.parameters * width
    stays = 1 - job.training.offload.optimizer_states if gradients_leave(job) else 1.0
    if job.sharded:
        return stays * main_bytes(job) * shard_size(job, [stage]), all_bytes if job.parallelism.no_sync else 0.0
    if job.parallelism.zero < 2:
        return all_bytes, 0.0
    share = width * shard_size(job, [stage])
    once = job.parallelism.reduce_every_microbatch or job.microbatches == 1
    return stays * share, min(2 * bucket(job) * width if once else all_bytes, all_bytes - stays * share)


def shard_size(job: Job, stages: Sequence[Stage]) -> float:
    """Return the number of trained parameters of the rank with `stages` that its optimizer updates: from zero: 1 on, its share of
    those that other ranks have too; a fraction if they do not divide evenly."""
    return math.fsum(stage.held(kind) / job.shards(kind) for stage in stages for kind in (False, True))


def gathered(job: Job, stage: Stage, backward: bool) -> float:
    """Return the peak bytes, during a pass of a stage, of gathered parameters and of gradients that are not reduced yet.

    Gathered are the root and the largest block, once for each copy in use or in transit; all blocks if they stay after the
    forward pass. In a backward pass (`backward`) also the gradients of the root and a block, and the buffers of reductions.
    Return 0 if parameters are not sharded.
    """
    if not job.sharded:
        return 0.0
    if job.parallelism.zero3:
        return _gathered_by_buckets(job, stage, job.parallelism.zero3, backward)
    split, setting = job.parallelism, job.parallelism.fsdp
    blocks = [(_gathers(job, stage, layer), count) for layer, count in stage.layers if layer.name in BLOCKS]
    root = math.fsum(_gathers(job, stage, layer) for layer, _ in stage.layers if layer.name not in BLOCKS)
    count, largest = sum(count for _, count in blocks), max((size for size, _ in blocks), default=0.0)
    ahead = setting.backward_prefetch if backward else setting.forward_prefetch
    parameters = root + min(count, 1 + ahead) * largest
    if not split.reshard_after_forward:
        parameters = root + math.fsum(size * count for size, count in blocks)
    gradient_bytes = 0.0
    if backward and not split.no_sync:
        flying = min(count, setting.reduce_in_flight or 1)
        gradient_bytes = (root + largest) * weight_bytes(job) + flying * largest * BYTES[job.training.gradients]
    return parameters * weight_bytes(job) + gradient_bytes


def _gathered_by_buckets(job: Job, stage: Stage, setting: DeepSpeed, backward: bool) -> float:
    """Return the bytes of `gathered` for DeepSpeed's ZeRO-3: small weights stay, and so does a buffer of one bucket of gradients.

    In a backward pass (`backward`) also the gradients of a module, and the partitions of a bucket in the order of the ranks
    (runtime/comm/coalesced_collectives.py).
    """
    events = moments(stage, setting, "B" if backward else "F")
    wire = BYTES[job.training.gradients]
    parameter_bytes = (max(event.live for event in events) + persistent(stage, setting)) * weight_bytes(job)
    gradient_bytes = max(stage.owned(op) for layer, _ in stage.layers for op in layer.operators) * weight_bytes(job)
    largest = max((event.parameters for event in events if event.what == "reduce"), default=0)
    return parameter_bytes + setting.reduce_bucket_size * wire + (gradient_bytes + largest * wire if backward else 0.0)


def _gathers(job: Job, stage: Stage, layer: Layer) -> float:
    """Return the number of trained and frozen weights of a layer that are sharded, so that they are gathered before it runs."""
    pairs = zip(stage.layer_parameters(layer), stage.layer_frozen(layer), strict=True)
    return float(spread(job, *(trained + frozen for trained, frozen in pairs)))


def beside(job: Job, stage: Stage) -> tuple[float, float]:
    """Return the additional saved and temporary bytes of a backward pass that overlaps a forward pass; (0, 0) without overlap.

    Layer by layer, the backward pass frees what the forward pass saves, so that there is one additional layer (Megatron-Core,
    models/common/model_chunk_schedule_plan.py: the first layer of one chunk overlaps the last of the other, which is freed after
    it). Schedules that pair passes themselves count both in full.
    """
    if job.parallelism.overlap.ep != "microbatch" or job.pipeline.paired:
        return 0.0, 0.0
    return max((layer.saved for layer, _ in stage.layers), default=0.0), stage.forward_peak[1]
