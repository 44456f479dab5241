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
from clustersim.model.kernel import APART, Kernel, one_of
from clustersim.model.operator import Collective
from clustersim.parallel.job import Job
from clustersim.parallel.optimizer import UPDATES

EXPERT_OPS: tuple[str, ...] = ("sort_rows", "clear", "scatter_rows", "pad_rows")
EXPERT_OPS += tuple(
    f"{name}{way}"
    for name in ("permute", "unpermute", "weigh_rows", "clamp", "expert_bias")
    for way in ("", "_backward")
)
"""Vector kernels after the router, which only mixtures of experts have."""


class LaunchQueue:
    """Launches of a host and the kernels of its GPU, which are both free at 0; times in seconds.

    launched: end of the last launch so far. over: end of the last kernel.
    """

    __slots__ = ("launched", "over")

    def __init__(self) -> None:
        self.launched = self.over = 0.0

    def run(self, launch: float, seconds: float) -> bool:
        """Launch a kernel that runs for `seconds` (host: `launch`). Return whether the GPU waited for its launch."""
        self.launched += launch
        late = self.launched > self.over
        self.over = (self.launched if late else self.over) + seconds
        return late


@dataclass(frozen=True, slots=True)
class Launcher:
    """Seconds that a framework's process takes for each kind of launch."""

    kernel: float
    """Seconds per kernel of a pass, with the Python and C++ around it."""
    collective: float
    """Seconds per collective or message."""
    update: float
    """Seconds per kernel of the weight update."""
    parameter: float
    """Seconds per parameter tensor at the update."""
    part: float
    """Seconds per part of a gathered tensor that is copied into place."""
    drains: bool
    """Whether the host waits until its GPU is idle at each pipeline message, if passes wait for messages. At the update, where it
    reads the gradient norm, it always waits."""
    experts: float
    """Seconds per kernel between the router of a mixture and the sum of its experts' outputs."""
    launches: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Number of launches per kernel of ours, by kind or by kind and op (`layernorm.layernorm_backward`); 1 if not listed."""

    @property
    def late(self) -> bool:
        """Whether passes may wait for launches."""
        return self.kernel > 0 or self.collective > 0

    def synchronised(self, job: Job) -> bool:
        """Return whether the host waits until its GPU is idle before each pass of a job."""
        return self.drains and job.parallelism.pp > 1 and not job.parallelism.overlap.p2p

    def seconds(self, item: Kernel | Collective) -> float:
        """Return the seconds to launch an item. All parts of a grouped GEMM are one call, whose launches C++ makes."""
        if isinstance(item, Collective):
            return self.collective
        exact = self.launches.get(f"{item.kind}.{item.op}")
        often = self.launches.get(item.kind, 1.0) if exact is None else exact
        of_experts = item.generation == APART or item.kind == "grouped_gemm" or item.op in EXPERT_OPS
        each = self.update if item.op in UPDATES else self.experts if of_experts else self.kernel
        return each * often + min(each, NATIVE_CALL) * (one_of(item)[1] - 1)


def host(job: Job, slowdown: float = 1.0) -> Launcher | None:
    """Return the launcher of a job's passes; None if no framework is named, or its host times are unknown.

    CUDA graphs of layers end at the router unless experts are padded to capacity, because varying shapes cannot be captured
    (Megatron-Core, cuda_graph_scope moe_router and moe_preprocess; moe is for padded experts only).

    slowdown: time of this CPU over the time of the framework's measured one. Raises UnknownNameError for an unknown framework.
    """
    found = load(job.training.framework).host if job.training.framework else None
    if found is None:
        return None
    kernel, collective = found.kernel.value * slowdown, found.collective.value * slowdown
    full = job.training.cuda_graphs == "full"
    most = {"none": kernel + collective, "layer": GRAPH_LAUNCH, "full": 0.0}[job.training.cuda_graphs]
    return Launcher(
        kernel=min(kernel, most),
        collective=min(collective, most),
        update=kernel,
        experts=min(kernel, most) if full or job.training.pad_to_capacity else kernel,
        parameter=found.parameter.value * slowdown,
        part=found.unflattens.value * slowdown if found.unflattens else 0.0,
        drains=found.drains.value,
        launches=found.launches,
    )


def unflattens(job: Job) -> bool:
    """Return whether a job's framework copies gathered parameters back into place, tensor by tensor and rank by rank."""
    return _does(job, "unflattens")


def reads_loss(job: Job) -> bool:
    """Return whether a job's host waits for the loss of each microbatch and the norm of each bucket of gradients.

    A CUDA graph of all passes excludes such waits.
    """
    said = job.training.check_nan
    return job.training.cuda_graphs != "full" and (_does(job, "reads_loss") if said is None else said)


def reads_counts(job: Job) -> bool:
    """Return whether a job's host waits for the counts of rows before it sends the rows to their experts.

    If each expert gets exactly its capacity of rows, the counts are known.
    """
    return not job.training.pad_to_capacity and _does(job, "reads_counts")


def _does(job: Job, habit: str) -> bool:
    """Return whether a job names a framework whose host has the habit, a field of its table such as `reads_loss`."""
    name = job.training.framework
    found = getattr(load(name).host, habit, None) if name else None
    return found is not None and found.value
