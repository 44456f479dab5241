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


def memory(job: Job, stages: Sequence[Stage], in_flight: Sequence[float], position: int = 0) -> Memory:
    """Return the peak bytes of the rank that holds `stages`, with `in_flight[i]` microbatches kept on stage i at the peak.

    position: of the rank in its expert-parallel group, as the stages are.
    """
    parameters = float(sum(stage.parameters for stage in stages))
    kept = sum(stage.saved_bytes * count for stage, count in zip(stages, in_flight, strict=True))
    return Memory(
        parameters=parameters * weight_bytes(job),
        gradients=parameters * BYTES[job.training.gradients],
        optimizer=sum(_state(job, float(sum(s.held(kind) for s in stages)), kind) for kind in (False, True)),
        activations=kept + max(stage.working_bytes for stage in stages),
        workspace=max(workspace(job.at(position), stage) for stage in stages),
        framework=FRAMEWORK,
    )


def _state(job: Job, parameters: float, expert: bool) -> float:
    """Return the bytes of optimizer state on one rank; zero: 1 cuts it by the ranks that hold the same parameters."""
    return parameters * state_bytes(job) / (job.copies(expert) if job.parallelism.zero else 1)


def workspace(rank: Rank, stage: Stage) -> float:
    """Return the bytes of the largest temporaries: logits and their fp32 gradient, or a block's widest gradients."""
    last = stage.layers[-1][0].name == "head"
    logits = rank.tokens * rank.vocab * (rank.size + 4) if last else 0.0
    return max(logits, block_temporary(rank))


def block_temporary(rank: Rank) -> float:
    """Return the bytes of the gradients alive at a block's widest point: MLP inner (in and out) or unfused scores.

    With rows from other ranks, their gradients at the ends of the experts are alive besides.
    """
    rows, ffn = (rank.rows, rank.expert_ffn) if rank.model.experts else (rank.tokens, rank.ffn)
    factor = 3 if rank.model.activation == "swiglu" else 2
    mlp = factor * rows * ffn
    square = rank.training.micro_batch * rank.heads * rank.training.seq**2
    scores = 2 * square if rank.training.attention == "unfused" else 0
    return rank.size * (max(mlp, scores) + 2 * (rows if rank.spread else rank.tokens) * rank.model.hidden)
