"""Products of all experts of a mixture: one grouped kernel where torch has it, else a loop over the experts."""

from __future__ import annotations

from typing import Any

from clustersim.lab.measure.case import Case, Unavailable
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.timing import KernelLaunch

LOOP = "loop"


def build(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of the products of `batch` experts, whose tokens lie one expert after another.

    Raises Unavailable.
    """
    import torch

    kernel = case.kernel
    if kernel.op == "wgrad":  # m outputs, n inputs, k tokens an expert
        tokens = kernel.batch * kernel.k
        a = device.normal((tokens, kernel.m), kernel.dtype).t()
        b = device.normal((tokens, kernel.n), kernel.dtype)
        each = kernel.k
    else:
        a = device.normal((kernel.batch * kernel.m, kernel.k), kernel.dtype)
        b = _weights(case, device)
        each = kernel.m
    if case.note == LOOP:
        return _loop(case, a, b, each)
    if not hasattr(torch, "_grouped_mm"):
        raise Unavailable("this torch has no grouped product")
    ends = torch.arange(1, kernel.batch + 1, dtype=torch.int32, device=device.kind) * each
    return lambda: torch._grouped_mm(a, b, offs=ends)


def _weights(case: Case, device: Device) -> Any:
    kernel = case.kernel
    if case.layout == "tn":
        return device.normal((kernel.batch, kernel.n, kernel.k), kernel.dtype).transpose(1, 2)
    return device.normal((kernel.batch, kernel.k, kernel.n), kernel.dtype)


def _loop(case: Case, a: Any, b: Any, each: int) -> KernelLaunch:
    import torch

    if case.kernel.op == "wgrad":
        pairs = list(zip(a.split(each, dim=1), b.split(each), strict=True))
    else:
        pairs = list(zip(a.split(each), b, strict=True))
    return lambda: [torch.mm(one, other) for one, other in pairs]
