"""Bytes that a whole model needs on one GPU: weights, gradients, Adam's moments, and the activations alive at the fullest moment.

Inference is one forward pass without a cache of keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.parallel.job import Job
from clustersim.parallel.memory import Memory, at_rest, block_temporary, workspace
from clustersim.parallel.stages import Stage
from clustersim.single_gpu.model import OUTSIDE, OperatorCall

FRAMEWORK = 0.53 * 2**30
"""Bytes that no tensor holds on a GPU of its own: CUDA context and loaded kernels (about 0.5 GiB), cuBLAS' workspace (32 MiB)."""
MOMENTS = 2
"""Moments of Adam, which PyTorch keeps in the data type of the weights (torch/optim/adamw.py)."""


def of_nodes(nodes: Sequence[OperatorCall], weights: float, training: bool) -> Memory:
    """Return the bytes of a recorded model whose weights have `weights` bytes."""
    return Memory(
        parameters=weights,
        gradients=weights if training else 0.0,
        optimizer=MOMENTS * weights if training else 0.0,
        activations=alive(nodes),
        workspace=0.0,
        framework=FRAMEWORK,
    )


def of_job(job: Job, stage: Stage, training: bool) -> Memory:
    """Return the bytes of one microbatch of an unsplit workload, with its own gradients and optimizer."""
    rest = at_rest(job, [stage])._replace(framework=FRAMEWORK)
    shard = job.shard
    if not training:
        widest = max(shard.tokens * shard.vocab * shard.size, block_temporary(stage))
        return rest._replace(gradients=0.0, optimizer=0.0, activations=widest)
    space = workspace(shard, stage, backward=True)
    return rest._replace(activations=stage.saved_bytes + stage.working_bytes, workspace=space)


def alive(nodes: Sequence[OperatorCall]) -> float:
    """Return the most bytes of outputs that are alive at once, each from the call that makes it to the last that reads it.

    A view is the tensor that it looks at. A weight's gradient is added to the one that is there as soon as it is made.
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
