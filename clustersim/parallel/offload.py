"""Offloading: what is kept in the hosts' memory, what is copied there and back, and what CPUs update.

The same copies have several names: DeepSpeed's ZeRO-Offload and ZeRO-Infinity (arXiv 2101.06840, 2104.07857), Megatron-Core's
HybridDeviceOptimizer, Transformer Engine's offload of activations, and PyTorch's CPUOffloadPolicy.
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
from clustersim.parallel.memory import frozen_bytes, shard_size
from clustersim.parallel.optimizer import gradients_leave, main_bytes, moment_bytes, weight_bytes
from clustersim.parallel.stages import Stage
from clustersim.topology.host_links import host_with_least_room
from clustersim.topology.model import Topology

OUT, INTO = "d2h", "h2d"
"""Task families of the copies during passes: gradients to the host, and parameters from the host."""
SAVE, RELOAD = "save", "reload"
"""Task families of the copies of activations to the host and back."""
UPDATE_OUT, UPDATE_INTO, CPU = "update_d2h", "update_h2d", "cpu"
"""Task families of the update: gradients to the host, updated weights back, and the CPU's work in between."""
DIRECTIONS = {OUT: "up", SAVE: "up", UPDATE_OUT: "up", INTO: "down", RELOAD: "down", UPDATE_INTO: "down", CPU: "memory"}
"""Link of a GPU that each task family uses: `up` to the host, `down` from the host, or the host's `memory`."""
EAGER: Annotated[float, Declared(chosen_on="DeepSpeed's own 5 to 7 times")] = 6.0
"""Bytes that PyTorch's own Adam moves on a CPU, relative to one fused pass (DeepSpeed, ops/adam/cpu_adam.py)."""


def offloads(job: Job) -> bool:
    """Return whether a job keeps optimizer states, parameters or activations in the memory of its hosts."""
    offload = job.training.offload
    return bool(offload.optimizer_states or offload.parameters or offload.activations)


def host_update(job: Job, stages: Sequence[Stage], parameters: int, experts: int) -> Iterator[tuple[Collective, str]]:
    """Yield (part of a rank's update on its host, family of the part that it waits for; "" for none), in order.

    The parts are copies of the gradients that are not on the host yet, the optimizer's traffic in host memory, and copies of
    updated weights back. With `offload.overlap` they come block by block, else once for the whole rank. Nothing is yielded if the
    host updates nothing.

    parameters: number of parameters of the rank, which has `stages`. experts: how many of them are in spread experts.
    """
    offload, weight, main = job.training.offload, weight_bytes(job), main_bytes(job)
    counts = {False: parameters - experts, True: experts}
    updated = {expert: offload.optimizer_states * count / job.shards(expert) for expert, count in counts.items()}
    total, gradients_left = math.fsum(updated.values()), gradients_leave(job)
    bytes_each = 2 * moment_bytes(job) + 3 * main
    bytes_each += 2 * main if job.training.clip_gradients else 0  # clipping scales gradients
    bytes_each += main + weight if weight < main and not offload.parameters else 0
    traffic_factor = EAGER if offload.update == "eager" else 1.0
    out = math.fsum(count * main for expert, count in updated.items() if not gradients_left or job.shards(expert) == 1)
    parts = sum(count for stage in stages for _, count in stage.layers) if offload.overlap else 1
    for _ in range(parts if total else 0):
        if out:
            yield Collective(UPDATE_OUT, "gradients", out / parts), ""
        yield Collective(CPU, "update", total * bytes_each * traffic_factor / parts), UPDATE_OUT if out else ""
        if not offload.parameters:
            yield Collective(UPDATE_INTO, "weights", total * weight / parts), CPU


def leaving(job: Job, size: float, expert: bool) -> float:
    """Return the bytes that a rank copies to its host of a reduced bucket of gradients; 0 if gradients stay until the update.

    size: bytes of the bucket before it is sharded. expert: whether it belongs to spread experts. Gradients are widened on the GPU
    (DeepSpeed, runtime/zero/stage_1_and_2.py: async_inplace_copy_grad_to_fp32_buffer_from_gpu).
    """
    wide = main_bytes(job) / BYTES[job.training.gradients]
    return job.training.offload.optimizer_states * wide * size / job.shards(expert) if gradients_leave(job) else 0.0


def moved(job: Job, layer: Layer) -> float:
    """Return the bytes of one block's activations that are copied to the host after its forward pass; 0 for other layers."""
    return job.training.offload.activations * layer.saved if layer.name in BLOCKS else 0.0


