"""Control of Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the search for reference cycles: it takes longer the more objects exist, and the decorated code makes hardly any."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def aged() -> None:
    """Move all existing objects to the oldest generation, which the garbage collector scans least. They contain no cycles."""
    if not gc.get_freeze_count():  # otherwise a forked process would unfreeze objects that are shared with others
        gc.freeze()
        gc.unfreeze()
