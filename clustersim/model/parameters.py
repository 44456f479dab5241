"""The kind of each layer's block, the number of parameters, and the number that multiply each token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from clustersim.config.workload import Block, Indexer, LatentAttention, Lora, Model
from clustersim.model.encoder import encoder_model
from clustersim.model.lora import TARGETS, widths
from clustersim.model.scans import linears, scan_products, small_parameters
from clustersim.model.sharding import gated, head_width, width


def kinds(model: Model) -> tuple[Model, ...]:
    """Return one model per layer, in order, whose layers would all be of that layer's kind; equal kinds are one object."""
    return _different(model) if model.blocks or model.dense_layers else (model,) * model.layers


def _different(model: Model) -> tuple[Model, ...]:
    """Return the model of each layer, equal layers as the same object: a block's changes applied, or dense layers first."""
    whole = model.model_copy(update={"blocks": (), "dense_layers": 0, "dense_ffn": None})
    if model.blocks:
        same: dict[Model, Model] = {}
        made = {one: same.setdefault(kind, kind) for one in model.blocks if (kind := _with(whole, one))}
        return tuple(made[one] for one in islice(cycle(_listed(model.blocks)), model.layers))
    dense = model.dense_layers if model.experts else 0
    first = whole.model_copy(
        update={"experts": None, "topk": 1, "shared_experts": 0, "ffn": model.dense_ffn or model.ffn}
    )
    return (first,) * dense + (whole,) * (model.layers - dense)


def distinct(model: Model) -> list[tuple[Model, int]]:
    """Return the kinds of layers in order of appearance as (kind, total number)."""
    layers = kinds(model)
    found = dict(zip(map(id, layers), layers, strict=True))
    return [(found[key], count) for key, count in Counter(map(id, layers)).items()]


def _listed(blocks: Sequence[Block]) -> Iterator[Block]:
    return (one for one in blocks for _ in range(one.count))


def _with(model: Model, block: Block) -> Model:
    """Return the model with a block's own values; a block without experts has no keys of experts."""
    given = {name: value for name, value in block if name != "count" and value is not None}
    if given.get("experts") == 0:
        given |= {"experts": None, "topk": 1, "shared_experts": 0}
    return model.model_copy(update=given)


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
    blocks = sum(count * block(kind, active) for kind, count in distinct(model))
    further = model.mtp_layers * (2 * h * h + 3 * norm + block(kinds(model)[-1], active)) if mtp else 0
    return table + positions + untied + transform + norm + blocks + further + encoder(model, active)


def encoder(model: Model, active: bool = False) -> int:
    """Return the parameters of an encoder with its norm and of cross-attention; 0 without an encoder."""
    if not model.encoder_layers:
        return 0
    norm = _norm(model, model.hidden)
    cross = _attention(model.model_copy(update={"qk_norm": False, "qkv_bias": None})) + norm
    own = sum(count * block(kind, active) for kind, count in distinct(encoder_model(model)))
    return own + norm + model.layers * cross


def block(kind: Model, active: bool = False) -> int:
    """Return the number of parameters of one block of a kind."""
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
        total += sum(linears(kind).values()) + small_parameters(kind)
    return total + (
        _indexer(kind, kind.indexer) + 2 * kind.indexer.dim if kind.indexer and kind.mixer == "attention" else 0
    )


def _indexer(kind: Model, indexer: Indexer) -> int:
    """Return the weights of the indexer's linears: queries from the latent, one key and one weight per head from the input."""
    latent = (kind.mla.q_lora_rank if kind.mla else None) or kind.hidden
    return latent * indexer.heads * indexer.dim + kind.hidden * (indexer.dim + indexer.heads)


def _norm(model: Model, width: int) -> int:
    """Return the parameters of one norm over `width` features."""
    return width * (2 if model.norm == "layernorm" else 1)


