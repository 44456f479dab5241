"""Offloading: what is kept in the hosts' memory, what is copied there and back, and what CPUs update.

DeepSpeed's ZeRO-Offload and ZeRO-Infinity (arXiv 2101.06840, 2104.07857), Megatron-Core's HybridDeviceOptimizer and Transformer
Engine's offload of activations, PyTorch's CPUOffloadPolicy: the same copies by other names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated

import numpy as np

from clustersim.arrays import Ints
from clustersim.config.evidence import Declared
from clustersim.errors import OutOfMemoryError
from clustersim.hardware.constants import BYTES
from clustersim.model.operator import Collective, Layer
from clustersim.parallel.fsdp import BLOCKS
from clustersim.parallel.job import Job
from clustersim.parallel.optimizer import gradients_leave, main_bytes, moment_bytes, weight_bytes
from clustersim.parallel.stages import Stage
from clustersim.topology.host_links import fullest_host
from clustersim.topology.model import Topology

OUT, INTO = "d2h", "h2d"
"""Task families of the copies during passes: gradients to the host, and parameters from the host."""
SAVE, RELOAD = "save", "reload"
"""Task families of the copies of activations to the host and back."""
UPDATE_OUT, UPDATE_INTO, CPU = "update_d2h", "update_h2d", "cpu"
"""Task families of the update: gradients to the host, updated weights back, and the CPU's work in between."""
WAYS = {OUT: "up", SAVE: "up", UPDATE_OUT: "up", INTO: "down", RELOAD: "down", UPDATE_INTO: "down", CPU: "memory"}
"""Link direction of a GPU that each family uses: to the host, from the host, or only the host's memory."""
EAGER: Annotated[float, Declared(chosen_on="DeepSpeed's own 5 to 7 times")] = 6.0
"""Bytes that PyTorch's own Adam moves on a CPU, relative to one fused pass (DeepSpeed, ops/adam/cpu_adam.py)."""


def offloads(job: Job) -> bool:
    """Return whether a job keeps any state or activations on its hosts."""
    own = job.training.offload
    return bool(own.optimizer_states or own.parameters or own.activations)


def host_update(job: Job, stages: Sequence[Stage], parameters: int, experts: int) -> Iterator[tuple[Collective, str]]:
    """Yield the parts of a rank's update on its host, each with the family that it waits for ("": none).

    The parts are remaining gradients, the optimizer's reads and writes of host memory, and weights back, for the whole rank or
    block by block. parameters, experts: parameters of the rank with these stages, and how many of them are in spread experts.
    """
    setting, weight, main = job.training.offload, weight_bytes(job), main_bytes(job)
    held = {False: parameters - experts, True: experts}
    own = {expert: setting.optimizer_states * count / job.shards(expert) for expert, count in held.items()}
    total, leave = math.fsum(own.values()), gradients_leave(job)
    each = 2 * moment_bytes(job) + 3 * main
    each += 2 * main if job.training.clip_gradients else 0  # clipping scales gradients
    each += main + weight if weight < main and not setting.parameters else 0
    often = EAGER if setting.update == "eager" else 1.0
    out = math.fsum(count * main for expert, count in own.items() if not leave or job.shards(expert) == 1)
    parts = sum(count for stage in stages for _, count in stage.layers) if setting.overlap else 1
    for _ in range(parts if total else 0):
        if out:
            yield Collective(UPDATE_OUT, "gradients", out / parts), ""
        yield Collective(CPU, "update", total * each * often / parts), UPDATE_OUT if out else ""
        if not setting.parameters:
            yield Collective(UPDATE_INTO, "weights", total * weight / parts), CPU


def leaving(job: Job, size: float, expert: bool) -> float:
    """Return the bytes of reduced gradients that a rank copies to its host from a bucket of `size` bytes; 0 if they stay.
    Gradients are widened on the GPU (DeepSpeed, runtime/zero/stage_1_and_2.py:
    async_inplace_copy_grad_to_fp32_buffer_from_gpu)."""
    wide = main_bytes(job) / BYTES[job.training.gradients]
    return job.training.offload.optimizer_states * wide * size / job.shards(expert) if gradients_leave(job) else 0.0


