"""Time of a graph, and fusion by torch.compile in inference.

TorchInductor leaves GEMMs and attention to libraries and generates kernels for the rest, each of which reads its inputs once and
writes only what other kernels read (Ansel et al., "PyTorch 2", ASPLOS 2024, section 4). Assumed here: connected calls with the
same number of GEMMs before them become one kernel, norms and softmaxes included.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from clustersim.config.gpu import Gpu
from clustersim.hardware.constants import CALL, PRODUCT_CALL, VIEW_CALL
from clustersim.model.kernel import Kernel, vector
from clustersim.parallel.host import LaunchQueue
from clustersim.predictors.base import Predictor
from clustersim.predictors.clocks import Clocks
from clustersim.predictors.forecasts import Forecasts
from clustersim.single_gpu.model import OUTSIDE, Graph, OperatorCall, PassPhase

APART = ("linear", "bmm", "grouped_gemm", "flash_attention")


def fuse(graph: Graph) -> Graph:
    """Return the forward graph with each group of fused calls as one node, at the position of the group's last call."""
    nodes, roots = graph.nodes, _roots(graph.nodes)
    groups = _groups(nodes, roots)
    members: dict[int, list[int]] = defaultdict(list)
    for index, group in groups.items():
        members[group].append(index)
    read_by = _readers(nodes, roots)
    fused = [
        node if i not in groups else _merged(nodes, members[groups[i]], roots, read_by)
        for i, node in enumerate(nodes)
        if node.kernels and (i not in groups or i == members[groups[i]][-1])
    ]
    return replace(graph, nodes=tuple(fused))


def _roots(nodes: Sequence[OperatorCall]) -> list[int]:
    """Return for each node the node that wrote its output. A view leads back to its source."""
    roots: list[int] = []
    for index, node in enumerate(nodes):
        source = node.reads[0][0] if node.reads else OUTSIDE
        roots.append(index if node.kernels else OUTSIDE if source == OUTSIDE else roots[source])
    return roots


def _sources(node: OperatorCall, roots: Sequence[int]) -> list[tuple[int, float]]:
    """Return (index of the node that wrote it, bytes) of each tensor that a node reads, those from outside excepted."""
    return [(roots[i], size) for i, size in node.reads if i != OUTSIDE and roots[i] != OUTSIDE]


def is_library_call(node: OperatorCall) -> bool:
    """Return whether a call stays with a library when others are fused: GEMMs and fused attention."""
    return any(kernel.kind in APART for kernel in node.kernels)


def _groups(nodes: Sequence[OperatorCall], roots: Sequence[int]) -> dict[int, int]:
    """Return {index of a call that can be fused: index of the first call of its group}. roots: result of `_roots`."""
    depth: dict[int, int] = {}
    group: dict[int, int] = {}
    for index, node in enumerate(nodes):
        if not node.kernels:
            continue
        sources = [i for i, _ in _sources(node, roots)]
        depth[index] = max((depth[i] + is_library_call(nodes[i]) for i in sources), default=0)
        if not is_library_call(node):
            merged = {group[i] for i in sources if i in group and depth[i] == depth[index]}
            group[index] = min(merged, default=index)
            for i, old in group.items() if len(merged) > 1 else ():
                group[i] = group[index] if old in merged else old
    return group


def _readers(nodes: Sequence[OperatorCall], roots: Sequence[int]) -> dict[int, list[int]]:
    """Return {root: indices of the nodes with kernels that read it}; [] for any other root."""
    readers: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        if node.kernels:
            for source, _ in _sources(node, roots):
                readers[source].append(index)
    return readers


def _merged(
    nodes: Sequence[OperatorCall], members: list[int], roots: Sequence[int], readers: dict[int, list[int]]
) -> OperatorCall:
    """Return one node for the members of a group. It reads each outside tensor once and writes what is read outside."""
    if len(members) == 1:
        return nodes[members[0]]
    inside = set(members)
    last = nodes[members[-1]]
    read: dict[int, float] = {}
    traffic = 0.0
    for i in members:
        sources = _sources(nodes[i], roots)
        traffic += max(
            0.0, math.fsum(k.bytes for k in nodes[i].kernels) - nodes[i].output - math.fsum(size for _, size in sources)
        )
        read |= {source: max(size, read.get(source, 0.0)) for source, size in sources if source not in inside}
    written = [i for i in members if not readers[i] or not inside.issuperset(readers[i])]
    traffic += math.fsum(read.values()) + math.fsum(nodes[i].output for i in written)
    kernel = _kernel([k for i in members for k in nodes[i].kernels], traffic)
    return OperatorCall(last.place, "fused", last.phase, (kernel,), tuple(read.items()), last.output)


