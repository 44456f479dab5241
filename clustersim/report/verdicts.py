"""Warnings of a summary: whether a job likely fits, idle GPUs, options that cost speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from clustersim.config.evidence import Declared
from clustersim.parallel.host import host
from clustersim.parallel.job import Job
from clustersim.parallel.nearby import Nearby
from clustersim.units import gibibytes, seconds


class Band(NamedTuple):
    """Published runs, crashed ones included, with about the same need of their GPU's memory."""

    to: float
    """Largest share of the GPU's memory that a run of this band needs by its forecast."""
    ran: int
    published: int

    @property
    def share(self) -> float:
        """Share of the runs that succeeded."""
        return self.ran / self.published

    @property
    def text(self) -> str:
        """Share of the runs that succeeded, in words."""
        return f"{self.ran or 'none'} of {self.published} published mappings this full ran"


FULLEST: Annotated[float, Declared(chosen_on="the fullest published step that ran")] = 1.04
"""Share of a GPU's memory above which no published step ran, by its forecast (Nemotron-4 340B on 128 H100, NVIDIA DGX Cloud
benchmarking 24.11). Steps that keep activations on the host or weights only in fp8 are excluded, because that is not modelled."""
BANDS = (
    Band(0.35, 421, 422),
    Band(0.83, 157, 168),
    Band(0.975, 11, 51),
    Band(FULLEST, 0, 11),
    Band(math.inf, 0, 129),
)
"""All 781 runs with a forecast of one 3.57B model on 8 to 512 H100 (nanotron; Hugging Face, Ultra-Scale Playbook), the only
publisher that also reports crashes, whatever their cause. Adjacent bands are pooled until shares fall monotonically (Ayer et al.
1955). `scripts/nanotron-memory` counts them. NCCL's memory per communicator did not separate them better."""
WORDS = {"likely": "likely fits", "unlikely": "unlikely to fit", "no": "DOES NOT FIT"}
"""{verdict: words}"""
LIKELY: Annotated[float, Declared()] = 0.5
"""Share of published runs that succeeded above which a job likely fits."""

SLOWER = 0.005
"""Smallest share of a step by which overlap lengthens it that gives a warning."""


def band(need: float, have: float) -> Band:
    """Return the published runs with the same memory level as a job that needs `need` of `have` bytes.

    More need or less memory never gives a band with a larger share.
    """
    return next(level for level in BANDS if need <= level.to * have)


def verdict(need: float, have: float) -> str:
    """Return whether `need` fits into `have` bytes: `likely`, `unlikely`, or `no` if no published run at this level succeeded."""
    level = band(need, have)
    return "no" if level.to > FULLEST else "likely" if level.share > LIKELY else "unlikely"


def largest_share(unlikely: bool) -> float:
    """Return the largest share of a GPU's memory for a job that likely fits, or with `unlikely` for one that may fit."""
    return FULLEST if unlikely else max(level.to for level in BANDS if level.share > LIKELY)


def warnings(job: Job, need: float, have: float) -> list[str]:
    """Return warnings with their remedies, or []: the job is unlikely to fit; an interleaved pipeline does not overlap its sends.

    A job that cannot fit gets no memory warning. need, have: highest peak of a rank and memory of its GPU, in bytes.
    """
    split, sentences = job.parallelism, []
    if verdict(need, have) == "unlikely":
        sentences.append(
            f"unlikely to fit: {gibibytes(need)} of {gibibytes(have)}, and {band(need, have).text}; "
            "leave room by a higher tp, pp or cp, a smaller micro_batch or recompute"
        )
    if split.vpp > 1 and split.pp > 1 and not split.overlap.p2p:
        sentences.append(
            f"every send of the {split.vpp} chunks a rank is waited for, which can make {split.schedule} slower than 1f1b; "
            "set parallelism.overlap.p2p: true (Megatron: --overlap-p2p-communication) if sends run beside computation"
        )
    return sentences


def slower_overlap(overlap: str, step: float, plain: float) -> str:
    """Return the warning for tensor-parallel overlap that lengthens a step to `step` seconds, from `plain` without it."""
    return (
        f"parallelism.overlap.tp: {overlap} makes the step {step / plain - 1:.1%} longer: {seconds(plain)} without; "
        "chunks of these layers are too small to hide what they cost, so leave it out"
    )


def not_modelled(jobs: Sequence[Job]) -> list[str]:
    """Return the effects that the answer leaves out, given the jobs."""
    shares = {
        "memory bandwidth": all(job.communication_memory != 0 for job in jobs),
        "SMs": all(job.communication_sms != 0 for job in jobs),
    }
    taken = " and ".join(name for name, modelled in shares.items() if not modelled)
    launched = all(host(job) for job in jobs)
    cpu = "CPU overhead beyond the launch of kernels" if launched else "the CPU that launches kernels"
    contention = [f"{taken} that communication takes from computation beside it"] if taken else []
    return ["packet loss, PFC and incast", *contention, f"{cpu}, data loading and checkpoints"]


def idle_facts(gpus: int, used: int, nearby: Nearby | None) -> dict[str, Any]:
    """Return {`gpus`: number of idle GPUs, `share`: theirs of the cluster, `suggestion`: a split that would use more, or None}.

    The suggestion is {`options`, `changes`, `gpus`}. used: number of GPUs with a rank.
    """
    split = nearby and {"options": nearby.options, "changes": dict(nearby.changes), "gpus": nearby.gpus}
    return {"gpus": gpus - used, "share": (gpus - used) / gpus, "suggestion": split}
