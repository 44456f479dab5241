"""Times launches on a GPU by CUDA events.

A pass over several launches is captured as a CUDA graph, so that it contains no CPU dispatch. If it cannot be captured,
it is launched behind a kernel that keeps the GPU busy meanwhile. Launches alternate between sets of operands that together
exceed the L2 cache, so that operands come from memory, as in a training step.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

KernelLaunch = Callable[[], object]
PASS = 5e-4
"""Smallest duration of a pass in seconds, far above the resolution of events (0.5 us) and the gap before its start."""
MOST = 256
"""Largest number of launches in a pass."""


class Timing(NamedTuple):
    """Seconds of one launch: median, minimum and maximum of `samples` passes."""

    seconds: float
    low: float
    high: float
    samples: int


class Chunk(NamedTuple):
    """A part of a long run: seconds since its start, seconds of one launch, share of the time in launches."""

    start: float
    seconds: float
    busy: float


TimedChunks = tuple[float, list[Chunk]]


def play_all(launches: Sequence[KernelLaunch]) -> None:
    """Run all launches in order."""
    for launch in launches:
        launch()


def summary(seconds: Sequence[float]) -> Timing:
    """Return the median, minimum and maximum of some seconds."""
    return Timing(float(np.median(seconds)), min(seconds), max(seconds), len(seconds))


COVER = 2**30
"""Bytes of the fill that runs while the CPU dispatches a pass: 0.2 ms at 5 TB/s."""


TURN = 0.01
"""Seconds of one round of launches and filler, short compared with the board's power controller."""
REST = 1.0
"""Seconds of rest before a long run, so that it starts with a cool board at its boost clock."""


class CudaClock:
    """Times with CUDA events on its own stream."""

    def __init__(self) -> None:
        import torch

        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.cover = torch.empty(COVER, dtype=torch.uint8, device="cuda")
        gc.collect()
        gc.freeze()  # every capture collects garbage: let it not walk through all modules again

    def scope(self) -> Any:
        """Return the context of the stream. Backward passes run on the stream of their forward pass."""
        import torch

        return torch.cuda.stream(self.stream)

    def time(self, launches: Sequence[KernelLaunch], samples: int) -> Timing:
        """Return the seconds of one launch, over `samples` passes. `launches` alternate."""
        with self.scope():
            play_all(launches)
            rough = min(self.events(lambda: play_all(launches), 2))
            repeats = int(np.ceil(PASS / max(rough, 1e-9)))
            pieces = list(launches) * max(1, min(repeats, MOST // len(launches)))  # a pass that is long enough
            play = self.captured(pieces)
            if play is None:
                return summary([self.events(launches[i % len(launches)], 1)[0] for i in range(samples)])
            self.events(play, 2)
            return summary([seconds / len(pieces) for seconds in self.events(play, samples)])

    def series(self, launches: Sequence[KernelLaunch], share: float, filler: str, seconds: float) -> TimedChunks:
        """Return the host's time of the start, and chunks of about `TURN` seconds.

        `launches` take `share` of the time; in the rest the GPU waits (`idle`) or copies memory (`copy`).
        """
        import torch

        with self.scope():
            rough = min(self.events(lambda: play_all(launches), 2)) / len(launches)
            count = max(1, round(share * TURN / rough))
            pieces = [launches[i % len(launches)] for i in range(count)]
            play = self.captured(pieces) or (lambda: play_all(pieces))
            fill = self._filler(filler, count * rough * (1 / share - 1))
            events: list[tuple[Any, Any]] = []
            torch.cuda.synchronize()
            time.sleep(REST)
            begin = time.perf_counter()
            while time.perf_counter() < begin + seconds:
                start = self._event()
                play()
                events.append((start, self._event()))
                fill()
                if len(events) > 3:
                    events[-3][1].synchronize()
            last = self._event()
            last.synchronize()
        starts = [events[0][0].elapsed_time(one) / 1e3 for one in (*(start for start, _ in events), last)]
        busy = [start.elapsed_time(stop) / 1e3 for start, stop in events]
        turns = zip(pairwise(starts), busy, strict=True)
        return begin, [Chunk(at, took / count, took / (after - at)) for (at, after), took in turns]

    def _filler(self, kind: str, seconds: float) -> KernelLaunch:
        """Return a call that occupies the GPU for about `seconds`."""
        import torch

        if seconds <= 0:
            return lambda: None
        wait: Callable[[int], object] = torch.cuda._sleep
        if kind == "idle":
            cycles = int(1e6 * seconds / min(self.events(lambda: wait(1_000_000), 2)))
            return lambda: wait(cycles)
        source, target = self.cover.view(2, -1)
        copies = max(1, round(seconds / min(self.events(lambda: target.copy_(source), 3))))
        return self.captured([lambda: target.copy_(source)] * copies) or (lambda: None)

    def _event(self) -> Any:
        """Return a recorded CUDA event."""
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return event

    def events(self, play: KernelLaunch, samples: int) -> list[float]:
        """Return the GPU's seconds of each of `samples` calls. The CPU dispatches it while a fill keeps the GPU busy."""
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
        """Return a call that replays the launches as a CUDA graph, or None if one of them waits for the GPU.

        A failed capture leaves PyTorch's allocator in the graph's memory pool, so a call that waits is detected before.
        """
        import torch

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            torch.cuda.set_sync_debug_mode("error")
            play_all(launches[:1])
        except RuntimeError:
            return None
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                play_all(launches)
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        replay: KernelLaunch = graph.replay
        return replay
