"""The head: final norm, BERT's transform, logits over a split vocabulary, cross-entropy."""

from __future__ import annotations

from clustersim.model.elementwise import copy
from clustersim.model.kernel import vector
from clustersim.model.linear import column, dgrad, input_size, product, wgrad
from clustersim.model.mlp import activation_part
from clustersim.model.norm import norm
from clustersim.model.operator import Operator
from clustersim.model.sharding import ShardedModel

LOGITS = "logits"
"""Name of the operator whose weights are the embedding's when tied."""


def head_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the operators from the last block's output to the loss."""
    hidden = shard.model.hidden
    logits = column(shard, LOGITS, hidden, shard.vocab, bias=shard.model.head_transform, chunks=False)
    return (
        *((norm(shard, "final_norm", fork=False),) if shard.model.norm_position != "post" else ()),
        *(transform(shard) if shard.model.head_transform else ()),
        logits,
        cross_entropy(shard),
    )


def further_head_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the logits and the loss of one more token, by the head's own weights."""
    logits = column(shard, LOGITS, shard.model.hidden, shard.vocab, bias=False)
    return logits._replace(name=f"mtp_{LOGITS}", parameters=0), cross_entropy(shard)


def transform(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return BERT's dense layer, activation and norm before the logits; every tp rank holds all of it."""
    hidden, rows = shard.model.hidden, shard.local
    weights = shard.replicated(hidden * hidden + hidden)
    linear = Operator(
        "transform",
        product(shard, hidden, hidden, rows),
        dgrad(shard, hidden, hidden, rows),
        wgrad(shard, hidden, hidden, True, rows),
        parameters=weights,
        replicated=weights,
        saved=input_size(shard) * rows * hidden,
    )
    return (
        linear,
        activation_part(shard, "transform_activation", rows, hidden),
        norm(shard, "transform_norm", fork=False),
    )


def cross_entropy(shard: ShardedModel) -> Operator:
    """Return the loss; it keeps the fp32 softmax, 4 bytes a logit (Korthikanti et al. 2022, section 4.3)."""
    return eager_loss(shard) if shard.eager else parallel_loss(shard)


def parallel_loss(shard: ShardedModel) -> Operator:
    """Return Megatron's vocab-parallel cross-entropy, with three all-reduces of 4 bytes a token.

    They add up the maximum, the target's logit and the sum of exponentials (tensor_parallel/cross_entropy.py).
    """
    shape, z = (shard.tokens, shard.vocab), shard.size
    small = shard.exchange("all_reduce", shard.tokens, 1, 4.0)
    narrow = z < 4
    return Operator(
        "cross_entropy",
        (
            *((copy(shard, "to_fp32", *shape, z + 4),) if narrow else ()),
            copy(shard, "max", *shape, 4.0, "fp32"),
            *small,
            copy(shard, "exp_sum", *shape, 8.0, "fp32"),
            *small,
            *small,
            copy(shard, "divide", *shape, 8.0, "fp32"),
        ),
        (
            copy(shard, "cross_entropy_backward", *shape, 8.0, "fp32"),
            *((copy(shard, "from_fp32", *shape, z + 4),) if narrow else ()),
        ),
        saved=4.0 * shape[0] * shape[1],
    )


def eager_loss(shard: ShardedModel) -> Operator:
    """Return PyTorch's cross-entropy on shifted logits: copy, log-softmax; backward fill, log-softmax, fill and copy."""
    shape = (shard.tokens, shard.vocab)
    small = shard.exchange("all_reduce", shard.tokens, 1, 4.0)
    return Operator(
        "cross_entropy",
        (
            copy(shard, "shift", *shape, shard.size + 4),
            *small,
            *small,
            vector("softmax", "log_softmax", "fp32", *shape, 5.0, 8.0),
            *small,
        ),
        (
            copy(shard, "fill", *shape, 4.0, "fp32"),
            vector("softmax", "log_softmax_backward", "fp32", *shape, 5.0, 12.0),
            copy(shard, "shift_backward", *shape, 4.0 + 2 * shard.size),
        ),
        saved=4.0 * shape[0] * shape[1],
    )