def moved(job: Job, stage: Stage, layer: Layer) -> float:
    """Return the bytes of activations of a block that are copied to the host after its forward pass."""
    return job.training.offload.activations * stage.saved(layer) if layer.name in BLOCKS else 0.0


def block_copies(job: Job, stage: Stage, letter: str) -> Iterator[tuple[int, Collective | tuple[str, None, int]]]:
    """Yield (n, copy or wait) for a pass of a stage: the item follows the first n of its steps.

    After a block its activations are copied out, once the previous block's copy has ended. Before a block of a backward pass its
    activations must be back, and the copy of the next block's starts. A wait covers all copies of a family except the last few.
    """
    position, found = 0, list[tuple[int, float]]()
    for layer, steps in stage.passes(letter) if job.training.offload.activations else ():
        begin, position = position, position + len(steps)
        if size := moved(job, stage, layer):
            found.append((position if letter == "F" else begin, size))
    for i, (place, size) in enumerate(found):
        if letter == "F":
            yield place, (SAVE, None, 0)
            yield place, Collective(SAVE, "activations", size)
            continue
        yield from ((place, Collective(RELOAD, "activations", own)) for _, own in found[i + (i > 0) : i + 2])
        yield place, (RELOAD, None, int(i + 1 < len(found)))


def activations_moved(job: Job, stage: Stage) -> tuple[float, float]:
    """Return bytes of activations per microbatch: on the host between passes, and on the GPU for the two blocks in use."""
    if not job.training.offload.activations:
        return 0.0, 0.0
    sizes = [(moved(job, stage, layer), count) for layer, count in stage.layers]
    total = math.fsum(size * count for size, count in sizes)
    return total, min(total, 2 * max((size for size, _ in sizes), default=0.0))


def kept_on_gpu(job: Job, stage: Stage) -> tuple[float, float, float, float, float]:
    """Return the bytes per microbatch on the GPU between passes, then kept and temporary bytes of `backward_peak` and
    `forward_peak`."""
    (away, two), back, forth = activations_moved(job, stage), stage.backward_peak, stage.forward_peak
    return (
        stage.saved_bytes - away,
        back.kept - away + two,
        back.temporary,
        forth.kept - away + two,
        forth.temporary,
    )


def host_bytes(job: Job, stages: Sequence[Stage]) -> float:
    """Return the bytes of host memory that the optimizer states of a rank with these stages take.

    Moments, weights and gradients in the type of their update: 16 bytes per parameter for Adam (deepspeedai/DeepSpeed issue
    7693), plus the weights that are gathered from the host.
    """
    setting, main = job.training.offload, main_bytes(job)
    own = math.fsum(stage.held(kind) / job.shards(kind) for stage in stages for kind in (False, True))
    states = setting.optimizer_states * (moment_bytes(job) + 2 * main)
    return own * (states + (weight_bytes(job) if setting.parameters and job.parallelism.zero3 else 0.0))


def host_peaks(job: Job, part: Sequence[Stage], start: Ints, kept: Ints) -> list[float]:
    """Return the peak bytes of host memory per GPU of each pipeline rank.

    part: all stages. kept: microbatches in flight for each stage of a rank; rank r has rows start[r] to start[r + 1].
    """
    each = job.lanes(part)
    away = [np.array([activations_moved(job, stage)[0] for stage in own]) for own in each]
    return [
        host_bytes(job, own) + float((kept[begin:end] * size).sum(axis=1).max(initial=0.0))
        for own, size, (begin, end) in zip(each, away, pairwise(start.tolist()), strict=True)
    ]


def must_fit_hosts(job: Job, each: Sequence[float], cluster: Topology, gpus: Ints) -> None:
    """Raise OutOfMemoryError if `each`, the `host_peaks` of a job on the GPUs `gpus`, exceeds the memory of a host."""
    need, have = (size / 2**30 for size in fullest_host(cluster, gpus, each))
    if need > have:
        what = f"a node needs {need:,.0f} GiB of host memory and has {have:,.0f} GiB; offload less, raise "
        remedy = "parallelism.zero or dp, or write the memory that your nodes have as host.memory"
        raise OutOfMemoryError(str(job.error("training.offload", what + remedy)))
