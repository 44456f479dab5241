"""A decoder in plain PyTorch as in training: norms, rotary or learned positions, fused attention, GELU or SwiGLU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clustersim.lab.measure.cases import DecoderShape
from clustersim.lab.measure.device import Device


def weights(model: DecoderShape, device: Device) -> dict[str, Any]:
    """Return the bf16 weights of one layer."""
    h, inner = model.hidden, (2 if model.gated else 1) * model.ffn
    columns = h + 2 * model.kv_heads * model.dim
    shapes = {"norm1": (h,), "qkv": (columns, h), "projection": (h, h), "norm2": (h,)}
    shapes |= {"fc1": (inner, h), "fc2": (h, model.ffn)}
    return {name: _parameter(device, shape) for name, shape in shapes.items()}


def _parameter(device: Device, shape: tuple[int, ...]) -> Any:
    import torch

    value = torch.ones(shape) if len(shape) == 1 else None
    made = device.normal(shape, "bf16") * 0.02 if value is None else value.to(device.kind, torch.bfloat16)
    return made.requires_grad_()


def layer(model: DecoderShape, w: dict[str, Any], x: Any, angles: tuple[Any, Any]) -> Any:
    """Return the output of one layer for x (batch, sequence, hidden)."""
    from torch.nn import functional

    x = x + functional.linear(
        _attention(model, functional.linear(_norm(x, w["norm1"]), w["qkv"]), angles), w["projection"]
    )
    inner = functional.linear(_norm(x, w["norm2"]), w["fc1"])
    if model.gated:
        gate, value = inner.chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * value, w["fc2"])
    return x + functional.linear(functional.gelu(inner, approximate="tanh"), w["fc2"])


def _norm(x: Any, weight: Any) -> Any:
    from torch.nn import functional

    return functional.rms_norm(x, x.shape[-1:], weight, 1e-5)


def _attention(model: DecoderShape, qkv: Any, angles: tuple[Any, Any]) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    batch, seq, _ = qkv.shape
    kv = model.kv_heads * model.dim
    q, k, v = (
        part.view(batch, seq, -1, model.dim).transpose(1, 2) for part in qkv.split([model.hidden, kv, kv], dim=-1)
    )
    q, k = _rotate(q, angles), _rotate(k, angles)
    grouped = model.heads != model.kv_heads
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    return out.transpose(1, 2).reshape(batch, seq, model.hidden)


def _rotate(x: Any, angles: tuple[Any, Any]) -> Any:
    import torch

    left, right = x.chunk(2, dim=-1)
    return x * angles[0] + torch.cat((-right, left), dim=-1) * angles[1]


def angles(model: DecoderShape, seq: int, device: Device) -> tuple[Any, Any]:
    """Return cosines and sines of rotary positions, (sequence, head dimension) in bf16."""
    import torch

    rates = 1e4 ** (-torch.arange(0, model.dim, 2, device=device.kind) / model.dim)
    turns = torch.arange(seq, device=device.kind)[:, None] * torch.cat((rates, rates))[None, :]
    return turns.cos().bfloat16(), turns.sin().bfloat16()


LayerCall = Callable[[dict[str, Any], Any], Any]


def loss(model: DecoderShape, table: Any, head: Any, layers: list[dict[str, Any]], tokens: Any, run: LayerCall) -> Any:
    """Return the cross-entropy of the next token. `run` is one layer, possibly compiled or recomputed."""
    from torch.nn import functional

    x = functional.embedding(tokens, table)
    for w in layers:
        x = run(w, x)
    logits = functional.linear(_norm(x, head["norm"]), head["logits"]).float()
    return functional.cross_entropy(logits[:, :-1].reshape(-1, model.vocab), tokens[:, 1:].reshape(-1))
