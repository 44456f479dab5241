"""A transformer as one rank runs it: embedding, blocks of one or two kinds, head."""

from __future__ import annotations

from clustersim.model.attention import attention_part
from clustersim.model.embedding import embedding_part
from clustersim.model.head import head_part
from clustersim.model.mlp import mlp_part
from clustersim.model.moe import moe_part
from clustersim.model.norm import norm
from clustersim.model.operator import Layer, Operator
from clustersim.model.sharding import ShardedModel, dense_layers


def blocks(shard: ShardedModel) -> tuple[tuple[Layer, int], ...]:
    """Return the blocks of the model in order, for one tp rank and one microbatch: (block, how many of it in a row).

    A third kind of layer would be one more entry.
    """
    first = dense_layers(shard.model)
    runs = ((dense_block, first), (expert_block, shard.model.layers - first))
    return tuple((build(shard), count) for build, count in runs if count)


def embedding(shard: ShardedModel) -> Layer:
    """Return the layer from token ids (8 bytes each) to vectors."""
    return Layer("embedding", embedding_part(shard), 8.0 * shard.tokens)


def head(shard: ShardedModel) -> Layer:
    """Return the layer from vectors to the loss."""
    return Layer("head", head_part(shard), hidden_bytes(shard))


def dense_block(shard: ShardedModel) -> Layer:
    """Return one block of attention and an MLP."""
    return _block(shard, mlp_part(shard))


def expert_block(shard: ShardedModel) -> Layer:
    """Return one block of attention and a mixture of experts."""
    return _block(shard, moe_part(shard))._replace(experts=True)


def _block(shard: ShardedModel, mlp: tuple[Operator, ...]) -> Layer:
    """Return a block of two halves, with norms before (pre) or after (post) each."""
    halves = (("attention", attention_part(shard)), ("mlp", mlp))
    operators = tuple(op for half, part in halves for op in _normed(shard, half, part))
    return Layer("block", operators, hidden_bytes(shard))


def _normed(shard: ShardedModel, name: str, part: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Return a half of a block with its norm, where the gradients of branch and residual also meet."""
    one = norm(shard, f"{name}_norm")
    return (one, *part) if shard.model.norm_position == "pre" else (*part, one)


def hidden_bytes(shard: ShardedModel) -> float:
    """Return the bytes of the activations between two layers on one rank: b·s·h values, a tp-th under sequence parallelism."""
    return shard.size * shard.local * shard.model.hidden
