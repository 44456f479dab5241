"""The kind of each layer's block, the number of parameters, and the number that multiply each token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from clustersim.config.workload import Block, Indexer, LatentAttention, Lora, Model
from clustersim.model.encoder import encoder_model
from clustersim.model.lora import TARGETS, widths
from clustersim.model.scans import scan_linears, scan_products, small_parameters
from clustersim.model.sharding import gated, head_width, width


def kinds(model: Model) -> tuple[Model, ...]:
    """Return a model for each layer, in order, all of whose layers are of that layer's kind; equal models are one object."""
    return _layer_models(model) if model.blocks or model.dense_layers else (model,) * model.layers


def _layer_models(model: Model) -> tuple[Model, ...]:
    """Return the model of each layer, equal layers as the same object: a block's changes applied, or dense layers first."""
    base = model.model_copy(update={"blocks": (), "dense_layers": 0, "dense_ffn": None})
    if model.blocks:
        equal: dict[Model, Model] = {}
        kind_of_block = {
            block: equal.setdefault(kind, kind) for block in model.blocks if (kind := _block_model(base, block))
        }
        return tuple(kind_of_block[block] for block in islice(cycle(_repeated(model.blocks)), model.layers))
    dense = model.dense_layers if model.experts else 0
    first = base.model_copy(
        update={"experts": None, "topk": 1, "shared_experts": 0, "ffn": model.dense_ffn or model.ffn}
    )
    return (first,) * dense + (base,) * (model.layers - dense)


def distinct_kinds(model: Model) -> list[tuple[Model, int]]:
    """Return (model of a kind of layers, number of such layers) of each kind, in order of appearance."""
    if not model.blocks and not model.dense_layers:
        return [(model, model.layers)]
    layers = kinds(model)
    kind_by_id = dict(zip(map(id, layers), layers, strict=True))
    return [(kind_by_id[key], count) for key, count in Counter(map(id, layers)).items()]


def _repeated(blocks: Sequence[Block]) -> Iterator[Block]:
    return (block for block in blocks for _ in range(block.count))


def _block_model(model: Model, block: Block) -> Model:
    """Return the model with the values that a block sets; `experts: 0` removes experts and their settings."""
    changes = {name: value for name, value in block if name != "count" and value is not None}
    if changes.get("experts") == 0:
        changes |= {"experts": None, "topk": 1, "shared_experts": 0}
    return model.model_copy(update=changes)


def parameters(model: Model, active: bool = False, vocab: int | None = None, mtp: bool = False) -> int:
    """Return the number of parameters of the whole model; `active` counts only the experts that a token visits.

    `vocab` replaces the vocabulary, to include padding; `mtp` includes further predictions, which published sizes exclude. Norms
    have 2·h (LayerNorm) or h (RMSNorm) weights, biases one per output; BERT's segment embedding and pooler are left out.
    """
    h, rows = model.hidden, vocab or model.vocab
    norm = _norm(model, h)
    table = rows * h
    positions = (model.max_positions or 0) * h if model.positions == "learned" else 0
    transform = h * h + h + norm + rows if model.head_transform else 0
    untied = 0 if model.tied_embeddings else table
    blocks = sum(count * block(kind, active) for kind, count in distinct_kinds(model))
    further = model.mtp_layers * (2 * h * h + 3 * norm + block(kinds(model)[-1], active)) if mtp else 0
    return table + positions + untied + transform + norm + blocks + further + encoder(model, active)


def encoder(model: Model, active: bool = False) -> int:
    """Return the number of parameters of the encoder with its final norm, and of all cross-attention; 0 without an encoder."""
    if not model.encoder_layers:
        return 0
    norm = _norm(model, model.hidden)
    cross = _attention(model.model_copy(update={"qk_norm": False, "qkv_bias": None})) + norm
    blocks = sum(count * block(kind, active) for kind, count in distinct_kinds(encoder_model(model)))
    return blocks + norm + model.layers * cross


def block(kind: Model, active: bool = False) -> int:
    """Return the number of parameters of one block with its norms; `active` counts only the experts that a token visits."""
    halves = (kind.mixer != "none") + kind.feed_forward
    norms = _norm(kind, kind.hidden) * halves * (2 if kind.norm_position == "both" else 1)
    forward = (_experts(kind, active) if kind.experts else _mlp(kind, width(kind))) if kind.feed_forward else 0
    return _mixer(kind) + norms + forward


def _mixer(kind: Model) -> int:
    """Return the number of parameters of a block's mixer: weights of its linears and small parameters of its scan."""
    total = 0
    if "attention" in kind.mixer:
        total += _attention(kind) if kind.mla is None else _latent_attention(kind, kind.mla)
    if kind.mixer in ("mamba2", "attention+mamba2", "delta", "conv"):
        total += sum(scan_linears(kind).values()) + small_parameters(kind)
    return total + (
        _indexer(kind, kind.indexer) + 2 * kind.indexer.dim if kind.indexer and kind.mixer == "attention" else 0
    )


def _indexer(kind: Model, indexer: Indexer) -> int:
    """Return the number of weights of the indexer's linears: queries from the latent; a key and head weights from the input."""
    latent = (kind.mla.q_lora_rank if kind.mla else None) or kind.hidden
    return latent * indexer.heads * indexer.dim + kind.hidden * (indexer.dim + indexer.heads)


def _norm(model: Model, width: int) -> int:
    """Return the number of parameters of one norm over `width` features."""
    return width * (2 if model.norm == "layernorm" else 1)


def _attention(model: Model) -> int:
    """Return the number of parameters of one layer's attention (not MLA): projections, biases and norms of queries and keys."""
    h, dim = model.hidden, head_width(model)
    inner = model.heads * dim
    outer = (model.heads * (2 if model.output_gate else 1) + 2 * (model.kv_heads or model.heads)) * dim
    bias = outer if (model.bias if model.qkv_bias is None else model.qkv_bias) else 0
    return h * outer + inner * h + bias + (h if model.bias else 0) + (2 * _norm(model, dim) if model.qk_norm else 0)


