"""How long a graph takes on a GPU: its kernels one after another, or the CPU's calls where these are slower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clustersim.config.gpu import Gpu
from clustersim.graph.model import Graph, Node, Phase
from clustersim.predictors.columns import Floats
from clustersim.predictors.model import Predictor
from clustersim.workload.kernel import Kernel

CALL = 12e-6
"""Seconds of CPU for an eager call that launches a kernel: operators on a handful of elements (arange, mul, long, cumsum)
take 21 to 25 us between two CUDA events in NeuSight's traces on V100 and T4, calls that launch nothing (size) 10 to 11."""
VIEW = 5e-6
"""Seconds of CPU for a view, likewise: view, permute and transpose take 14 to 17 us."""
TRACKED = 2.0
"""How much longer a call takes that autograd records: wrapping, and a node of the graph."""
PHASES: tuple[Phase, ...] = ("forward", "backward", "accumulate")


class Part(NamedTuple):
    """One phase of a pass, in seconds: `gpu` its kernels in a row, `cpu` the calls that launch them, `seconds` the longer one."""

    phase: Phase
    gpu: float
    cpu: float
    launches: int

    @property
    def seconds(self) -> float:
        """The longer of both: the CPU runs ahead of the GPU or holds it up."""
        return max(self.gpu, self.cpu)


class Total(NamedTuple):
    """A whole pass: its phases, and the distinct kernels with how often and how long each runs (seconds of one)."""

    parts: tuple[Part, ...]
    kernels: tuple[tuple[Kernel, int, float], ...]

    @property
    def seconds(self) -> float:
        """Seconds of the pass."""
        return sum(part.seconds for part in self.parts)

    @property
    def forward(self) -> float:
        """Seconds of the forward phase."""
        return sum(part.seconds for part in self.parts if part.phase == "forward")


def total(graph: Graph, predictor: Predictor, gpu: Gpu, eager: bool = True) -> Total:
    """Return the seconds of a graph, all distinct kernels predicted in one array call.

    A phase takes max(sum of kernels, sum of CPU calls): launches are asynchronous, so that the CPU only shows where it is
    slower. `eager` counts the calls; a compiled graph has none worth counting. Raises InputError for impossible kernels.
    """
    counts: dict[Kernel, int] = {}
    for kernel in graph.kernels:
        counts[kernel] = counts.get(kernel, 0) + 1
    seconds: Floats = predictor.predict(list(counts), gpu) if counts else np.zeros(0)
    each = dict(zip(counts, seconds.tolist(), strict=True))
    training = any(node.phase == "backward" for node in graph.nodes)
    phases = [(phase, [node for node in graph.nodes if node.phase == phase]) for phase in PHASES]
    parts = tuple(_part(phase, nodes, each, eager, training) for phase, nodes in phases if nodes)
    return Total(parts, tuple((kernel, count, each[kernel]) for kernel, count in counts.items()))


def _part(phase: Phase, nodes: Sequence[Node], each: dict[Kernel, float], eager: bool, training: bool) -> Part:
    kernels = [kernel for node in nodes for kernel in node.kernels]
    cpu = sum(CALL if node.kernels else VIEW for node in nodes) if eager else 0.0
    tracked = TRACKED if training and phase == "forward" else 1.0
    return Part(phase, sum(each[kernel] for kernel in kernels), cpu * tracked, len(kernels))
