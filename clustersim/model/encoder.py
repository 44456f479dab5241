"""An encoder before the decoder, and the attention of the decoder's blocks to its output (T5, Raffel et al. 2020).

Blocks of the encoder are the model's blocks (experts included) without a mask, on the encoder's own tokens. Each decoder block
has a third part between its two: cross-attention from its own tokens to the keys and values of the encoder.
"""

from __future__ import annotations

from dataclasses import replace

from clustersim.config.workload import Model
from clustersim.model.attention import flash_gradient_bytes, residual_part, unfused
from clustersim.model.context_attention import Core
from clustersim.model.embedding import TABLE, embedding_part
from clustersim.model.kernel import attention
from clustersim.model.linear import column, row
from clustersim.model.norm import norm
from clustersim.model.operator import Operator
from clustersim.model.sharding import ShardedModel

CROSS = "cross_attention"
"""Name of the cross-attention operator, which selective recomputation repeats."""
LOOKUP = f"decoder_{TABLE}"
"""Name of the operator that looks up the decoder's tokens."""


def encoder_model(model: Model) -> Model:
    """Return the encoder as a separate model: `encoder_layers` of the model's blocks, in order, without mask or window."""
    blocks = tuple(block.model_copy(update={"window": None}) for block in model.blocks)
    changes = {"layers": model.encoder_layers, "encoder_layers": 0, "causal": False, "window": 0, "blocks": blocks}
    return model.model_copy(update={**changes, "dense_layers": min(model.dense_layers, model.encoder_layers)})


def encoder_of(shard: ShardedModel) -> ShardedModel:
    """Return the shapes of the encoder on a rank, with `encoder_seq` tokens per sequence (default: the decoder's)."""
    training = shard.training.model_copy(update={"seq": shard.training.encoder_seq or shard.training.seq})
    return replace(shard, model=encoder_model(shard.model), training=training)


def cross_attention_part(shard: ShardedModel, encoder: ShardedModel) -> tuple[Operator, ...]:
    """Return the operators of cross-attention to the encoder's output with the residual sum, without its norm. encoder: shapes of
    the encoder, as by `encoder_of`."""
    hidden, inner, keys = shard.model.hidden, shard.heads * shard.dim, 2 * shard.kv_heads * shard.dim
    bias, z = shard.model.bias, shard.size
    return (
        column(shard, "cross_q", hidden, inner, bias=bias, saved=z * shard.tokens * inner),
        column(encoder, "cross_kv", hidden, keys, bias=bias, saved=z * encoder.tokens * keys),
        cross_core(shard, encoder),
        row(shard, "cross_projection", inner, hidden, bias=bias, part="out_proj"),
        residual_part(shard, "cross_residual"),
    )


def cross_core(shard: ShardedModel, encoder: ShardedModel) -> Operator:
    """Return the core of cross-attention: every token of the decoder sees all tokens of the encoder."""
    if shard.training.attention == "unfused":
        return unfused(shard, shard.kv_heads, shard.dim, shard.dim, encoder, CROSS)
    b, queries, keys = shard.training.micro_batch, shard.training.seq, encoder.training.seq
    args = (shard.core_dtype, b, shard.heads, shard.kv_heads, queries, keys, shard.dim, False)
    generation = "" if shard.training.attention == "flash" else shard.training.attention
    forward, backward = (attention(op, *args)._replace(generation=generation) for op in ("forward", "backward"))
    gradient_buffers = flash_gradient_bytes(shard, Core(shard.heads, shard.kv_heads, shard.dim, shard.dim))
    return Operator(
        CROSS, (forward,), (backward,), saved=4.0 * b * shard.heads * queries, backward_alive=gradient_buffers
    )


def decoder_entry_part(shard: ShardedModel, separate_table: bool) -> tuple[Operator, ...]:
    """Return the operators from the decoder's token ids to its first block. separate_table: whether the stage stores a table for
    them; otherwise they use one that it has anyway."""
    first, *others = embedding_part(shard)
    lookup = first._replace(name=LOOKUP)
    return (lookup if separate_table else lookup._replace(parameters=0), *others)


def encoder_norm(encoder: ShardedModel) -> Operator:
    """Return the norm after the last block of the encoder."""
    return norm(encoder, "encoder_final_norm", fork=False)
