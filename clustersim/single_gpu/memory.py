"""Memory of a whole model on one GPU: weights, gradients, Adam's moments, and peak activations.

Inference is one forward pass without a key-value cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import numpy as np

from clustersim.config.evidence import Declared
from clustersim.parallel.job import Job
from clustersim.parallel.memory import Memory, at_rest
from clustersim.parallel.stages import Stage
from clustersim.single_gpu.model import OUTSIDE, OperatorCall

FRAMEWORK: Annotated[float, Declared("B")] = 0.53 * 2**30
"""Bytes outside tensors on a GPU with one model: CUDA context and kernels (about 0.5 GiB), cuBLAS' workspace (32 MiB)."""
MOMENTS = 2
"""Number of Adam's moments, which PyTorch keeps in the data type of the weights (torch/optim/adamw.py)."""


def traced_memory(nodes: Sequence[OperatorCall], weights: float, training: bool) -> Memory:
    """Return the memory in bytes of a traced model with `weights` bytes of weights; with Adam if it is trained."""
    return Memory(
        parameters=weights,
        gradients=weights if training else 0.0,
        optimizer=MOMENTS * weights if training else 0.0,
        activations=peak_alive_bytes(nodes),
        workspace=0.0,
        framework=FRAMEWORK,
    )


def job_memory(job: Job, stage: Stage, training: bool) -> Memory:
    """Return the memory of one microbatch of a workload without parallelism, with its own gradients and optimizer."""
    rest = at_rest(job, [stage])._replace(framework=FRAMEWORK)
    if not training:
        logits = job.shard.tokens * job.shard.vocab * job.shard.size
        pairs = [pair for layer, _ in stage.layers for pair in pairwise(layer.operators)]  # input and output of one
        largest = max(logits, *(before.saved + after.saved for before, after in pairs))
        return rest._replace(gradients=0.0, optimizer=0.0, activations=largest)
    fullest = max(stage.forward_peak, stage.backward_peak, key=math.fsum)
    return rest._replace(activations=fullest.kept, workspace=fullest.temporary)


def peak_alive_bytes(nodes: Sequence[OperatorCall]) -> float:
    """Return the peak bytes of outputs that exist at once, each from the call that makes it to the last call that reads it.

    A view shares the tensor of its source. A weight's gradient is freed at once, because it is added to an existing one.
    """
    whose: list[int] = []
    last: dict[int, int] = {}
    for i, node in enumerate(nodes):
        sources = [whose[source] for source, _ in node.reads if source != OUTSIDE]
        view = not node.kernels and bool(node.reads)
        whose.append((sources[0] if sources else OUTSIDE) if view else i)
        if node.phase != "accumulate":
            last |= dict.fromkeys(sources, i)
    change = np.zeros(len(nodes) + 1)
    for i, node in enumerate(nodes):
        if whose[i] == i and node.phase != "accumulate":
            change[i] += node.output
            change[last.get(i, i) + 1] -= node.output
    return float(np.cumsum(change).max(initial=0.0))