def _attention(model: Model) -> int:
    """Return the parameters of one layer's attention (not MLA): projections, biases and norms of queries and keys."""
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
    """Return the parameters of one dense MLP with `ffn` inner features."""
    inner = 2 * ffn if gated(model) else ffn
    return model.hidden * inner + ffn * model.hidden + (inner + model.hidden if model.bias else 0)


def _experts(model: Model, active: bool) -> int:
    """Return the parameters of one MoE layer with router and shared experts: `active`: only topk experts."""
    h, factor, shared = model.hidden, 3 if gated(model) else 2, model.shared_experts
    beside = shared * (model.shared_ffn or width(model))
    visited = (model.topk if active else model.experts or 1) * width(model)
    bias = (factor - 1) * beside + h if model.bias and shared else 0
    return factor * h * (visited + beside) + bias + h * (model.experts or 1)


def block_products(kind: Model) -> int:
    """Return the number of weights of a block's linears that multiply each token."""
    mla = kind.mla if "attention" in kind.mixer else None
    router = kind.hidden * (kind.experts or 0) if kind.feed_forward else 0
    down = (mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_pos_emb_head_dim if mla else 0
    chosen = _indexer(kind, kind.indexer) if mla and kind.indexer else 0
    return sum(named_products(kind).values()) + kind.hidden * down + router + chosen + scan_products(kind)


def named_products(kind: Model) -> dict[str, int]:
    """Return {MaxText's name: weights that multiply each token} of the GEMMs whose outputs recomputation can save."""
    h, visited, mixed = kind.hidden, width(kind), linears(kind)
    if "attention" in kind.mixer:
        inner = kind.heads * (kind.mla.v_head_dim if kind.mla else head_width(kind))
        mixed = {**_attention_products(kind), **mixed, "out_proj": inner * h + mixed.get("out_proj", 0)}
    if not kind.feed_forward:
        return mixed
    if kind.experts:
        visited = kind.topk * visited + kind.shared_experts * (kind.shared_ffn or visited)
    into = dict.fromkeys(("mlpwi_0", "mlpwi_1")[: 2 if gated(kind) else 1], h * visited)
    return mixed | into | {"mlpwo": h * visited}


def _attention_products(kind: Model) -> dict[str, int]:
    """Return {projection: weights, i.e. multiply-adds per token} of queries, keys and values; with MLA, from latents."""
    h, heads, mla = kind.hidden, kind.heads, kind.mla
    if mla is None:
        kv = h * (kind.kv_heads or heads) * head_width(kind)
        queries = h * heads * head_width(kind) * (2 if kind.output_gate else 1)
        return {"query_proj": queries, "key_proj": kv, "value_proj": kv}
    own = {"key_proj": mla.qk_head_dim, "value_proj": mla.v_head_dim}
    queries = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim) * (mla.q_lora_rank or h)
    return {"query_proj": queries} | {name: mla.kv_lora_rank * heads * dim for name, dim in own.items()}


def up_products(kind: Model) -> int:
    """Return the weights of the linears that make queries, keys and values, from the latents if there are any."""
    return sum(_attention_products(kind).values()) if "attention" in kind.mixer else 0


def adapted_linears(kind: Model) -> Iterator[tuple[str, int, list[tuple[str, int]]]]:
    """Yield (name, inputs, outputs by part) of the linears of a block that can have adapters, before tensor parallelism."""
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
    """Yield the names of the adapter targets that a block has."""
    for name, _, parts in adapted_linears(kind):
        whole, each = TARGETS[name]
        yield from (whole, *(each if len(parts) > 1 else ()))


def adapter_parameters(kind: Model, lora: Lora, apart: bool = False) -> int:
    """Return the parameters of all adapters of one block: rank · (inputs + outputs) each. `apart` is as in `widths`."""
    each = ((inputs, n) for name, inputs, parts in adapted_linears(kind) for n in widths(lora, name, parts, apart))
    return sum(lora.rank * (inputs + n) for inputs, n in each)
