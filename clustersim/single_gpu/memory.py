"""Bytes that a whole model needs on one GPU: weights, gradients, Adam's moments, and the activations alive at the fullest moment.

Inference is one forward pass without a cache of keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import numpy as np

from clustersim.config.evidence import Declared
from clustersim.model.operator import Layer
from clustersim.parallel.job import Job
from clustersim.parallel.memory import Memory, at_rest
from clustersim.parallel.stages import Stage
from clustersim.single_gpu.model import OUTSIDE, OperatorCall

FRAMEWORK: Annotated[float, Declared("B")] = 0.53 * 2**30
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
    if not training:
        logits = job.shard.tokens * job.shard.vocab * job.shard.size
        return rest._replace(gradients=0.0, optimizer=0.0, activations=max(logits, *map(_widest, stage.layers)))
    fullest = max(stage.forward_peak, stage.backward_peak, key=lambda one: one.total)
    return rest._replace(activations=fullest.kept, workspace=fullest.temporary)


def _widest(run: tuple[Layer, int]) -> float:
    """Return the most bytes of two neighbouring operators of a layer: what would be kept of the input and the output of one."""
    return max((one.saved + other.saved for one, other in pairwise(run[0].operators)), default=0.0)


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
