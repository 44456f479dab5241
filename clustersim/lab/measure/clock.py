"""Timing: seconds of one launch among some that take turns, by the wall clock of a CPU or by CUDA events (module cuda)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from clustersim.lab.measure.cuda import CudaClock
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.timing import Clock, KernelLaunch, Timing, summary


def clock(device: Device) -> Clock:
    """Return the clock of a device."""
    return CudaClock() if device.real else WallClock()


class WallClock:
    """Times on a CPU, once through the launches."""

    def time(self, launches: Sequence[KernelLaunch], samples: int) -> Timing:
        """Return the seconds of one launch."""
        for launch in launches:
            launch()
        return summary([_wall(launches) for _ in range(samples)])

    def sustain(self, launches: Sequence[KernelLaunch], seconds: float) -> list[float]:
        """Return the seconds of one launch, chunk by chunk."""
        end, chunks = time.perf_counter() + seconds, [_wall(launches)]
        while time.perf_counter() < end:
            chunks.append(_wall(launches))
        return chunks

    def scope(self) -> Any:
        """Return a context that does nothing."""
        from contextlib import nullcontext

        return nullcontext()


def _wall(launches: Sequence[KernelLaunch]) -> float:
    start = time.perf_counter()
    for launch in launches:
        launch()
    return (time.perf_counter() - start) / len(launches)
