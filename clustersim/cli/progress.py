"""What commands that simulate many things share: how many processes, and a bar while they run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tracked(items: Iterator[Item], count: int, silent: bool) -> Iterator[Item]:
    """Pass on `count` items and show a progress bar meanwhile, when standard error is a terminal."""
    if silent or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, "simulate", total=count, console=Console(stderr=True))
