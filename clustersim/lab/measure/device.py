"""The measuring device, a CUDA GPU, or in tests the CPU; and its clock and power from NVML or nvidia-smi."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from clustersim.errors import InputError, UnknownNameError
from clustersim.extras import need
from clustersim.hardware import gpus
from clustersim.lab.measure.cases import Unavailable

TORCH = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
}


@dataclass(frozen=True, slots=True)
class Device:
    """Device of the tensors, and the values of every row: names of GPU, torch and CUDA; `l2` and `memory` in bytes."""

    kind: str
    gpu: str
    l2: float
    memory: float
    torch: str
    cuda: str

    @property
    def real(self) -> bool:
        """Whether this is a GPU."""
        return self.kind == "cuda"

    def dtype(self, name: str) -> Any:
        """Return torch's data type of that name. Raises Unavailable."""
        import torch

        if name not in TORCH or not hasattr(torch, TORCH[name]):
            raise Unavailable(f"torch has no {name}")
        return getattr(torch, TORCH[name])

    def normal(self, shape: Sequence[int], dtype: str, grad: bool = False) -> Any:
        """Return normally distributed values, with gradients if `grad`. Zeros would draw less power and run at higher clocks."""
        import torch

        kind = self.dtype(dtype)
        wide = torch.randn(*shape, device=self.kind, dtype=torch.bfloat16 if dtype == "fp8" else kind)
        return wide.to(kind).requires_grad_(grad)

    def integers(self, count: int, below: int) -> Any:
        """Return `count` random integers in [0, below), like token ids."""
        import torch

        return torch.randint(below, (count,), device=self.kind)

    def release(self) -> None:
        """Free the cached memory of the last case if it is more than a quarter of the GPU's."""
        import gc

        import torch

        if self.real and torch.cuda.memory_reserved() > self.memory / 4:
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def cuda(gpu: str | None = None) -> Device:
    """Return the first CUDA GPU. If its name is unknown, `gpu` names one of `gpus/` or a YAML file.

    Raises InputError without a GPU, or for one without a description.
    """
    need("torch", "`lab profile`")
    import torch

    if not torch.cuda.is_available():
        why = "this PyTorch is a CPU build" if torch.version.cuda is None else "PyTorch finds no CUDA device"
        raise InputError(f"`lab profile` measures on a CUDA GPU, and {why}; run it where a GPU is")
    facts = torch.cuda.get_device_properties(0)
    try:
        known = gpus.load(gpu or facts.name)
    except UnknownNameError as error:
        raise InputError(f"{error}; describe {facts.name!r} in a YAML file and name it with --gpu") from error
    torch.manual_seed(0)
    name = gpu if gpu and gpu.endswith((".yaml", ".yml")) else known.name
    return Device("cuda", name, known.l2, float(facts.total_memory), torch.__version__, str(torch.version.cuda))


PERIOD = 0.1
"""Seconds between two readings."""


class Reading(NamedTuple):
    """SM clock in MHz, board power in W, GPU temperature in °C; NaN if unknown.

    `reasons` are NVML's bits for why the clock is below its maximum (nvmlClocksEventReason…).
    """

    clock: float = float("nan")
    power: float = float("nan")
    temperature: float = float("nan")
    reasons: float = float("nan")


def source(real: bool) -> Callable[[], Reading] | None:
    """Return a function that reads GPU 0 once, or None if nothing can, or if `real` is false."""
    if not real:
        return None
    return _nvml() or _smi()


def _nvml() -> Callable[[], Reading] | None:
    """Return a function that reads GPU 0 by NVML, None if NVML does not work."""
    try:
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]

        pynvml.nvmlInit()
        handle = _handle(pynvml)
    except Exception:  # whatever is wrong with NVML, nvidia-smi may still work
        return None

    def look() -> Reading:
        """Return one reading, of NaN if NVML fails."""
        try:
            clock = float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            return Reading(clock, _watts(pynvml, handle), *_state(pynvml, handle))
        except pynvml.NVMLError:
            return Reading()

    return look


