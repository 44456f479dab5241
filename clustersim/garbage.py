"""When Python looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Let no cycles be looked for: that takes longer with every object that lives, and what runs here makes none to speak of.

    What lives at its end counts as old: else Python would look through all of it at once.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # else whoever forked would thaw what others share
                gc.freeze()
                gc.unfreeze()
            gc.enable()
