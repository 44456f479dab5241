"""A transformer as one rank runs it: embedding, equal blocks, head."""

from __future__ import annotations

from clustersim.model.attention import attention_part
from clustersim.model.embedding import embedding_part
from clustersim.model.head import head_part
from clustersim.model.mlp import mlp_part
from clustersim.model.moe import moe_part
from clustersim.model.norm import norm
from clustersim.model.operator import Layer, Operator
from clustersim.model.sharding import ShardedModel


def layers(shard: ShardedModel) -> tuple[Layer, ...]:
    """Return the layers of the model in order, for one tp rank and one microbatch; all blocks are one object."""
    one = block(shard)
    return (embedding(shard), *(one for _ in range(shard.model.layers)), head(shard))


def embedding(shard: ShardedModel) -> Layer:
    """Return the layer from token ids (8 bytes each) to vectors."""
    return Layer("embedding", embedding_part(shard), 8.0 * shard.tokens)


def head(shard: ShardedModel) -> Layer:
    """Return the layer from vectors to the loss."""
    return Layer("head", head_part(shard), hidden_bytes(shard))


def block(shard: ShardedModel) -> Layer:
    """Return one block: attention, then MLP or experts, with norms before (pre) or after (post) each half."""
    halves = (
        ("attention", attention_part(shard)),
        ("mlp", moe_part(shard) if shard.model.experts else mlp_part(shard)),
    )
    return Layer("block", tuple(op for name, part in halves for op in _normed(shard, name, part)), hidden_bytes(shard))


def _normed(shard: ShardedModel, name: str, part: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Return a half of a block with its norm, where the gradients of branch and residual also meet."""
    one = norm(shard, f"{name}_norm")
    return (one, *part) if shard.model.norm_position == "pre" else (*part, one)


def hidden_bytes(shard: ShardedModel) -> float:
    """Return the bytes of the activations between two layers on one rank: b·s·h values, a tp-th under sequence parallelism."""
    return shard.size * shard.local * shard.model.hidden