def block_copies(job: Job, stage: Stage, letter: str) -> Iterator[tuple[int, Collective | tuple[str, None, int]]]:
    """Yield (n, item) for a pass of a stage, where the item follows the first n steps of the pass. Yield nothing without offload.

    letter: `F` or `B`. An item is a copy of activations, or a wait (family, None, k) for all copies of a family so far except the
    last k. After a block its activations are copied out, once the previous block's copy has ended. Before a block of a backward
    pass its activations must be back, and the copy of the next block's starts.
    """
    position, copies = 0, list[tuple[int, float]]()
    for layer, steps in stage.passes(letter) if job.training.offload.activations else ():
        begin, position = position, position + len(steps)
        if size := moved(job, layer):
            copies.append((position if letter == "F" else begin, size))
    for i, (steps_before, size) in enumerate(copies):
        if letter == "F":
            yield steps_before, (SAVE, None, 0)
            yield steps_before, Collective(SAVE, "activations", size)
            continue
        yield from (
            (steps_before, Collective(RELOAD, "activations", next_size)) for _, next_size in copies[i + (i > 0) : i + 2]
        )
        yield steps_before, (RELOAD, None, int(i + 1 < len(copies)))


def activations_moved(job: Job, stage: Stage) -> tuple[float, float]:
    """Return (bytes on the host between passes, bytes on the GPU for the two blocks in use) of offloaded activations. Both are
    for one microbatch of a stage; (0, 0) without offload."""
    if not job.training.offload.activations:
        return 0.0, 0.0
    sizes = [(moved(job, layer), count) for layer, count in stage.layers]
    total = math.fsum(size * count for size, count in sizes)
    return total, min(total, 2 * max((size for size, _ in sizes), default=0.0))


def kept_on_gpu(job: Job, stage: Stage) -> tuple[float, float, float, float, float]:
    """Return the bytes of activations on the GPU for one microbatch of a stage, without those on the host. They are the bytes
    kept between passes, the kept and temporary bytes of `Stage.backward_peak`, and those of `Stage.forward_peak`."""
    (on_host, in_use), backward, forward = activations_moved(job, stage), stage.backward_peak, stage.forward_peak
    return (
        stage.saved_bytes - on_host,
        backward.kept - on_host + in_use,
        backward.temporary,
        forward.kept - on_host + in_use,
        forward.temporary,
    )


def host_bytes(job: Job, stages: Sequence[Stage]) -> float:
    """Return the bytes of host memory for the optimizer states and parameters that a rank with `stages` keeps there.

    Moments, weights and gradients have the type of their update: 16 bytes per parameter for Adam (deepspeedai/DeepSpeed issue
    7693). With DeepSpeed's ZeRO-3, the weights that are gathered from the host are added; so are frozen weights there.
    """
    setting, main = job.training.offload, main_bytes(job)
    states = setting.optimizer_states * (moment_bytes(job) + 2 * main)
    weights = weight_bytes(job) if setting.parameters and job.parallelism.zero3 else 0.0
    return shard_size(job, stages) * (states + weights) + (frozen_bytes(job, stages) if setting.parameters else 0.0)


def host_peaks(job: Job, part: Sequence[Stage], start: Ints, kept: Ints) -> list[float]:
    """Return the peak bytes of host memory per GPU, for each pipeline rank.

    part: all global stages. kept: microbatches in flight (rows, stages of a rank) at moments of the step; pipeline rank r has the
    rows start[r] to start[r + 1].
    """
    lanes = job.lanes(part)
    on_host = [np.array([activations_moved(job, stage)[0] for stage in stages]) for stages in lanes]
    return [
        host_bytes(job, stages) + float((kept[begin:end] * size).sum(axis=1).max(initial=0.0))
        for stages, size, (begin, end) in zip(lanes, on_host, pairwise(start.tolist()), strict=True)
    ]


def must_fit_hosts(job: Job, peaks: Sequence[float], cluster: Topology, gpus: Ints) -> None:
    """Raise OutOfMemoryError if a job needs more memory of a host than the host has.

    peaks: `host_peaks` of the job. gpus: GPU of each rank.
    """
    need, have = (size / 2**30 for size in host_with_least_room(cluster, gpus, peaks))
    if need > have:
        what = f"a node needs {need:,.0f} GiB of host memory and has {have:,.0f} GiB; offload less, raise "
        remedy = "parallelism.zero or dp, or write the memory that your nodes have as host.memory"
        raise OutOfMemoryError(str(job.error("training.offload", what + remedy)))
