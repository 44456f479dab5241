"""A transformer as one rank runs it: embedding, equal blocks, head."""

from __future__ import annotations

from clustersim.model.attention import attention_part
from clustersim.model.embedding import embedding_part
from clustersim.model.head import head_part
from clustersim.model.mlp import mlp_part
from clustersim.model.moe import moe_part
from clustersim.model.norm import norm
from clustersim.model.operator import Layer, Operator
from clustersim.model.sharding import Rank


def layers(rank: Rank) -> tuple[Layer, ...]:
    """Return the layers of the model in order, for one tp rank and one microbatch; all blocks are one object."""
    one = block(rank)
    return (embedding(rank), *(one for _ in range(rank.model.layers)), head(rank))


def embedding(rank: Rank) -> Layer:
    """Return the layer from token ids (8 bytes each) to vectors."""
    return Layer("embedding", embedding_part(rank), 8.0 * rank.tokens)


def head(rank: Rank) -> Layer:
    """Return the layer from vectors to the loss."""
    return Layer("head", head_part(rank), hidden_bytes(rank))


def block(rank: Rank) -> Layer:
    """Return one block: attention, then MLP or experts, with norms before (pre) or after (post) each half."""
    halves = (
        ("attention", attention_part(rank)),
        ("mlp", moe_part(rank) if rank.model.experts else mlp_part(rank)),
    )
    return Layer("block", tuple(op for name, part in halves for op in _normed(rank, name, part)), hidden_bytes(rank))


def _normed(rank: Rank, name: str, part: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Return a half of a block with its norm, where the gradients of branch and residual also meet."""
    one = norm(rank, f"{name}_norm")
    return (one, *part) if rank.model.norm_position == "pre" else (*part, one)


def hidden_bytes(rank: Rank) -> float:
    """Return the bytes of the activations between two layers on one rank: b·s·h values, a tp-th under sequence parallelism."""
    return rank.size * rank.local * rank.model.hidden
