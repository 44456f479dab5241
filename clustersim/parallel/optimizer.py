"""Weight updates: buckets of parameters, kernels of each optimizer, and bytes of optimizer state.

Buckets of parameters are reduced or gathered together, as with Megatron's overlap of gradient reduction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from clustersim.config.evidence import Declared
from clustersim.config.workload import Model
from clustersim.frameworks.table import load
from clustersim.hardware.constants import BYTES
from clustersim.hardware.formats import activation_type
from clustersim.model.kernel import Kernel, gemm, vector
from clustersim.model.parameters import distinct_kinds, named_products
from clustersim.model.parameters import parameters as total_parameters
from clustersim.model.sharding import gated, width
from clustersim.parallel.job import Job
from clustersim.parallel.stages import stages


def replicated_families(job: Job) -> list[tuple[str, bool]]:
    """Return (rank family, whether it is that of spread experts) for each family over which a job's parameters are replicated.

    The families are `dp` and, if experts are spread over ranks, `edp`. A family of one rank is left out.
    """
    families = [("dp", False), ("edp", True)] if job.parallelism.spread else [("dp", False)]
    return [(family, expert) for family, expert in families if job.copies(expert) > 1]


class Bucket(NamedTuple):
    """Parameters whose gradients are reduced together, or that are gathered together."""

    position: int
    """Number of steps of a pass after which the parameters are ready, or before which they are first read."""
    parameters: float
    """Number of parameters."""


def bucket(job: Job, copies: int | None = None) -> float:
    """Return the number of parameters per bucket.

    copies: number of ranks with the same parameters; None: the job's number for dense parameters. The default size is Megatron's
    (megatron/core/distributed/distributed_data_parallel.py).
    """
    return job.parallelism.bucket or max(40_000_000, 1_000_000 * (copies or job.copies(expert=False)))


def last_ready(ready: Sequence[tuple[int, float]], size: float) -> list[Bucket]:
    """Return buckets of at least `size` parameters, each at the position of its last parameters. The last bucket has the rest.

    ready: pairs (position, number of parameters) in order of position. If it is empty, the result is one empty bucket at 0.
    """
    result: list[Bucket] = []
    filled = 0.0
    for position, parameters in ready:
        filled += parameters
        if filled >= size:
            result.append(Bucket(position, filled))
            filled = 0.0
    if filled or not result:
        result.append(Bucket(ready[-1][0] if ready else 0, filled))
    return result


def first_reads(used: Sequence[tuple[int, float]], size: float) -> list[Bucket]:
    """Return buckets of at least `size` parameters, each at the position of its first parameters. The last bucket has the rest.

    used: pairs (position, number of parameters) in order of position. If it is empty, the result is one empty bucket at 0.
    """
    result: list[Bucket] = []
    for position, parameters in used:
        if result and result[-1].parameters < size:
            result[-1] = Bucket(result[-1].position, result[-1].parameters + parameters)
        else:
            result.append(Bucket(position, parameters))
    return result or [Bucket(0, 0.0)]


MOMENTS: Annotated[Mapping[str, int], Declared()] = {
    "adam": 2,
    "adam8bit": 2,
    "adafactor": 0,
    "muon": 1,
    "lion": 1,
    "lion8bit": 1,
    "sgd": 1,
    "none": 0,
}
"""Number of moments per parameter, by optimizer; moments have the data type of `training.moments`. Muon has one for matrices
inside blocks; Adafactor's means of rows and columns are negligible."""
EIGHT_BIT: Annotated[float, Declared("B")] = 1 + 4 / 2048
"""Bytes of a moment of 8-bit Adam or Lion: one byte, and an fp32 scale per 2,048 moments (bitsandbytes, functional.py)."""
ITERATIONS: Annotated[int, Declared()] = 5
"""Newton–Schulz iterations of Muon (Megatron-LM d98e8a6, core/optimizer/optimizer_config.py: muon_num_ns_steps)."""
SEPARATE: Annotated[Mapping[str, float], Declared("B")] = {"adafactor": 72.0, "muon": 52.0}
"""Bytes per fp32 parameter that an optimizer of separate kernels moves beyond one pass; its values have the weights' type.
Adafactor's move 84 (transformers 005edac, optimization.py), Muon's 72 outside its iterations (Emerging-Optimizers 116b71a)."""
PASSES: Annotated[Mapping[str, tuple[int, int]], Declared()] = {
    "fused": (2, 3),
    "foreach": (7, 6),
    "loop": (7, 6),
    "composer": (8, 6),
}
"""(times that the pair of moments, times that one tensor of the weights' type is read or written) per Adam update; a tensor of
the moments' type counts as half a pair. Eight kernels (torch/optim/adam.py), or nine: Composer scales the mean before it adds
the gradient (composer/optim/decoupled_weight_decay.py, DecoupledAdamW.adamw)."""

