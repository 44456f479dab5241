"""Multi-token prediction: what joins the last block's output and the next token's vector into the input of one more block.

As DeepSeek-V3 (arXiv 2412.19437, section 2.2) and Megatron (core/transformer/multi_token_prediction.py) have it: a norm of
each, a linear from both side by side to one, a block of the model's last kind, a norm, and the head that all share.
"""

from __future__ import annotations

from clustersim.model.elementwise import add, copy
from clustersim.model.embedding import TABLE, table
from clustersim.model.linear import column
from clustersim.model.norm import norm
from clustersim.model.operator import Operator
from clustersim.model.sharding import ShardedModel

LOOKUP = f"mtp_{TABLE}"
"""Name of the operator that looks the next tokens up."""


def prediction_part(shard: ShardedModel, own: bool) -> tuple[Operator, ...]:
    """Return the operators before the block; own: whether this stage holds a table of its own for them."""
    lookup = table(shard)._replace(name=LOOKUP)
    return (
        lookup if own else lookup._replace(parameters=0),
        norm(shard, "mtp_embedding_norm", fork=False),
        norm(shard, "mtp_hidden_norm", fork=False),
        join(shard),
        projection(shard),
    )


def join(shard: ShardedModel) -> Operator:
    """Return the copy of both vectors side by side; in the backward pass the gradient of the main path is added to its half."""
    shape, traffic = (shard.local, 2 * shard.model.hidden), 2 * shard.size
    backward = (copy(shard, "split", *shape, traffic), add(shard, shard.local, shard.model.hidden))
    return Operator("mtp_concatenate", (copy(shard, "concatenate", *shape, traffic),), backward)


def projection(shard: ShardedModel) -> Operator:
    """Return the column-parallel linear from both to one, whose outputs are gathered over the tp ranks."""
    hidden = shard.model.hidden
    linear = column(shard, "mtp_projection", 2 * hidden, hidden // shard.tp, bias=False)
    return linear._replace(forward=(*linear.forward, *shard.exchange("all_gather", shard.tokens, hidden)))
