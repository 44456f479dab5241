"""Kernels of the update of the weights on one rank: gradient norm and scale, optimizer, cleared gradients.

All are memory-bound. One Adam step in fp32 reads gradient, weight and both moments and writes three of them: 28 bytes a
parameter; with 16-bit weights it also writes the model's copy. The distributed optimizer (zero: 1) updates a dp-th, and of
experts that are spread over ranks one part in as many as hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from clustersim.config.evidence import Declared
from clustersim.frameworks import load
from clustersim.hardware.constants import BYTES
from clustersim.hardware.formats import activation_type
from clustersim.model.kernel import Kernel, vector
from clustersim.parallel.job import Job

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
