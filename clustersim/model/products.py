"""The weights that a token is multiplied with: what a block costs, in FLOP and where stages are cut by cost."""

from __future__ import annotations

from clustersim.config.workload import LatentAttention, Model
from clustersim.model.sharding import gated, head_width, width


def block_products(kind: Model) -> int:
    """Return the weights of a block's linears that a token is multiplied with."""
    h, factor = kind.hidden, 3 if gated(kind) else 2
    if not kind.experts:
        return attention_products(kind) + h * width(kind) * factor
    visited = kind.topk * width(kind) + kind.shared_experts * (kind.shared_ffn or width(kind))
    return attention_products(kind) + h * visited * factor + h * kind.experts


def attention_products(kind: Model) -> int:
    """Return the weights of an attention's linears."""
    h, mla = kind.hidden, kind.mla
    if mla is None:
        dim = head_width(kind)
        return h * (kind.heads + 2 * (kind.kv_heads or kind.heads)) * dim + kind.heads * dim * h
    down = h * ((mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_pos_emb_head_dim)
    return down + up_products(kind, mla) + kind.heads * mla.v_head_dim * h


def up_products(kind: Model, mla: LatentAttention) -> int:
    """Return the weights of the linears out of the latents."""
    queries = kind.heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    return queries * (mla.q_lora_rank or kind.hidden) + mla.kv_lora_rank * kind.heads * (
        mla.qk_head_dim + mla.v_head_dim
    )
