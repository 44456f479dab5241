"""Traces a PyTorch module on the meta device as an fx graph.

Dropout and fused attention are single calls on CUDA but not on the meta device, so they are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def trace(
    module: torch.nn.Module, weights: dict[str, Any], inputs: Any, training: bool
) -> tuple[Any, set[str], dict[str, Any]]:
    """Return (fx graph, names of its forward nodes, {name: parameter} that a gradient reaches). weights: {name: parameter}."""
    import torch
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

    forward: set[str] = set()
    reached: dict[str, Any] = {}

    def run(parameters: dict[str, Any], arguments: Any) -> Any:
        named = arguments if isinstance(arguments, dict) else {}
        with torch.set_grad_enabled(training), _as_on_cuda():
            result = torch.func.functional_call(module, parameters, () if named else arguments, named)
        mode: Any = get_proxy_mode()
        forward.update(node.name for node in mode.tracer.graph.nodes)
        if not training:
            return result
        gradients = _gradients(result, parameters)
        reached.update({name: weights[name] for name in gradients})
        return list(gradients.values())

    return make_fx(run, tracing_mode="real")(weights, inputs), forward, reached


def _gradients(result: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return {name: gradient} of the parameters that the loss, or else the first output, depends on."""
    import torch
    from torch.utils import _pytree as tree

    loss = getattr(result, "loss", None)
    tensors = [
        tensor for tensor in tree.tree_leaves(result) if isinstance(tensor, torch.Tensor) and tensor.requires_grad
    ]
    start = loss if isinstance(loss, torch.Tensor) else next(iter(tensors), None)
    wanted = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if start is None or not wanted:
        raise ValueError("no output has a gradient")
    gradients = torch.autograd.grad(start, list(wanted.values()), torch.empty_like(start), allow_unused=True)
    return {name: gradient for name, gradient in zip(wanted, gradients, strict=True) if gradient is not None}


@contextmanager
def _as_on_cuda() -> Iterator[None]:
    """Replace dropout and attention by the calls that CUDA makes, and disable the CPU's fast path, while the context is open.

    A TorchFunctionMode catches calls of the user's module; patched names in torch.nn.functional catch those of PyTorch's own
    functions.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    room = torch.nn.functional
    swapped: dict[Any, Callable[..., Any]] = {room.dropout: _dropout, room.scaled_dot_product_attention: _attention}
    original = {func.__name__: func for func in swapped}

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return swapped.get(func, func)(*args, **(kwargs or {}))

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for name, func in original.items():
            setattr(room, name, swapped[func])
        with Mode():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for name, func in original.items():
            setattr(room, name, func)


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    import torch

    return torch.native_dropout(x, p, True)[0] if training and p > 0 else x


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return the result of CUDA's kernel: FlashAttention for 16 bits without a mask, else the memory-efficient kernel."""
    import torch

    if query.dim() == 3:
        mask = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask[None]
        q, k, v = query[None], key[None], value[None]
        return _attention(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    aten = torch.ops.aten
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        key, value = (tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3) for tensor in (key, value))
    if attn_mask is not None:
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
    efficient = aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, attn_mask, query.requires_grad, dropout_p, is_causal, scale=scale)[0]
