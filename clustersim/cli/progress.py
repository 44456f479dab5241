"""What commands show while they run: the step under way, or a bar over many things; and how many processes they may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from clustersim.serve import PROGRESS, PROGRESS_LINE

if TYPE_CHECKING:
    from clustersim.simulation import Progress

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


@contextmanager
def progressing(silent: bool) -> Iterator[Progress]:
    """Show the step under way while standard error is a terminal, or as lines for a program that asks for them."""
    if os.environ.get(PROGRESS):
        yield lambda step: print(f"{PROGRESS_LINE}{step}", file=sys.stderr, flush=True)
        return
    if silent or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.status import Status

    with Status("load", console=Console(stderr=True)) as status:
        yield status.update