def _latent_attention(model: Model, mla: LatentAttention) -> int:
    """Return the number of parameters of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, equations 37 to 47)."""
    h, narrow, rope = model.hidden, mla.q_lora_rank, mla.qk_pos_emb_head_dim
    queries = model.heads * (mla.qk_head_dim + rope)
    q = h * narrow + _norm(model, narrow) + narrow * queries if narrow else h * queries
    kv = h * (mla.kv_lora_rank + rope) + _norm(model, mla.kv_lora_rank)
    kv += mla.kv_lora_rank * model.heads * (mla.qk_head_dim + mla.v_head_dim)
    return q + kv + model.heads * mla.v_head_dim * h + (h if model.bias else 0)


def _mlp(model: Model, ffn: int) -> int:
    """Return the number of parameters of one dense MLP with `ffn` inner features."""
    inner = 2 * ffn if gated(model) else ffn
    return model.hidden * inner + ffn * model.hidden + (inner + model.hidden if model.bias else 0)


def _experts(model: Model, active: bool) -> int:
    """Return the number of parameters of one MoE layer with router and shared experts. active: only `topk` routed experts."""
    h, factor, shared = model.hidden, 3 if gated(model) else 2, model.shared_experts
    shared_width = shared * (model.shared_ffn or width(model))
    visited = (model.topk if active else model.experts or 1) * width(model)
    bias = (factor - 1) * shared_width + h if model.bias and shared else 0
    return factor * h * (visited + shared_width) + bias + h * (model.experts or 1)


def block_products(kind: Model) -> int:
    """Return the multiply-adds per token of a block's linears and scan: their number of weights, with `topk` routed experts."""
    mla = kind.mla if "attention" in kind.mixer else None
    router = kind.hidden * (kind.experts or 0) if kind.feed_forward else 0
    down = (mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_pos_emb_head_dim if mla else 0
    chosen = _indexer(kind, kind.indexer) if mla and kind.indexer else 0
    return sum(named_products(kind).values()) + kind.hidden * down + router + chosen + scan_products(kind)


def named_products(kind: Model) -> dict[str, int]:
    """Return {MaxText's name: multiply-adds per token} of the GEMMs of a block whose outputs recomputation can save."""
    h, visited, mixed = kind.hidden, width(kind), scan_linears(kind)
    if "attention" in kind.mixer:
        inner = kind.heads * (kind.mla.v_head_dim if kind.mla else head_width(kind))
        mixed = {**_attention_products(kind), **mixed, "out_proj": inner * h + mixed.get("out_proj", 0)}
    if not kind.feed_forward:
        return mixed
    if kind.experts:
        visited = kind.topk * visited + kind.shared_experts * (kind.shared_ffn or visited)
    gate_and_up = dict.fromkeys(("mlpwi_0", "mlpwi_1")[: 2 if gated(kind) else 1], h * visited)
    return mixed | gate_and_up | {"mlpwo": h * visited}


def _attention_products(kind: Model) -> dict[str, int]:
    """Return {MaxText's name: multiply-adds per token} of the linears to queries, keys and values; with MLA, from latents."""
    h, heads, mla = kind.hidden, kind.heads, kind.mla
    if mla is None:
        kv = h * (kind.kv_heads or heads) * head_width(kind)
        queries = h * heads * head_width(kind) * (2 if kind.output_gate else 1)
        return {"query_proj": queries, "key_proj": kv, "value_proj": kv}
    widths = {"key_proj": mla.qk_head_dim, "value_proj": mla.v_head_dim}
    queries = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim) * (mla.q_lora_rank or h)
    return {"query_proj": queries} | {name: mla.kv_lora_rank * heads * dim for name, dim in widths.items()}


def up_products(kind: Model) -> int:
    """Return the multiply-adds per token of the linears to queries, keys and values (MLA: from latents); 0 without attention."""
    return sum(_attention_products(kind).values()) if "attention" in kind.mixer else 0


def adapted_linears(kind: Model) -> Iterator[tuple[str, int, list[tuple[str, int]]]]:
    """Yield (operator, inputs, [(part, columns)] of the output) of the linears of a block that can have adapters, before tp."""
    h, weights = kind.hidden, named_products(kind)
    if "attention" in kind.mixer:
        inner = kind.heads * (kind.mla.v_head_dim if kind.mla else head_width(kind))
        if not kind.mla:
            yield "qkv", h, [(name, weights[name] // h) for name in ("query_proj", "key_proj", "value_proj")]
        yield "projection", inner, [("out_proj", h)]
    if kind.feed_forward and not kind.experts:
        yield "fc1", h, [(name, width(kind)) for name in weights if name.startswith("mlpwi")]
        yield "fc2", width(kind), [("mlpwo", h)]


def adapter_targets(kind: Model) -> Iterator[str]:
    """Yield the adapter targets of a block: the name of each linear and, if it has several parts, of each part (see
    `TARGETS`)."""
    for name, _, parts in adapted_linears(kind):
        joint_target, part_targets = TARGETS[name]
        yield from (joint_target, *(part_targets if len(parts) > 1 else ()))


def adapter_parameters(kind: Model, lora: Lora, separate: bool = False) -> int:
    """Return the number of parameters of all adapters of one block: rank · (inputs + outputs) each. separate: as in `widths`."""
    adapters = (
        (inputs, n) for name, inputs, parts in adapted_linears(kind) for n in widths(lora, name, parts, separate)
    )
    return sum(lora.rank * (inputs + n) for inputs, n in adapters)
