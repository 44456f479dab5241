"""What a clock is: seconds of one launch among some that take turns, by the median of passes that are long enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

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
