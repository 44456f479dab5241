"""Clock and power of the GPU while it works, by NVML or nvidia-smi; nothing where neither is there."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

PERIOD = 0.1
"""Seconds between two looks."""


class Reading(NamedTuple):
    """SM clock in MHz and board power in W; NaN where they are not known."""

    clock: float = float("nan")
    power: float = float("nan")


def source(real: bool) -> Callable[[], Reading] | None:
    """Return a function that looks at GPU 0 once; None where nothing can."""
    if not real:
        return None
    return _nvml() or _smi()


def _nvml() -> Callable[[], Reading] | None:
    try:
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]

        pynvml.nvmlInit()
        handle = _handle(pynvml)
    except Exception:  # whatever is wrong with NVML, nvidia-smi may still work
        return None

    def look() -> Reading:
        try:
            clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
            return Reading(float(clock), pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3)
        except pynvml.NVMLError:
            return Reading()

    return look


def _handle(pynvml: Any) -> Any:
    import torch

    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    if uuid is None:
        return pynvml.nvmlDeviceGetHandleByIndex(0)
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def _smi() -> Callable[[], Reading] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--id=0", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"]

    def look() -> Reading:
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True)
            clock, power = (float(text) for text in done.stdout.splitlines()[0].split(","))
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return Reading()
        return Reading(clock, power)

    return look


class BoardMeter:
    """Looks again and again while its `with` block runs; `reading()` is the median, without the first `skip` of them."""

    def __init__(self, look: Callable[[], Reading] | None) -> None:
        self.look, self.readings = look, list[Reading]()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BoardMeter:
        """Begin to look."""
        if self.look is not None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        look = self.look
        while look is not None and not self._done.wait(PERIOD):
            self.readings.append(look())

    def reading(self, skip: float = 0.0) -> Reading:
        """Return the median after the share `skip` of the time: clocks and power of a warm GPU."""
        kept = np.array(self.readings[int(skip * len(self.readings)) :], dtype=float).reshape(-1, 2)
        kept = kept[np.isfinite(kept).all(axis=1)]
        return Reading(*np.median(kept, axis=0).tolist()) if len(kept) else Reading()
