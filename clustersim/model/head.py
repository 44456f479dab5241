"""The head: final norm, BERT's transform, logits over a split vocabulary, cross-entropy."""

from __future__ import annotations

from clustersim.model.elementwise import copy
from clustersim.model.kernel import vector
from clustersim.model.linear import column, dgrad, input_size, product, wgrad
from clustersim.model.mlp import activation_part
from clustersim.model.norm import norm
from clustersim.model.operator import Operator
from clustersim.model.sharding import Rank

LOGITS = "logits"
"""Name of the operator whose weights are the embedding's when tied."""


def head_part(rank: Rank) -> tuple[Operator, ...]:
    """Return the operators from the last block's output to the loss."""
    hidden = rank.model.hidden
    logits = column(rank, LOGITS, hidden, rank.vocab, bias=rank.model.head_transform)
    return (
        *((norm(rank, "final_norm", fork=False),) if rank.model.norm_position == "pre" else ()),
        *(transform(rank) if rank.model.head_transform else ()),
        logits,
        cross_entropy(rank),
    )


def transform(rank: Rank) -> tuple[Operator, ...]:
    """Return BERT's dense layer, activation and norm before the logits; every tp rank holds all of it."""
    hidden, rows = rank.model.hidden, rank.local
    weights = rank.replicated(hidden * hidden + hidden)
    linear = Operator(
        "transform",
        product(rank, hidden, hidden, rows),
        dgrad(rank, hidden, hidden, rows),
        wgrad(rank, hidden, hidden, True, rows),
        parameters=weights,
        replicated=weights,
        saved=input_size(rank) * rows * hidden,
    )
    return (
        linear,
        activation_part(rank, "transform_activation", rows, hidden),
        norm(rank, "transform_norm", fork=False),
    )


def cross_entropy(rank: Rank) -> Operator:
    """Return the loss; it keeps the fp32 softmax, 4 bytes a logit (Korthikanti et al. 2022, section 4.3)."""
    return eager_loss(rank) if rank.eager else parallel_loss(rank)


def parallel_loss(rank: Rank) -> Operator:
    """Return Megatron's vocab-parallel cross-entropy, with three all-reduces of 4 bytes a token.

    They add up the maximum, the target's logit and the sum of exponentials (tensor_parallel/cross_entropy.py).
    """
    shape, z = (rank.tokens, rank.vocab), rank.size
    small = rank.exchange("all_reduce", rank.tokens, 1, 4.0)
    narrow = z < 4
    return Operator(
        "cross_entropy",
        (
            *((copy(rank, "to_fp32", *shape, z + 4),) if narrow else ()),
            copy(rank, "max", *shape, 4.0, "fp32"),
            *small,
            copy(rank, "exp_sum", *shape, 8.0, "fp32"),
            *small,
            *small,
            copy(rank, "divide", *shape, 8.0, "fp32"),
        ),
        (
            copy(rank, "cross_entropy_backward", *shape, 8.0, "fp32"),
            *((copy(rank, "from_fp32", *shape, z + 4),) if narrow else ()),
        ),
        saved=4.0 * shape[0] * shape[1],
    )


def eager_loss(rank: Rank) -> Operator:
    """Return PyTorch's cross-entropy on shifted logits: copy, log-softmax; backward fill, log-softmax, fill and copy."""
    shape = (rank.tokens, rank.vocab)
    small = rank.exchange("all_reduce", rank.tokens, 1, 4.0)
    return Operator(
        "cross_entropy",
        (
            copy(rank, "shift", *shape, rank.size + 4),
            *small,
            *small,
            vector("softmax", "log_softmax", "fp32", *shape, 5.0, 8.0),
            *small,
        ),
        (
            copy(rank, "fill", *shape, 4.0, "fp32"),
            vector("softmax", "log_softmax_backward", "fp32", *shape, 5.0, 12.0),
            copy(rank, "shift_backward", *shape, 4.0 + 2 * rank.size),
        ),
        saved=4.0 * shape[0] * shape[1],
    )