def _kernel(parts: Sequence[Kernel], traffic: float) -> Kernel:
    """Return one kernel with the class and shape of the reduction among `parts`, or else of the largest part."""
    order = {"softmax": 2, "layernorm": 1}
    lead = max(parts, key=lambda k: (order.get(k.kind, 0), k.m * k.n))
    kind = lead.kind if lead.kind in order else "elementwise"
    size = float(lead.m) * lead.n
    return vector(kind, "fused", lead.dtype, lead.m, lead.n, math.fsum(k.flop for k in parts) / size, traffic / size)


PHASES: tuple[PassPhase, ...] = ("forward", "backward", "accumulate")


class PhaseTime(NamedTuple):
    """One phase of a pass: seconds of its kernels, seconds of the CPU calls that launch them, and number of launches."""

    phase: PassPhase
    gpu: float
    cpu: float
    launches: int


class Total(NamedTuple):
    """Time of a whole pass: its phases, seconds that the GPU waits for launches, and the distinct kernels.

    `kernels` holds (kernel, launches, seconds of one launch). `critical` holds the seconds of each kernel after the GPU's last
    wait.
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
    """Return the time of a graph. All distinct kernels are predicted in one array call.

    `eager` adds the GPU's waits for the CPU's calls; a compiled graph has negligible ones. `clocks` selects GPU clocks: of
    seconds of load, of one burst, or a share (docs/predictors.md). Raises InputError for impossible kernels.
    """
    counts: dict[Kernel, int] = {}
    for kernel in graph.kernels:
        counts[kernel] = counts.get(kernel, 0) + 1
    each = Forecasts(predictor, gpu).seconds(list(counts), clocks) if counts else {}
    phases = ((phase, [node for node in graph.nodes if node.phase == phase]) for phase in PHASES)
    parts = tuple(_part(phase, nodes, each) for phase, nodes in phases if nodes)
    kernels = tuple((kernel, count, each[kernel]) for kernel, count in counts.items())
    waits, first = _waits(graph.nodes, each) if eager else (0.0, 0)
    return Total(parts, waits, kernels, _sums(graph.nodes[first:], each))


def _sums(nodes: Sequence[OperatorCall], each: Mapping[Kernel, float]) -> dict[Kernel, float]:
    """Return {kernel: seconds of all its launches} of the nodes."""
    result: defaultdict[Kernel, float] = defaultdict(float)
    for kernel in (kernel for node in nodes for kernel in node.kernels):
        result[kernel] += each[kernel]
    return result


def _part(phase: PassPhase, nodes: Sequence[OperatorCall], each: Mapping[Kernel, float]) -> PhaseTime:
    """Return the times of a phase: sums over the kernels of its nodes. each: seconds of each kernel."""
    kernels = [kernel for node in nodes for kernel in node.kernels]
    return PhaseTime(
        phase, math.fsum(each[kernel] for kernel in kernels), math.fsum(map(cpu_seconds, nodes)), len(kernels)
    )


def cpu_seconds(node: OperatorCall) -> float:
    """Return the CPU seconds of a call until its kernels are queued."""
    return VIEW_CALL if not node.kernels else PRODUCT_CALL if is_library_call(node) else CALL


def _waits(nodes: Sequence[OperatorCall], each: Mapping[Kernel, float]) -> tuple[float, int]:
    """Return (seconds that the GPU waits for the CPU's launches, index of the call of its last wait)."""
    queue, run, last = LaunchQueue(), 0.0, 0
    for place, node in enumerate(nodes):
        seconds = math.fsum(each[kernel] for kernel in node.kernels)
        if not seconds:
            queue.launched += cpu_seconds(node)
        elif queue.run(cpu_seconds(node), seconds):
            last = place
        run += seconds
    return queue.over - run, last
