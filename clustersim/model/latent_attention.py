"""Multi-head latent attention (MLA): queries, keys and values out of narrow latents (DeepSeek-V2, arXiv 2405.04434, section 2.1).

As Megatron splits it (core/transformer/multi_latent_attention.py): every tp rank holds the whole linears into the latents and
runs them on its own tokens, as norms do; the linears out of them are column-parallel, so that latents are gathered.
"""

from __future__ import annotations

from clustersim.config.workload import LatentAttention
from clustersim.model.attention import core, residual_part, rotary
from clustersim.model.elementwise import copy
from clustersim.model.linear import column, dgrad, input_size, made, product, row, wgrad
from clustersim.model.norm import norm
from clustersim.model.operator import Operator
from clustersim.model.sharding import ShardedModel


def latent_attention_part(shard: ShardedModel, latent: LatentAttention) -> tuple[Operator, ...]:
    """Return the operators of latent attention without the norm of its block."""
    hidden, heads, kv = shard.model.hidden, shard.heads, latent.kv_lora_rank
    dim, rope = latent.qk_head_dim + latent.qk_pos_emb_head_dim, latent.qk_pos_emb_head_dim
    narrow = latent.q_lora_rank
    both = (("key_proj", heads * latent.qk_head_dim), ("value_proj", heads * latent.v_head_dim))
    kept = shard.size * shard.tokens * heads * (2 * dim + latent.v_head_dim)
    attention = core(shard, heads, dim, latent.v_head_dim)
    return (
        *((down(shard, "q_down", narrow),) if narrow else ()),
        _shared(shard, down(shard, "kv_down", kv + rope)),
        *((norm(shard, "q_norm", fork=False, width=narrow),) if narrow else ()),
        norm(shard, "kv_norm", fork=False, width=kv),
        column(shard, "q_up", narrow or hidden, heads * dim, bias=False, parts=(("query_proj", heads * dim),)),
        column(shard, "kv_up", kv, sum(columns for _, columns in both), bias=False, parts=both),
        *((rotary(shard, (heads + 1) * rope),) if shard.model.positions == "rotary" else ()),
        keys(shard, latent),
        attention._replace(saved=attention.saved + kept, kept_input=kept),
        row(shard, "projection", heads * latent.v_head_dim, hidden, bias=shard.model.bias, part="out_proj"),
        residual_part(shard, "attention_residual"),
    )


def _shared(shard: ShardedModel, linear: Operator) -> Operator:
    """Return a linear whose input the one of the queries keeps already; narrow products keep a cast of their own."""
    return linear if shard.format else linear._replace(saved=0.0, kept_input=0.0)


def down(shard: ShardedModel, name: str, outputs: int) -> Operator:
    """Return the linear into a latent: the same on every tp rank, on its own tokens; keeps its input and nothing else."""
    hidden, rows = shard.model.hidden, shard.local
    weights = shard.replicated(hidden * outputs)
    return Operator(
        name,
        product(shard, hidden, outputs, rows),
        dgrad(shard, hidden, outputs, rows),
        wgrad(shard, hidden, outputs, False, rows),
        parameters=weights,
        replicated=weights,
        saved=input_size(shard) * rows * hidden,
        kept_input=input_size(shard) * rows * hidden,
        backward_alive=shard.size * rows * (hidden + outputs) + made(shard, weights),
    )


def keys(shard: ShardedModel, latent: LatentAttention) -> Operator:
    """Return keys and values of all heads: each one's own parts, and the rotary part of the keys that they share.

    One kernel parts them and writes both anew (Megatron's core/fusions/fused_mla_yarn_rope_apply.py, rotary_fwd_kv_kernel). With
    sequence parallelism the rotary part is gathered; its gradient is added up over heads and tokens of the others.
    """
    rope, z = latent.qk_pos_emb_head_dim, shard.size
    own = latent.qk_head_dim + latent.v_head_dim
    shape, traffic = (shard.tokens, shard.heads * (own + rope)), z * (1 + own / (own + rope))
    sp = shard.sequence_parallel
    gather = shard.exchange("all_gather", shard.tokens, rope) if sp else ()
    reduce = shard.exchange("reduce_scatter" if sp else "all_reduce", shard.tokens, rope)
    return Operator(
        "keys",
        (*gather, copy(shard, "concatenate", *shape, traffic)),
        (copy(shard, "concatenate_backward", *shape, traffic), *reduce),
        backward_alive=traffic * shape[0] * shape[1],
    )
