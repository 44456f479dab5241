"""Progress of commands: the current phase, or a bar over many items; and the number of cores."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from clustersim.serve import PROGRESS, PROGRESS_LINE

if TYPE_CHECKING:
    from clustersim.simulation import Progress

Item = TypeVar("Item")
FIRST, EACH = 5.0, 60.0
"""Seconds until a command's first line if standard error is not a terminal, and between later lines."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tracked(items: Iterator[Item], count: int, silent: bool) -> Iterator[Item]:
    """Yield `count` items and show a progress bar; if standard error is not a terminal, an occasional line."""
    if not silent and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(items, "simulate", total=count, console=Console(stderr=True))
        return
    with progressing(silent) as tell:
        for done, item in enumerate(items, 1):
            tell(f"simulate: {done:,} of {count:,} done")
            yield item


@contextmanager
def progressing(silent: bool) -> Iterator[Progress]:
    """Yield the reporter of phases: live in a terminal, as lines for a program that reads them, otherwise rarely, or `silent`."""
    if os.environ.get(PROGRESS) == "1":
        yield lambda step: print(f"{PROGRESS_LINE}{step}", file=sys.stderr, flush=True)
        return
    if silent or not sys.stderr.isatty():
        yield rarely(silent=silent or PROGRESS in os.environ)
        return
    from rich.console import Console
    from rich.status import Status

    with Status("load", console=Console(stderr=True)) as status:
        yield status.update


def rarely(now: Callable[[], float] = time.monotonic, silent: bool = False) -> Progress:
    """Return the reporter for log files: a line after `FIRST` seconds, then one every `EACH` seconds; none if `silent`."""
    begun = now()
    due = math.inf if silent else begun + FIRST

    def tell(step: str) -> None:
        """Print the step if the time for a line has come."""
        nonlocal due
        if (at := now()) >= due:
            due = at + EACH
            with suppress(OSError):  # the reader has ended; the command continues
                print(f"after {at - begun:,.0f} s: {step}", file=sys.stderr, flush=True)

    return tell
