"""Matrix products as training runs them: forward x·Wᵀ (tn), dgrad dy·W (nn), wgrad dyᵀ·x (nt); fp8, batched."""

from __future__ import annotations

from typing import Any

from clustersim.lab.measure.case import Case, Unavailable
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.timing import KernelLaunch

ACCUMULATE = "fp32 accumulate"
"""Note of a wgrad that adds to fp32 main gradients."""


def build(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one product. Raises Unavailable."""
    kernel = case.kernel
    if kernel.kind == "bmm":
        return _batched(case, device)
    if kernel.dtype == "fp8":
        return _scaled(case, device)
    a, b = operands(case, device)
    if case.note == ACCUMULATE:
        return _accumulate(device, a, b)
    return _plain(a, b)


def operands(case: Case, device: Device) -> tuple[Any, Any]:
    """Return a (m×k) and b (k×n), stored as the layout says: `t` of the first letter is b's, of the second a's.

    The letters are cuBLAS's, which sees row-major matrices transposed: tn is a row-major m×k with b row-major n×k.
    """
    kernel = case.kernel
    m, n, k, dtype = kernel.m, kernel.n, kernel.k, kernel.dtype
    a = device.normal((k, m), dtype).t() if case.layout == "nt" else device.normal((m, k), dtype)
    b = device.normal((n, k), dtype).t() if case.layout == "tn" else device.normal((k, n), dtype)
    return a, b


def _plain(a: Any, b: Any) -> KernelLaunch:
    import torch

    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    return lambda: torch.mm(a, b, out=out)


def _accumulate(device: Device, a: Any, b: Any) -> KernelLaunch:
    import torch

    if not device.real:
        raise Unavailable("torch adds 16-bit products to fp32 on CUDA only")
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float32, device=a.device)

    def launch() -> object:
        return torch.addmm(total, a, b, out_dtype=torch.float32, out=total)

    return launch


def _scaled(case: Case, device: Device) -> KernelLaunch:
    import torch

    if not hasattr(torch, "_scaled_mm"):
        raise Unavailable("this torch has no fp8 product")
    if case.layout != "tn":
        raise Unavailable("tensor cores of most GPUs multiply fp8 in layout tn only")
    a, b = operands(case, device)
    one = torch.ones((), dtype=torch.float32, device=device.kind)
    fast = device.real and case.kernel.op == "forward"  # Transformer Engine accumulates fast in forward passes only

    def launch() -> object:
        return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return launch


def _batched(case: Case, device: Device) -> KernelLaunch:
    import torch

    batch, m, n, k = case.kernel.batch, case.kernel.m, case.kernel.n, case.kernel.k
    a = device.normal((batch, m, k), case.kernel.dtype)
    if case.layout == "nt":
        a = device.normal((batch, k, m), case.kernel.dtype).transpose(1, 2)
    b = device.normal((batch, k, n), case.kernel.dtype)
    if case.layout == "tn":
        b = device.normal((batch, n, k), case.kernel.dtype).transpose(1, 2)
    out = torch.empty(batch, m, n, dtype=a.dtype, device=a.device)
    return lambda: torch.bmm(a, b, out=out)
