"""The host that launches kernels: the seconds of each launch, and where the host waits until the GPU is idle.

Kernels run in a row on a stream, and kernel k cannot start before the host has launched it. With launch times c and durations g,
and host and GPU both free at 0, the last kernel of the row ends at the largest of c_1 + … + c_k + g_k + … + g_n over all k: a
product of max-plus matrices, as in Lindley's recursion for a queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clustersim.frameworks.table import load
from clustersim.hardware.constants import GRAPH_LAUNCH, NATIVE_CALL
from clustersim.model.kernel import APART, Kernel, single_launch
from clustersim.model.operator import Collective
from clustersim.parallel.job import Job
from clustersim.parallel.optimizer import UPDATES

EXPERT_OPS: tuple[str, ...] = ("sort_rows", "clear", "scatter_rows", "pad_rows")
"""Ops of vector kernels between the router of a mixture of experts and the sum of its outputs; dense models have none."""
EXPERT_OPS += tuple(
    f"{name}{suffix}"
    for name in ("permute", "unpermute", "weigh_rows", "clamp", "expert_bias")
    for suffix in ("", "_backward")
)
"""Vector kernels after the router, which only mixtures of experts have."""


class LaunchQueue:
    """Launches of a host and the kernels of its GPU, which run in order. Both are free at time 0.

    launched: end of the last launch in seconds. over: end of the last kernel in seconds.
    """

    __slots__ = ("launched", "over")

    def __init__(self) -> None:
        self.launched = self.over = 0.0

    def run(self, launch: float, seconds: float) -> bool:
        """Add a kernel that the host launches in `launch` seconds and the GPU runs in `seconds`. Return whether the GPU was idle
        until the launch ended."""
        self.launched += launch
        late = self.launched > self.over
        self.over = (self.launched if late else self.over) + seconds
        return late


@dataclass(frozen=True, slots=True)
class Launcher:
    """Seconds that the host process of a framework takes for each kind of launch, and whether it waits for its GPU."""

    kernel: float
    """Seconds per kernel of a pass, including the framework's Python and C++ code."""
    collective: float
    """Seconds per collective or message."""
    update: float
    """Seconds per kernel of the weight update."""
    parameter: float
    """Seconds per parameter tensor at the weight update."""
    part: float
    """Seconds per part of a gathered tensor that is copied into place."""
    drains: bool
    """Whether the host waits until its GPU is idle at each pipeline message, if passes wait for messages. At the update, where it
    reads the gradient norm, it always waits."""
    experts: float
    """Seconds per kernel between the router of a mixture of experts and the sum of its experts' outputs."""
    launches: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Number of real launches for each simulated kernel, by kind or by `kind.op` (`layernorm.layernorm_backward`); 1 if neither
    is listed."""

    @property
    def late(self) -> bool:
        """Whether launches take time, so that kernels of a pass may wait for them."""
        return self.kernel > 0 or self.collective > 0

    def synchronised(self, job: Job) -> bool:
        """Return whether the host waits until its GPU is idle before each pass, as at messages between stages that do not
        overlap."""
        return self.drains and job.parallelism.pp > 1 and not job.parallelism.overlap.p2p

    def seconds(self, item: Kernel | Collective) -> float:
        """Return the host seconds to launch a kernel or collective once. A grouped GEMM is one call for all its parts; after the
        first part, C++ makes the launches."""
        if isinstance(item, Collective):
            return self.collective
        exact = self.launches.get(f"{item.kind}.{item.op}")
        repeats = self.launches.get(item.kind, 1.0) if exact is None else exact
        of_experts = item.generation == APART or item.kind == "grouped_gemm" or item.op in EXPERT_OPS
        seconds = self.update if item.op in UPDATES else self.experts if of_experts else self.kernel
        return seconds * repeats + min(seconds, NATIVE_CALL) * (single_launch(item)[1] - 1)


def host(job: Job, slowdown: float = 1.0) -> Launcher | None:
    """Return the launch times of a job's framework; None if no framework is named, or its host times are unknown.

    slowdown: launch time on this CPU relative to the CPU on which the framework was measured. Raises UnknownNameError for an
    unknown framework.

    CUDA graphs of layers end at the router unless experts are padded to capacity, because varying shapes cannot be captured
    (Megatron-Core, cuda_graph_scope moe_router and moe_preprocess; moe is for padded experts only).
    """
    times = load(job.training.framework).host if job.training.framework else None
    if times is None:
        return None
    kernel, collective = times.kernel.value * slowdown, times.collective.value * slowdown
    full = job.training.cuda_graphs == "full"
    graph_limit = {"none": kernel + collective, "layer": GRAPH_LAUNCH, "full": 0.0}[job.training.cuda_graphs]
    return Launcher(
        kernel=min(kernel, graph_limit),
        collective=min(collective, graph_limit),
        update=kernel,
        experts=min(kernel, graph_limit) if full or job.training.pad_to_capacity else kernel,
        parameter=times.parameter.value * slowdown,
        part=times.unflattens.value * slowdown if times.unflattens else 0.0,
        drains=times.drains.value,
        launches=times.launches,
    )


def unflattens(job: Job) -> bool:
    """Return whether a job's framework copies gathered parameters into place with one launch per tensor and rank."""
    return _has_habit(job, "unflattens")


def reads_loss(job: Job) -> bool:
    """Return whether a job's host waits for the loss of each microbatch and the norm of each bucket of gradients.

    `training.check_nan` decides if it is set, else the framework. A CUDA graph of all passes excludes such waits.
    """
    check_nan = job.training.check_nan
    return job.training.cuda_graphs != "full" and (_has_habit(job, "reads_loss") if check_nan is None else check_nan)


def reads_counts(job: Job) -> bool:
    """Return whether a job's host waits for the number of rows of each expert before the rows are sent.

    The framework decides. With rows padded to the capacity of each expert, the numbers are known.
    """
    return not job.training.pad_to_capacity and _has_habit(job, "reads_counts")


def _has_habit(job: Job, habit: str) -> bool:
    """Return whether a field of the framework's host table, such as `reads_loss`, is true; False without a framework or field."""
    name = job.training.framework
    entry = getattr(load(name).host, habit, None) if name else None
    return entry is not None and entry.value
