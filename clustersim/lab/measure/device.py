"""The device that measures, a CUDA GPU or the CPU, which stands in for it in tests; its clock and power by NVML or nvidia-smi."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from clustersim.errors import InputError, UnknownNameError
from clustersim.extras import need
from clustersim.hardware import gpus
from clustersim.lab.measure.cases import Unavailable

TORCH = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}


@dataclass(frozen=True, slots=True)
class Device:
    """Where tensors live, and what goes into every row: names of GPU, torch and CUDA; `l2` and `memory` in bytes."""

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
        """Return normally distributed values: zeros would draw less power and run at higher clocks."""
        import torch

        kind = self.dtype(dtype)
        wide = torch.randn(*shape, device=self.kind, dtype=torch.bfloat16 if dtype == "fp8" else kind)
        return wide.to(kind).requires_grad_(grad)

    def integers(self, count: int, below: int) -> Any:
        """Return `count` random whole numbers in [0, below), as token ids are."""
        import torch

        return torch.randint(below, (count,), device=self.kind)

    def release(self) -> None:
        """Give back the memory of the last case, where it is more than a quarter."""
        import gc

        import torch

        if self.real and torch.cuda.memory_reserved() > self.memory / 4:
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def cuda(gpu: str | None = None) -> Device:
    """Return the first CUDA GPU; `gpu` says which of `gpus/` it is, or a YAML file, where its own name is not known.

    Raises InputError without a GPU, or with one that has no description.
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


def cpu(gpu: str | None = None) -> Device:
    """Return the CPU under the name of a GPU: to test that every case runs, not to measure."""
    need("torch", "`lab profile`")
    import torch

    torch.manual_seed(0)
    return Device("cpu", gpus.load(gpu or "h100").name, 0.0, 2.0**30, torch.__version__, "")


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


def compiled(call: Callable[..., Any], device: Device) -> Callable[..., Any]:
    """Return `call` compiled for the shapes of its first run; on a CPU traced only, which needs no compiler."""
    import torch
    import torch._functorch.config as settings

    torch._dynamo.reset()  # it compiles a function for eight shapes at most, and then runs it eagerly without a word
    settings.donated_buffer = False  # else a backward pass runs once
    backend = "inductor" if device.real else "aot_eager"
    made: Callable[..., Any] = torch.compile(call, backend=backend, dynamic=False)
    return made
