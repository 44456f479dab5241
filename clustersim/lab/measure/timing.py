"""Seconds of one launch among some that take turns, by the wall clock of a CPU or by CUDA events.

On a GPU a pass over some launches is captured as a CUDA graph: no dispatch by the CPU is in it; what cannot be captured is
launched behind a kernel that keeps the GPU busy meanwhile. Launches take turns on several sets of operands, which together
are larger than the L2 cache: operands come from memory, as in a training step.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from clustersim.lab.measure.device import Device

KernelLaunch = Callable[[], object]
PASS = 5e-4
"""Seconds that a pass should take at least: far above the resolution of events (0.5 us) and the gap before its start."""
MOST = 256
"""Launches in a pass at most."""


class Timing(NamedTuple):
    """Seconds of one launch: median, least and most of `samples` passes."""

    seconds: float
    low: float
    high: float
    samples: int


class Clock(Protocol):
    """A way to time passes."""

    def time(self, launches: Sequence[KernelLaunch], samples: int) -> Timing:
        """Return the seconds of one launch among `launches`, which take turns."""

    def sustain(self, launches: Sequence[KernelLaunch], seconds: float) -> list[float]:
        """Return seconds of one launch in each chunk of a run without pause of about `seconds`."""

    def scope(self) -> Any:
        """Return the context in which operands must be made."""


def play_all(launches: Sequence[KernelLaunch]) -> None:
    """KernelLaunch them all, in order."""
    for launch in launches:
        launch()


def one_pass(launches: Sequence[KernelLaunch], rough: float) -> list[KernelLaunch]:
    """Return the launches, repeated until a pass takes long enough."""
    repeats = int(np.ceil(PASS / max(rough * len(launches), 1e-9)))
    return list(launches) * max(1, min(repeats, MOST // len(launches)))


def summary(seconds: Sequence[float]) -> Timing:
    """Return the median, least and most of some seconds."""
    return Timing(float(np.median(seconds)), min(seconds), max(seconds), len(seconds))


COVER = 2**30
"""Bytes of the fill that runs while the CPU dispatches a pass: 0.2 ms at 5 TB/s."""


class CudaClock:
    """Times with CUDA events on a stream of its own."""

    def __init__(self) -> None:
        import torch

        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.cover = torch.empty(COVER, dtype=torch.uint8, device="cuda")
        gc.collect()
        gc.freeze()  # every capture collects garbage: let it not walk through all modules again

    def scope(self) -> Any:
        """Return the context of the stream: backward passes run on the stream of their forward pass."""
        import torch

        return torch.cuda.stream(self.stream)

    def time(self, launches: Sequence[KernelLaunch], samples: int) -> Timing:
        """Return the seconds of one launch."""
        with self.scope():
            for launch in launches:
                launch()
            rough = min(self.events(lambda: play_all(launches), 2)) / len(launches)
            pieces = one_pass(launches, rough)
            play = self.captured(pieces)
            if play is None:
                return summary([self.events(launches[i % len(launches)], 1)[0] for i in range(samples)])
            self.events(play, 2)
            return summary([seconds / len(pieces) for seconds in self.events(play, samples)])

    def sustain(self, launches: Sequence[KernelLaunch], seconds: float) -> list[float]:
        """Return the seconds of one launch in chunks of about 0.1 s, without a pause between them."""
        with self.scope():
            rough = min(self.events(lambda: play_all(launches), 2)) / len(launches)
            pieces = one_pass(launches, rough)
            play = self.captured(pieces) or (lambda: play_all(pieces))
            repeats = max(1, int(0.1 / (rough * len(pieces))))
            events = [self._event()]
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                for _ in range(repeats):
                    play()
                events.append(self._event())
                if len(events) > 3:
                    events[-3].synchronize()  # two chunks ahead of the GPU: it never waits, the queue stays short
            events[-1].synchronize()
        count = repeats * len(pieces)
        return [one.elapsed_time(two) / 1e3 / count for one, two in pairwise(events)]

    def _event(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return event

    def events(self, play: KernelLaunch, samples: int) -> list[float]:
        """Return the GPU's seconds of some calls, each dispatched while a fill keeps the GPU busy."""
        found = []
        for _ in range(samples):
            self.cover.zero_()
            start = self._event()
            play()
            end = self._event()
            end.synchronize()
            found.append(start.elapsed_time(end) / 1e3)
        return found

    def captured(self, launches: Sequence[KernelLaunch]) -> KernelLaunch | None:
        """Return a call that replays the launches as a CUDA graph; None where one of them asks the CPU meanwhile."""
        import torch

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                play_all(launches)
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        replay: KernelLaunch = graph.replay
        return replay


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
