"""How many parameters a model has, in closed form and without padding or copies."""

from __future__ import annotations

from clustersim.config.workload import Model
from clustersim.model.sharding import dense_layers, dense_width, width


def parameters(model: Model, active: bool = False, vocab: int | None = None) -> int:
    """Return the parameters of the whole model; `active` counts only the experts that a token visits.

    `vocab` replaces the vocabulary, to count padding. Norms have 2·h (LayerNorm) or h (RMSNorm) weights, linears with bias
    one more an output; BERT's segment embedding and pooler are left out.
    """
    h, rows = model.hidden, vocab or model.vocab
    norm = h * (2 if model.norm == "layernorm" else 1)
    table = rows * h
    positions = (model.max_positions or 0) * h if model.positions == "learned" else 0
    transform = h * h + h + norm + rows if model.head_transform else 0
    untied = 0 if model.tied_embeddings else table
    dense = dense_layers(model)
    blocks = dense * _block(model, norm, _mlp(model, dense_width(model)))
    blocks += (model.layers - dense) * _block(model, norm, _experts(model, active)) if model.experts else 0
    return table + positions + untied + transform + norm + blocks


def _block(model: Model, norm: int, mlp: int) -> int:
    h, dim = model.hidden, model.head_dim or model.hidden // model.heads
    inner, outer = model.heads * dim, (model.heads + 2 * (model.kv_heads or model.heads)) * dim
    attention = h * outer + inner * h + (outer + h if model.bias else 0)
    return attention + mlp + 2 * norm


def _mlp(model: Model, ffn: int) -> int:
    inner = 2 * ffn if model.activation == "swiglu" else ffn
    return model.hidden * inner + ffn * model.hidden + (inner + model.hidden if model.bias else 0)


def _experts(model: Model, active: bool) -> int:
    h, ffn, experts = model.hidden, width(model), model.experts or 1
    inner = 2 * ffn if model.activation == "swiglu" else ffn
    products = h * inner + ffn * h
    visited = (model.topk if active else experts) * products
    bias = model.shared_experts * inner + h if model.bias and model.shared_experts else 0
    return visited + model.shared_experts * products + bias + h * experts
