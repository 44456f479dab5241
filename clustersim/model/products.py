"""The weights that a token is multiplied with: what a block costs, in FLOP and where stages are cut by cost."""

from __future__ import annotations

from clustersim.config.workload import Model
from clustersim.model.sharding import gated, head_width, width


def block_products(kind: Model) -> int:
    """Return the weights of a block's linears that a token is multiplied with."""
    mla, router = kind.mla, kind.hidden * (kind.experts or 0)
    down = (mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_pos_emb_head_dim if mla else 0
    return sum(named_products(kind).values()) + kind.hidden * down + router


def named_products(kind: Model) -> dict[str, int]:
    """Return the same of each product whose output recomputation can save, by MaxText's name."""
    h, inner = kind.hidden, kind.heads * (kind.mla.v_head_dim if kind.mla else head_width(kind))
    visited = width(kind)
    if kind.experts:
        visited = kind.topk * visited + kind.shared_experts * (kind.shared_ffn or visited)
    into = dict.fromkeys(("mlpwi_0", "mlpwi_1")[: 2 if gated(kind) else 1], h * visited)
    return _attention_products(kind) | {"out_proj": inner * h} | into | {"mlpwo": h * visited}


def _attention_products(kind: Model) -> dict[str, int]:
    h, heads, mla = kind.hidden, kind.heads, kind.mla
    if mla is None:
        kv = h * (kind.kv_heads or heads) * head_width(kind)
        return {"query_proj": h * heads * head_width(kind), "key_proj": kv, "value_proj": kv}
    own = {"key_proj": mla.qk_head_dim, "value_proj": mla.v_head_dim}
    queries = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim) * (mla.q_lora_rank or h)
    return {"query_proj": queries} | {name: mla.kv_lora_rank * heads * dim for name, dim in own.items()}


def up_products(kind: Model) -> int:
    """Return the weights of the linears out of the latents, or of those that make queries, keys and values."""
    return sum(_attention_products(kind).values())
