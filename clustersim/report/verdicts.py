"""What a reader must be told beside the figures: memory too close to tell, GPUs that idle, options that cost speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clustersim.parallel.host import host
from clustersim.parallel.job import Job
from clustersim.parallel.nearby import Nearby
from clustersim.units import gibibytes, seconds

CLOSE = 0.03
"""Share of a GPU's memory within which a forecast of it cannot tell: what frameworks keep beside tensors differs by that."""

SLOWER = 0.005
"""Share of a step by which overlap has to make it longer for that to be said."""


def verdict(need: float, have: float) -> str:
    """Return `fits`, `close` (within 3 % of the limit, on either side), or `does not fit`; bytes."""
    if need > (1 + CLOSE) * have:
        return "does not fit"
    return "fits" if need < (1 - CLOSE) * have else "close"


def warnings(job: Job, need: float, have: float) -> list[str]:
    """Return what makes the answer doubtful or needlessly bad, each with its remedy.

    need, have: bytes of the fullest rank, and of its GPU.
    """
    split, found = job.parallelism, []
    if verdict(need, have) == "close":
        found.append(
            f"memory is within 3 % of the limit ({gibibytes(need)} of {gibibytes(have)}), too close to tell; "
            "leave room by a higher tp or pp, a smaller micro_batch or recompute"
        )
    if split.vpp > 1 and split.pp > 1 and not split.overlap.p2p:
        found.append(
            f"every send of the {split.vpp} chunks a rank is waited for, which can make {split.schedule} slower than 1f1b; "
            "set parallelism.overlap.p2p: true (Megatron: --overlap-p2p-communication) if sends run beside computation"
        )
    return found


def slower_overlap(how: str, step: float, plain: float) -> str:
    """Return what to say of tensor-parallel overlap with which a step takes longer; seconds with it and without."""
    return (
        f"parallelism.overlap.tp: {how} makes the step {step / plain - 1:.1%} longer: {seconds(plain)} without; "
        "chunks of these layers are too small to hide what they cost, so leave it out"
    )


def not_modelled(jobs: Sequence[Job]) -> list[str]:
    """Return what the answer leaves out, as the files of the jobs are."""
    shares = {
        "memory bandwidth": all(job.memory_beside != 0 for job in jobs),
        "SMs": all(job.sms_beside != 0 for job in jobs),
    }
    taken = " and ".join(name for name, told in shares.items() if not told)
    launched = all(host(job) for job in jobs)
    cpu = "CPU overhead beyond the launch of kernels" if launched else "the CPU that launches kernels"
    beside = [f"{taken} that communication takes from computation beside it"] if taken else []
    return ["packet loss, PFC and incast", *beside, f"{cpu}, data loading and checkpoints"]


def idle_facts(gpus: int, used: int, nearby: Nearby | None) -> dict[str, Any]:
    """Return how many GPUs of the cluster idle, their share of it, and what would use more of them."""
    return {
        "gpus": gpus - used,
        "share": (gpus - used) / gpus,
        "suggestion": {"options": nearby.options, "changes": dict(nearby.changes), "gpus": nearby.gpus}
        if nearby
        else None,
    }
