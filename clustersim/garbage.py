"""When Python looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Let no cycles be looked for: that takes longer with every object that lives, and what runs here makes none to speak of."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def aged() -> None:
    """Let what lives count as old: else Python looks through all of it as soon as it looks again. No cycles are among it."""
    if not gc.get_freeze_count():  # else a forked process would thaw what others share
        gc.freeze()
        gc.unfreeze()