INSTANT = 186
"""NVML_FI_DEV_POWER_INSTANT: instantaneous power; nvmlDeviceGetPowerUsage returns the mean of a second."""


def _watts(pynvml: Any, handle: Any) -> float:
    """Return the board's power in W, instantaneous if the driver knows it."""
    try:
        [field] = pynvml.nvmlDeviceGetFieldValues(handle, [INSTANT])
        if field.nvmlReturn == 0 and field.value.uiVal > 0:
            return float(field.value.uiVal) / 1e3
    except (pynvml.NVMLError, AttributeError, ValueError):
        pass
    return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1e3


def _state(pynvml: Any, handle: Any) -> tuple[float, float]:
    """Return temperature in °C and the reasons of a lower clock; NaN if unknown."""
    try:
        temperature = float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
        return temperature, float(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    except (pynvml.NVMLError, AttributeError):
        return float("nan"), float("nan")


def _handle(pynvml: Any) -> Any:
    """Return NVML's handle of PyTorch's first GPU."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    if uuid is None or pynvml.nvmlDeviceGetCount() == 1:
        return pynvml.nvmlDeviceGetHandleByIndex(0)
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def _smi() -> Callable[[], Reading] | None:
    """Return a function that reads clock and power by nvidia-smi, None if it is not installed."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--id=0", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"]

    def look() -> Reading:
        """Return one reading, of NaN if nvidia-smi fails."""
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True)
            clock, power = (float(text) for text in done.stdout.splitlines()[0].split(","))
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return Reading()
        return Reading(clock, power)

    return look


class BoardMeter:
    """Reads the GPU every `period` seconds inside its `with` block. `reading()` is the median.

    `times` are the host's times (`time.perf_counter`) of the `readings`.
    """

    def __init__(self, look: Callable[[], Reading] | None, period: float = PERIOD) -> None:
        self.look, self.period = look, period
        self.readings, self.times = list[Reading](), list[float]()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BoardMeter:
        """Start reading."""
        if self.look is not None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        """Read the GPU every `period` seconds until the `with` block ends."""
        look = self.look
        while look is not None and not self._done.wait(self.period):
            self.times.append(time.perf_counter())
            self.readings.append(look())

    def reading(self, since: float = 0.0, until: float = float("inf"), skip: float = 0.0) -> Reading:
        """Return the median of the readings between two times of the host, without the first share `skip` of them."""
        pairs = list(zip(self.times, self.readings, strict=False))[int(skip * len(self.readings)) :]
        return median_reading([reading for at, reading in pairs if since <= at <= until])


def median_reading(readings: Sequence[Reading]) -> Reading:
    """Return the median clock, power and temperature of the readings that have clock and power, and the union of reasons."""
    kept = np.array([one for one in readings if np.isfinite(one[:2]).all()], dtype=float).reshape(-1, 4)
    if not len(kept):
        return Reading()
    known = kept[np.isfinite(kept[:, 3]), 3].astype(np.int64)
    reasons = float(np.bitwise_or.reduce(known)) if len(known) else float("nan")
    clock, power, temperature = np.median(kept[:, :3], axis=0).tolist()
    return Reading(clock, power, temperature, reasons)


def compiled(call: Callable[..., Any], device: Device, repeated: bool = True) -> Callable[..., Any]:
    """Return `call` compiled for the shapes of its first run. On a CPU it is only traced, which needs no compiler.

    `repeated`: a backward pass runs several times after one forward pass, so that it must not overwrite saved tensors.
    """
    import torch
    import torch._functorch.config as settings

    torch._dynamo.reset()  # it compiles a function for eight shapes at most, and then runs it eagerly without a word
    settings.donated_buffer = not repeated
    backend = "inductor" if device.real else "aot_eager"
    made: Callable[..., Any] = torch.compile(call, backend=backend, dynamic=False)
    return made
