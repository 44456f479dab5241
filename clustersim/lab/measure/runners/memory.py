"""Kernels that only move memory: lookups, permutations of tokens, optimizer, gradient norm, fills."""

from __future__ import annotations

from collections.abc import Callable

from clustersim.lab.measure.case import Case
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.timing import KernelLaunch

VOCABULARY = 128_256


def build(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one kernel."""
    return MAKERS[case.kernel.op](case, device)


def _embedding(case: Case, device: Device) -> KernelLaunch:
    from torch.nn.functional import embedding

    entries = VOCABULARY if device.real else 64
    table = device.normal((entries, case.kernel.n), case.kernel.dtype)
    tokens = device.integers(case.kernel.m, entries)
    return lambda: embedding(tokens, table)


def _embedding_backward(case: Case, device: Device) -> KernelLaunch:
    import torch

    entries = VOCABULARY if device.real else 64
    gradient = device.normal((case.kernel.m, case.kernel.n), case.kernel.dtype)
    tokens = device.integers(case.kernel.m, entries)
    return lambda: torch.ops.aten.embedding_dense_backward(gradient, tokens, entries, -1, False)


def _permute(case: Case, device: Device) -> KernelLaunch:
    """Return the gather of m rows in random order: tokens sorted by their expert."""
    rows = device.normal((case.kernel.m, case.kernel.n), case.kernel.dtype)
    order = device.integers(case.kernel.m, case.kernel.m)
    return lambda: rows.index_select(0, order)


def _unpermute(case: Case, device: Device) -> KernelLaunch:
    import torch

    rows = device.normal((case.kernel.m, case.kernel.n), case.kernel.dtype)
    total = torch.zeros_like(rows)
    order = torch.randperm(case.kernel.m, device=device.kind)
    return lambda: total.index_add_(0, order, rows)


def _adam(case: Case, device: Device) -> KernelLaunch:
    import torch

    weight = device.normal((case.kernel.n,), "fp32", grad=True)
    weight.grad = device.normal((case.kernel.n,), "fp32")
    optimizer = torch.optim.AdamW([weight], lr=1e-4, fused=True, capturable=device.real)
    return optimizer.step


def _norm(case: Case, device: Device) -> KernelLaunch:
    import torch

    gradient = device.normal((case.kernel.n,), case.kernel.dtype)
    return lambda: torch.linalg.vector_norm(gradient)


def _scale(case: Case, device: Device) -> KernelLaunch:
    gradient = device.normal((case.kernel.n,), case.kernel.dtype)
    return lambda: gradient.mul_(1.0)


def _fill(case: Case, device: Device) -> KernelLaunch:
    values = device.normal((case.kernel.n,), case.kernel.dtype)
    clear: KernelLaunch = values.zero_
    return clear


MAKERS: dict[str, Callable[[Case, Device], KernelLaunch]] = {
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "permute": _permute,
    "unpermute": _unpermute,
    "adam": _adam,
    "gradient_norm": _norm,
    "gradient_scale": _scale,
    "zero_gradients": _fill,
}
