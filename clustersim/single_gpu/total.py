"""How long a graph takes on a GPU: kernels run in a row, each no earlier than the CPU has launched it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clustersim.config.gpu import Gpu
from clustersim.hardware.constants import CALL, PRODUCT_CALL, VIEW_CALL
from clustersim.model.kernel import Kernel
from clustersim.parallel.host import LaunchQueue
from clustersim.predictors.base import Predictor
from clustersim.predictors.clocks import Clocks
from clustersim.predictors.forecasts import Forecasts
from clustersim.single_gpu.fuse import apart
from clustersim.single_gpu.model import Graph, OperatorCall, PassPhase

PHASES: tuple[PassPhase, ...] = ("forward", "backward", "accumulate")


class PhaseTime(NamedTuple):
    """One phase of a pass: seconds of its kernels in a row, seconds of the CPU calls that launch them, and how many launches."""

    phase: PassPhase
    gpu: float
    cpu: float
    launches: int


class Total(NamedTuple):
    """A whole pass: its phases, the seconds that the GPU waited for launches, and the distinct kernels.

    `kernels` holds (kernel, launches, seconds of one); `critical` the seconds of each kernel after the last wait for the CPU.
    """

    parts: tuple[PhaseTime, ...]
    waits: float
    kernels: tuple[tuple[Kernel, int, float], ...]
    critical: Mapping[Kernel, float]

    @property
    def seconds(self) -> float:
        """Seconds of the pass."""
        return math.fsum(part.gpu for part in self.parts) + self.waits


def total(graph: Graph, predictor: Predictor, gpu: Gpu, eager: bool = True, clocks: Clocks = "sustained") -> Total:
    """Return the seconds of a graph, all distinct kernels predicted in one array call.

    `eager` adds what the GPU waits for the CPU's calls; a compiled graph has none worth counting. Raises InputError for
    impossible kernels. `clocks`: those of passes in a row for seconds, of one burst, or a share (docs/clocks.md).
    """
    counts: dict[Kernel, int] = {}
    for kernel in graph.kernels:
        counts[kernel] = counts.get(kernel, 0) + 1
    each = Forecasts(predictor, gpu).seconds(list(counts), clocks) if counts else {}
    parts = tuple(_part(phase, nodes, each) for phase in PHASES if (nodes := _of(graph, phase)))
    kernels = tuple((kernel, count, each[kernel]) for kernel, count in counts.items())
    waits, first = _waits(graph.nodes, each) if eager else (0.0, 0)
    return Total(parts, waits, kernels, _sums(graph.nodes[first:], each))


def _sums(nodes: Sequence[OperatorCall], each: Mapping[Kernel, float]) -> dict[Kernel, float]:
    result: defaultdict[Kernel, float] = defaultdict(float)
    for kernel in (kernel for node in nodes for kernel in node.kernels):
        result[kernel] += each[kernel]
    return result


def _of(graph: Graph, phase: PassPhase) -> list[OperatorCall]:
    return [node for node in graph.nodes if node.phase == phase]


def _part(phase: PassPhase, nodes: Sequence[OperatorCall], each: Mapping[Kernel, float]) -> PhaseTime:
    kernels = [kernel for node in nodes for kernel in node.kernels]
    return PhaseTime(phase, math.fsum(each[kernel] for kernel in kernels), math.fsum(map(cpu, nodes)), len(kernels))


def cpu(node: OperatorCall) -> float:
    """Return the seconds of CPU that a call takes before its kernels are in the queue."""
    return VIEW_CALL if not node.kernels else PRODUCT_CALL if apart(node) else CALL


def _waits(nodes: Sequence[OperatorCall], each: Mapping[Kernel, float]) -> tuple[float, int]:
    """Return how long the GPU idles in a queue that the CPU fills, and at which call it did so last."""
    queue, run, last = LaunchQueue(), 0.0, 0
    for place, node in enumerate(nodes):
        seconds = math.fsum(each[kernel] for kernel in node.kernels)
        if not seconds:
            queue.launched += cpu(node)
        elif queue.run(cpu(node), seconds):
            last = place
        run += seconds
    return queue.over - run, last
