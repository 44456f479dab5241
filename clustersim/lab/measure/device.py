"""The device that measures: a CUDA GPU, or the CPU, which stands in for it in tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clustersim.errors import InputError, UnknownNameError
from clustersim.extras import need
from clustersim.hardware import gpus
from clustersim.lab.measure.case import Unavailable

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