UPDATES = frozenset(
    {
        "gradients_to_fp32",
        "gradient_norm",
        "gradient_scale",
        "weights_from_fp32",
        "zero_gradients",
        "put_back_parameters",
        "newton_schulz",
    }
    | MOMENTS.keys()
)
"""Ops of the kernels of a weight update."""


def update(job: Job, parameters: int, experts: int = 0) -> tuple[Kernel, ...]:
    """Return the kernels of one rank's weight update, from reduced gradients to updated weights; () without an optimizer.

    parameters: number of parameters of the rank before sharding. experts: how many of them belong to spread experts. What the
    host updates is left out.
    """
    kind = job.training.optimizer
    if kind == "none":
        return ()
    counts = ((parameters - experts, job.shards(False)), (experts, job.shards(True)))
    shard = sum(-(-count // ranks) for count, ranks in counts)
    on_gpu = math.ceil(shard * (1 - job.training.offload.optimizer_states))
    gradient, weight = BYTES[job.training.gradients], weight_bytes(job)
    widen = (("gradients_to_fp32", on_gpu, gradient + 4),) if gradient < 4 and main_bytes(job) == 4 else ()
    replicated = not job.sharded  # sharded weights are cast while gathered, and their gradients are allocated per pass
    clipped = parameters if has_habit(job, "reduces_whole") else on_gpu if gradients_leave(job) else shard
    main = main_bytes(job)
    clip = (("gradient_norm", clipped, main), ("gradient_scale", clipped, 2 * main))[: 2 * job.training.clip_gradients]
    share = matrix_share(job.model) if kind == "muon" else 1.0
    moment_passes, weight_passes = PASSES[job.training.optimizer_kernels if kind == "adam" else "fused"]
    traffic = moment_passes * moment_bytes(job) + weight_passes * main + share * SEPARATE.get(kind, 0.0) * main / 4
    step = (kind, on_gpu, traffic)
    cast = (("weights_from_fp32", on_gpu, 4 + weight),) if weight < main and replicated else ()
    clear = (("zero_gradients", parameters, gradient),) if job.training.kernels == "fused" and replicated else ()
    passes = tuple(_memory_kernel(*arguments) for arguments in (*widen, *clip, step, *cast, *clear) if arguments[1])
    return (*passes, *_newton_schulz(job, counts)) if kind == "muon" else passes


class Matrices(NamedTuple):
    """Weights of one shape that Muon updates as whole matrices."""

    rows: int
    """Number of rows of one matrix."""
    columns: int
    """Number of columns of one matrix."""
    copies: int
    """Number of matrices of this shape in the model."""
    routed: bool
    """Whether the matrices belong to experts to which a router sends tokens."""


def matrices(model: Model) -> list[Matrices]:
    """Return the weights inside the blocks of a model, one entry per shape; shapes are those without tensor parallelism.

    Queries, keys and values are separate matrices; a gate is one with the weights that it gates. Embeddings, head, norms and
    biases use Adam (Megatron-LM d98e8a6: core/optimizer/emerging_optimizers).
    """
    counts: Counter[tuple[int, int, bool]] = Counter()
    for kind, layers in distinct_kinds(model):
        hidden, weights = kind.hidden, named_products(kind)
        for name in ("query_proj", "key_proj", "value_proj", "in_proj"):
            if name in weights:
                counts[hidden, max(weights[name] // hidden, 1), False] += layers
        counts[weights.get("out_proj", 0) // hidden, hidden, False] += layers
        if not kind.feed_forward:
            continue
        shared = kind.shared_ffn or width(kind), kind.shared_experts, False
        for ffn, experts, routed in ((width(kind), kind.experts or 1, bool(kind.experts)), shared):
            counts[hidden, (1 + gated(kind)) * ffn, routed] += layers * experts
            counts[ffn, hidden, routed] += layers * experts
    return [
        Matrices(rows, columns, count, routed) for (rows, columns, routed), count in counts.items() if count and rows
    ]


def matrix_share(model: Model) -> float:
    """Return the share of a model's parameters, between 0 and 1, that Muon updates as `matrices`."""
    return min(sum(math.prod(shape[:3]) for shape in matrices(model)) / total_parameters(model), 1.0)


def _newton_schulz(job: Job, counts: Sequence[tuple[int, int]]) -> tuple[Kernel, ...]:
    """Return the kernels of the Newton–Schulz updates of a rank, matrix by matrix.

    counts: (number of the rank's parameters, ranks over which their update is divided) of dense parameters and of spread experts.

    An iteration on X of m rows and n columns, m <= n, computes A = X·Xᵀ, its square, and its product with X. The last two are
    added to copies of A and X (torch.addmm). Tensor-parallel ranks repeat the work on whole matrices (muon_tp_mode: duplicated).
    """
    pipeline, split = stages(job)[: job.pipeline.stages], job.parallelism
    totals = sum(stage.dense for stage in pipeline), split.ep * sum(stage.experts for stage in pipeline)
    kernels: list[Kernel] = []
    for shape in matrices(job.model):
        spread = shape.routed and split.spread
        (count, ranks), total = counts[spread], totals[spread]
        m, n = sorted((shape.rows, shape.columns))
        first, square, last = (
            gemm("linear", "newton_schulz", "bf16", 1, *dimensions) for dimensions in ((m, m, n), (m, m, m), (m, n, m))
        )
        copies = [_memory_kernel("newton_schulz", m * side, 2 * BYTES["bf16"]) for side in (m, n)]
        iteration = (first, copies[0], square, copies[1], last)
        kernels += iteration * ITERATIONS * -(-shape.copies * count // (ranks * total))
    return tuple(kernels)


def has_habit(job: Job, name: Literal["reduces_whole", "broadcasts"]) -> bool:
    """Return whether the field `name` of the framework's table, a `frameworks.table.Framework`, is true; False without one."""
    entry = getattr(load(job.training.framework), name) if job.training.framework else None
    return entry is not None and entry.value


def put_back(job: Job, parameters: int) -> Kernel:
    """Return the copies of gathered parameters from a buffer into place as one kernel, which reads and writes each one."""
    return _memory_kernel("put_back_parameters", parameters, 2 * weight_bytes(job))


def _memory_kernel(op: str, parameters: int, traffic: float) -> Kernel:
    """Return a memory-bound kernel over `parameters` elements that moves `traffic` bytes per element."""
    return vector("memory", op, "fp32", 1, parameters, 0.0, traffic)


def weight_bytes(job: Job) -> float:
    """Return the bytes per weight that passes read; fp8 and fp4 keep bf16 weights (Transformer Engine's default)."""
    return BYTES[activation_type(job.training.precision)]


def state_bytes(job: Job) -> float:
    """Return the bytes of optimizer state per parameter before sharding: moments, and a master copy of narrower weights.

    Sharded parameters have no separate master, nor have weights that are updated in their own type or not at all.
    """
    trained = job.training.optimizer != "none"
    master = main_bytes(job) if trained and weight_bytes(job) < main_bytes(job) and not job.sharded else 0
    return float(moment_bytes(job) + master)


def main_bytes(job: Job) -> float:
    """Return the bytes of a weight in the type in which the optimizer updates it, at least 2. Its gradient there has the same
    type.

    PyTorch's optimizers allocate moments like the weights (torch/optim/adamw.py, zeros_like), so that the type of the moments of
    sharded parameters tells the type of the weights.
    """
    dtype = job.training.main_params or (job.training.moments if job.parallelism.zero == 3 else "fp32")
    return max(BYTES[dtype], 2.0)


def gradients_leave(job: Job) -> bool:
    """Return whether gradients move to the host as soon as they are reduced (ZeRO-2 and 3) instead of at the update."""
    return job.training.offload.optimizer_states > 0 and job.parallelism.zero >= 2


def moment_bytes(job: Job) -> float:
    """Return the bytes of all moments per parameter; for Muon the mean over matrices and other parameters, which use Adam."""
    kind = job.training.optimizer
    bytes_each = EIGHT_BIT if kind.endswith("8bit") else BYTES[job.training.moments]
    share = matrix_share(job.model) if kind == "muon" else 1.0
    return (share * MOMENTS[kind] + (1 - share) * MOMENTS["adam"]) * bytes_each
