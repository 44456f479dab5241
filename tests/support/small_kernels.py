"""Cases of `clustersim lab profile` with shapes for a CPU, to test that every case runs, not to measure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

import torch

from clustersim.hardware import gpus
from clustersim.lab.measure.cases import Case, DutyCase, Trial, Unavailable
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.profile import MeasurementPlan, WorkItem
from clustersim.lab.measure.timing import Chunk, KernelLaunch, TimedChunks, Timing, play_all, summary
from clustersim.model.kernel import attention, gemm


def cpu(gpu: str | None = None) -> Device:
    """Return the CPU under the name of a GPU."""
    torch.manual_seed(0)
    return Device("cpu", gpus.load(gpu or "h100").name, 0.0, 2.0**30, torch.__version__, "")


class WallClock:
    """Times on a CPU, one run through the launches, in place of a CudaClock."""

    def time(self, launches: Sequence[KernelLaunch], samples: int) -> Timing:
        """Return the seconds of one launch, over `samples` passes."""
        play_all(launches)
        return summary([_wall(launches) for _ in range(samples)])

    def series(self, launches: Sequence[KernelLaunch], share: float, filler: str, seconds: float) -> TimedChunks:
        """Return the chunks of a run. The filler is a pause."""
        begin, chunks = time.perf_counter(), list[Chunk]()
        while not chunks or time.perf_counter() < begin + seconds:
            start = time.perf_counter()
            took = _wall(launches)
            time.sleep(took * len(launches) * (1 / share - 1))
            chunks.append(Chunk(start - begin, took, took * len(launches) / (time.perf_counter() - start)))
        return begin, chunks

    def captured(self, launches: Sequence[KernelLaunch]) -> NoReturn:
        """Raise Unavailable."""
        raise Unavailable("a CPU has neither streams nor graphs")

    def events(self, play: KernelLaunch, samples: int) -> NoReturn:
        """Raise Unavailable."""
        raise Unavailable("a CPU has neither streams nor graphs")

    def scope(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()


def _wall(launches: Sequence[KernelLaunch]) -> float:
    """Return the mean wall time of some launches in seconds."""
    start = time.perf_counter()
    play_all(launches)
    return (time.perf_counter() - start) / len(launches)


class SmallPlan(MeasurementPlan):
    """A plan with small shapes."""

    def work(self) -> list[WorkItem]:
        """Return the cases and trials with small shapes, the lowest tier first."""
        return sorted(distinct(MeasurementPlan.work(self)), key=lambda one: one.tier)


def distinct(work: Iterable[WorkItem]) -> list[WorkItem]:
    """Return the cases and trials with small shapes, each once."""
    found: dict[object, WorkItem] = {}
    for one in work:
        if isinstance(one, DutyCase):
            small: WorkItem = one._replace(case=small_case(one.case), seconds=0.02)
        else:
            small = small_case(one) if isinstance(one, Case) else small_trial(one)
        found.setdefault(small._replace(tier=0), small)
    return list(found.values())


def small_case(one: Case) -> Case:
    """Return a case with sides of at most 32 and a few heads. FLOP and bytes follow."""
    kernel = one.kernel
    if kernel.kind == "flash_attention":
        kv = 1 if kernel.kv_heads < kernel.heads else 2
        small = attention(kernel.op, kernel.dtype, 1, 2, kv, 16, 16, 16, kernel.causal)
    elif kernel.kind in ("linear", "bmm", "grouped_gemm"):
        m, n, k = (max(16, min(side, 32) // 16 * 16) for side in (kernel.m, kernel.n, kernel.k))
        small = gemm(kernel.kind, kernel.op, kernel.dtype, min(kernel.batch, 2), m, n, k, output=2)
    else:
        m, n = min(kernel.m, 8), min(kernel.n, 64)
        share = m * n / (kernel.m * kernel.n)
        small = kernel._replace(m=m, n=n, flop=kernel.flop * share, bytes=kernel.bytes * share)
    return one._replace(kernel=small)


def small_trial(one: Trial) -> Trial:
    """Return a trial with two narrow layers and short sequences."""
    if (model := one.model) is not None:
        model = model._replace(layers=2, hidden=32, heads=2, kv_heads=1 if model.gated else 2, ffn=64, vocab=64)
        model = model._replace(experts=min(model.experts, 4), topk=min(model.topk, 2))
    amount = min(one.amount, 64)
    return one._replace(model=model, seq=min(one.seq, 16), micro_batch=min(one.micro_batch, 2), amount=amount)
