"""Parameters gathered into buckets that are reduced or gathered at once, as Megatron's overlap does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from clustersim.config.evidence import Declared
from clustersim.frameworks import load
from clustersim.hardware.constants import BYTES
from clustersim.hardware.formats import activation_type
from clustersim.model.kernel import Kernel, vector
from clustersim.parallel.job import Job


def copied(job: Job) -> list[tuple[str, bool]]:
    """Return the families over which parameters have copies, and whether it is those of experts that are spread over ranks."""
    found = [("dp", False), ("edp", True)] if job.parallelism.spread else [("dp", False)]
    return [(family, expert) for family, expert in found if job.copies(expert) > 1]


class Bucket(NamedTuple):
    """Parameters whose gradients are reduced together, or that are gathered together."""

    position: int
    """Where in a pass they are ready, or first read."""
    parameters: float
    """How many they are."""


def bucket(job: Job) -> float:
    """Return the parameters of a bucket; the default is Megatron's (megatron/core/distributed/distributed_data_parallel.py)."""
    return job.parallelism.bucket or max(40_000_000, 1_000_000 * job.copies(expert=False))


def last_ready(ready: Sequence[tuple[int, float]], size: float) -> list[Bucket]:
    """Gather (position, parameters) into buckets of at least `size`, each at its last position; the last takes the rest."""
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
    """Gather (position, parameters) into buckets of at least `size`, each at its first position."""
    result: list[Bucket] = []
    for position, parameters in used:
        if result and result[-1].parameters < size:
            result[-1] = Bucket(result[-1].position, result[-1].parameters + parameters)
        else:
            result.append(Bucket(position, parameters))
    return result or [Bucket(0, 0.0)]


MOMENTS: Annotated[Mapping[str, int], Declared()] = {"adam": 2, "sgd": 1, "none": 0}
"""State of each parameter, in the data type of `training.moments`: two moments, one momentum."""


UPDATES = frozenset(
    {
        "gradients_to_fp32",
        "gradient_norm",
        "gradient_scale",
        "weights_from_fp32",
        "zero_gradients",
        "put_back_parameters",
    }
    | MOMENTS.keys()
)
"""The kernels of an update by op."""


def update(job: Job, parameters: int, experts: int = 0) -> tuple[Kernel, ...]:
    """Return the kernels that update `parameters` (those of one rank) after the gradients are reduced.

    experts: how many of them belong to experts that are spread over ranks.
    """
    kind = job.training.optimizer
    if kind == "none":
        return ()
    own = _share(job, parameters - experts, False) + _share(job, experts, True)
    gradient, weight = BYTES[job.training.gradients], weight_bytes(job)
    widen = (("gradients_to_fp32", own, gradient + 4),) if gradient < 4 else ()
    whole = not job.sharded  # else weights are cast where they are gathered, and gradients are made anew
    clipped = parameters if reduces_whole(job) else own
    clip = (("gradient_norm", clipped, 4.0), ("gradient_scale", clipped, 8.0)) if job.training.clip_gradients else ()
    step = (kind, own, 2 * _moments(job) + 4 + 8.0)
    cast = (("weights_from_fp32", own, 4 + weight),) if weight < 4 and whole else ()
    clear = (("zero_gradients", parameters, gradient),) if job.training.kernels == "fused" and whole else ()
    return tuple(_pass(op, count, traffic) for op, count, traffic in (*widen, *clip, step, *cast, *clear))


def reduces_whole(job: Job) -> bool:
    """Return whether a job's framework all-reduces gradients of which each rank needs its part alone."""
    found = load(job.training.framework).reduces_whole if job.training.framework else None
    return found is not None and found.value


def put_back(job: Job, parameters: int) -> Kernel:
    """Return the copies of gathered parameters from a buffer into place, as one kernel: each is read and written."""
    return _pass("put_back_parameters", parameters, 2 * weight_bytes(job))


def _share(job: Job, parameters: int, expert: bool) -> int:
    """Return how many of `parameters` this rank updates."""
    return -(-parameters // job.shards(expert))


def _pass(op: str, parameters: int, traffic: float) -> Kernel:
    return vector("memory", op, "fp32", 1, parameters, 0.0, traffic)


def weight_bytes(job: Job) -> float:
    """Return the bytes of one weight in the model; narrow formats keep bf16 weights (Transformer Engine's default)."""
    return BYTES[activation_type(job.training.precision)]


def state_bytes(job: Job) -> float:
    """Return the bytes of optimizer state a parameter, before any sharding: moments, and an fp32 master of narrow weights.

    Sharded parameters are their own master.
    """
    trained = job.training.optimizer != "none"
    master = 4 if trained and weight_bytes(job) < 4 and not job.sharded else 0
    return float(_moments(job) + master)


def _moments(job: Job) -> float:
    """Return the bytes of moments a parameter."""
    return MOMENTS[job.training.optimizer] * BYTES[job.training.moments]
