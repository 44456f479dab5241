"""Bytes on one GPU by kind.

Parameters, gradients and optimizer state follow from the parameter count (18 bytes a parameter for 16-bit Adam with fp32
gradients: 2 + 4 + 12; Rajbhandari et al. 2020, section 3.1, with 4-byte gradients as Megatron accumulates them).
Activations are what every microbatch in flight keeps (Korthikanti et al. 2022), plus what recomputation brings back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clustersim.config.gpu import BYTES
from clustersim.workload.job import Job
from clustersim.workload.optimizer import state_bytes, weight_bytes
from clustersim.workload.rank import Rank
from clustersim.workload.stages import Stage

FRAMEWORK = 1.5 * 2**30
"""Bytes that no tensor holds: CUDA context and loaded kernels (about 0.5 GiB), cuBLAS workspaces (32 MiB a stream on
Hopper, docs.pytorch.org CUDA semantics) and NCCL's buffers (NCCL_BUFFSIZE, 4 MiB a channel, over three communicators)."""


class Memory(NamedTuple):
    """Bytes on one GPU by kind."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    workspace: float
    framework: float

    @property
    def total(self) -> float:
        """Sum of all kinds."""
        return float(sum(self))


def memory(job: Job, stages: Sequence[Stage], in_flight: Sequence[float]) -> Memory:
    """Return the peak bytes of the rank that holds `stages`, with `in_flight[i]` microbatches kept on stage i at the peak."""
    parameters = float(sum(stage.parameters for stage in stages))
    kept = sum(stage.saved_bytes * count for stage, count in zip(stages, in_flight, strict=True))
    shards = job.dp if job.parallelism.zero else 1
    return Memory(
        parameters=parameters * weight_bytes(job),
        gradients=parameters * BYTES[job.training.gradients],
        optimizer=parameters * state_bytes(job) / shards,
        activations=kept + max(stage.working_bytes for stage in stages),
        workspace=max(workspace(job.rank, stage) for stage in stages),
        framework=FRAMEWORK,
    )


def workspace(rank: Rank, stage: Stage) -> float:
    """Return the bytes of the largest temporaries: logits and their fp32 gradient, or a block's widest gradients."""
    last = stage.layers[-1][0].name == "head"
    logits = rank.tokens * rank.vocab * (rank.size + 4) if last else 0.0
    return max(logits, block_temporary(rank))


def block_temporary(rank: Rank) -> float:
    """Return the bytes of the gradients alive at a block's widest point: MLP inner (in and out) or unfused scores."""
    copies = rank.model.topk if rank.model.experts else 1
    factor = 3 if rank.model.activation == "swiglu" else 2
    mlp = factor * rank.tokens * copies * rank.ffn
    square = rank.training.micro_batch * rank.heads * rank.training.seq**2
    scores = 2 * square if rank.training.attention == "unfused" else 0
    return rank.size * (max(mlp, scores) + 2 * rank.tokens * rank.model.hidden)
