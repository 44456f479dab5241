"""A decoder in plain PyTorch as in training: norms, rotary positions, fused attention, an MLP or a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from clustersim.lab.measure.cases import DecoderShape
from clustersim.lab.measure.device import Device


def weights(model: DecoderShape, device: Device) -> dict[str, Any]:
    """Return {`norm1`, `qkv`, `projection`, `norm2`, `fc1`, `fc2`, `router`: bf16 weight} of one layer; a router for experts."""
    h, inner = model.hidden, (2 if model.gated else 1) * model.ffn
    columns = h + 2 * model.kv_heads * model.dim
    shapes = {"norm1": (h,), "qkv": (columns, h), "projection": (h, h), "norm2": (h,)}
    experts = (model.experts,) * (model.experts > 0)
    shapes |= {"fc1": (*experts, inner, h), "fc2": (*experts, h, model.ffn)}
    shapes |= {"router": (model.experts, h)} if model.experts else {}
    return {name: _parameter(device, shape) for name, shape in shapes.items()}


def _parameter(device: Device, shape: tuple[int, ...]) -> Any:
    """Return a bf16 weight: ones for a vector, else normally distributed."""
    if len(shape) == 1:
        return torch.ones(shape, device=device.kind, dtype=torch.bfloat16).requires_grad_()
    return (device.normal(shape, "bf16") * 0.02).requires_grad_()


def layer(model: DecoderShape, w: dict[str, Any], x: Any, angles: tuple[Any, Any], loop: bool = False) -> Any:
    """Return the output of one layer for x (batch, sequence, hidden). `loop`: one GEMM per expert, as in `looped_mixture`."""
    x = x + functional.linear(
        _attention(model, functional.linear(_norm(x, w["norm1"]), w["qkv"]), angles), w["projection"]
    )
    mlp = looped_mixture if loop else grouped_mixture if model.experts else _mlp
    return x + mlp(model, w, _norm(x, w["norm2"]))


def _mlp(model: DecoderShape, w: dict[str, Any], x: Any) -> Any:
    """Return the output of an MLP for x (…, hidden)."""
    return functional.linear(_activated(model, functional.linear(x, w["fc1"])), w["fc2"])


def _activated(model: DecoderShape, inner: Any) -> Any:
    """Return the activation of an MLP's inner features: SwiGLU if the model is gated, else GELU."""
    if model.gated:
        gate, value = inner.chunk(2, dim=-1)
        return functional.silu(gate) * value
    return functional.gelu(inner, approximate="tanh")


def grouped_mixture(model: DecoderShape, w: dict[str, Any], x: Any) -> Any:
    """Return the output of the experts for x (batch, sequence, hidden): rows sorted by expert, one grouped GEMM per matrix."""
    tokens = x.flatten(0, -2)
    shares, chosen = routed(model, w, tokens)
    rows, order, ends = permuted(model, tokens, chosen)
    return unpermuted(model, expert_rows(model, w, rows, ends), order, shares).view_as(x)


def routed(model: DecoderShape, w: dict[str, Any], x: Any) -> tuple[Any, Any]:
    """Return (weights in bf16, indices) of each token's experts, both (tokens, top k), for x (tokens, hidden)."""
    shares, chosen = functional.linear(x, w["router"]).softmax(-1, dtype=torch.float32).topk(model.topk)
    return (shares / shares.sum(-1, keepdim=True)).to(x.dtype), chosen


def permuted(model: DecoderShape, x: Any, chosen: Any) -> tuple[Any, Any, Any]:
    """Return the rows of x by expert, their positions in `chosen`, and the index after each expert's last row."""
    experts, order = chosen.flatten().sort()
    ends = torch.searchsorted(experts, torch.arange(model.experts, device=x.device), right=True, out_int32=True)
    return x[order // model.topk], order, ends


def expert_rows(model: DecoderShape, w: dict[str, Any], rows: Any, ends: Any) -> Any:
    """Return each row's output of its expert, by two grouped GEMMs. ends: index after each expert's last row."""
    inner = torch._grouped_mm(rows, w["fc1"].transpose(1, 2), offs=ends)
    return torch._grouped_mm(_activated(model, inner), w["fc2"].transpose(1, 2), offs=ends)


def unpermuted(model: DecoderShape, rows: Any, order: Any, shares: Any) -> Any:
    """Return each token's sum (tokens, hidden) of its experts' rows times `shares`. order: as from `permuted`."""
    scaled = rows * shares.flatten()[order].unsqueeze(-1)
    return scaled.new_zeros(len(shares), rows.shape[-1]).index_add_(0, order // model.topk, scaled)


def looped_mixture(model: DecoderShape, w: dict[str, Any], x: Any) -> Any:
    """Return the output of the experts for x (batch, sequence, hidden), expert by expert. The host waits for each one's tokens.

    So do models of Hugging Face that keep each expert's matrices apart (MixtralSparseMoeBlock.forward in transformers 4).
    """
    tokens = x.flatten(0, -2)
    shares, chosen = routed(model, w, tokens)
    out = torch.zeros_like(tokens)
    for expert, (fc1, fc2) in enumerate(zip(w["fc1"].unbind(), w["fc2"].unbind(), strict=True)):
        token, place = torch.where(chosen == expert)
        inner = _mlp(model, {"fc1": fc1, "fc2": fc2}, tokens[token])
        out.index_add_(0, token, inner * shares[token, place, None])
    return out.view_as(x)


def _norm(x: Any, weight: Any) -> Any:
    """Return the RMS norm of x over its last dimension."""
    return functional.rms_norm(x, x.shape[-1:], weight, 1e-5)


def _attention(model: DecoderShape, qkv: Any, angles: tuple[Any, Any]) -> Any:
    """Return causal attention (batch, sequence, hidden) of `qkv` (batch, sequence, heads·dim + 2·kv_heads·dim)."""
    batch, seq, _ = qkv.shape
    kv = model.kv_heads * model.dim
    q, k, v = (
        part.view(batch, seq, -1, model.dim).transpose(1, 2) for part in qkv.split([model.hidden, kv, kv], dim=-1)
    )
    q, k = rotate(q, *angles), rotate(k, *angles)
    grouped = model.heads != model.kv_heads
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    return out.transpose(1, 2).reshape(batch, seq, model.hidden)


def rotate(x: Any, cosine: Any, sine: Any) -> Any:
    """Return x (…, sequence, dim) with rotary positions. cosine, sine: of their angles, as from `angles`."""
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


def angles(model: DecoderShape, seq: int, device: Device) -> tuple[Any, Any]:
    """Return cosines and sines of rotary positions, (sequence, head dimension) in bf16."""
    rates = 1e4 ** (-torch.arange(0, model.dim, 2, device=device.kind) / model.dim)
    turns = torch.arange(seq, device=device.kind)[:, None] * torch.cat((rates, rates))[None, :]
    return turns.cos().bfloat16(), turns.sin().bfloat16()


LayerCall = Callable[[dict[str, Any], Any], Any]


def loss(model: DecoderShape, table: Any, head: Any, layers: list[dict[str, Any]], tokens: Any, run: LayerCall) -> Any:
    """Return the cross-entropy of the next token. table, head: embedding, and norm and logits. run: one layer's function."""
    x = functional.embedding(tokens, table)
    for w in layers:
        x = run(w, x)
    logits = functional.linear(_norm(x, head["norm"]), head["logits"]).float()
    return functional.cross_entropy(logits[:, :-1].reshape(-1, model.vocab), tokens[:, 1:].reshape(-1))
