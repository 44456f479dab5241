"""Fused attention: torch's flash and cuDNN kernels, and FlashAttention-3 where it is installed; forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clustersim.lab.measure.case import Case, Unavailable
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.timing import KernelLaunch

BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
FLASH3 = "flash-attention 3"


def build(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one attention kernel; a backward one has its forward pass behind it. Raises Unavailable."""
    import torch

    backward = case.kernel.op == "backward"
    q, k, v = operands(case, device, backward)
    attend = _flash3(case) if case.note == FLASH3 else _torch(case)
    if not backward:
        return lambda: attend(q, k, v)
    out = attend(q, k, v)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def operands(case: Case, device: Device, grad: bool) -> tuple[Any, Any, Any]:
    """Return q, k, v as (batch, sequence, heads, dim), as projections leave them."""
    kernel = case.kernel
    queries = (kernel.batch, kernel.m, kernel.heads, kernel.k)
    keys = (kernel.batch, kernel.n, kernel.kv_heads, kernel.k)
    return tuple(device.normal(shape, kernel.dtype, grad) for shape in (queries, keys, keys))


def _torch(case: Case) -> Callable[[Any, Any, Any], Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backend, kernel = getattr(SDPBackend, BACKENDS[case.note]), case.kernel
    grouped = kernel.heads != kernel.kv_heads

    def attend(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=kernel.causal, enable_gqa=grouped
            )

    return attend


def _flash3(case: Case) -> Callable[[Any, Any, Any], Any]:
    try:
        from flash_attn_interface import flash_attn_func  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise Unavailable("FlashAttention-3 is not installed") from error

    def attend(q: Any, k: Any, v: Any) -> Any:
        found = flash_attn_func(q, k, v, causal=case.kernel.causal)
        return found[0] if isinstance(found, tuple) else found

    return attend
