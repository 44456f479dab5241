"""The head: final norm, BERT's transform, logits over a split vocabulary, cross-entropy."""

from __future__ import annotations

from clustersim.model.elementwise import copy
from clustersim.model.kernel import vector
from clustersim.model.linear import column, dgrad, input_size, product, wgrad
from clustersim.model.mlp import activation_part
from clustersim.model.norm import norm
from clustersim.model.operator import Operator, Steps
from clustersim.model.sharding import ShardedModel

LOGITS = "logits"
"""Name of the operator whose weights are the embedding's when tied."""


def head_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the operators from the last block's output to the loss."""
    shard = shard.in_activation_type
    hidden = shard.model.hidden
    logits = column(shard, LOGITS, hidden, shard.vocab, bias=shard.model.head_transform, chunked=False)
    return (
        *((norm(shard, "final_norm", fork=False),) if shard.model.norm_position != "post" else ()),
        *(transform(shard) if shard.model.head_transform else ()),
        logits,
        cross_entropy(shard),
    )


def further_head_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the logits and the loss of one further token, with the head's weights."""
    shard = shard.in_activation_type
    logits = column(shard, LOGITS, shard.model.hidden, shard.vocab, bias=False)
    return logits._replace(name=f"mtp_{LOGITS}", parameters=0), cross_entropy(shard)


def transform(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return BERT's dense layer, activation and norm before the logits, replicated on every tp rank."""
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
        backward_alive=2 * shard.size * rows * hidden,
    )
    return (
        linear,
        activation_part(shard, "transform_activation", rows, hidden),
        norm(shard, "transform_norm", fork=False),
    )


def cross_entropy(shard: ShardedModel) -> Operator:
    """Return the loss of the kind `training.cross_entropy`; default: `eager` with eager kernels, otherwise `parallel`."""
    kinds = {"parallel": parallel_loss, "native": native_loss, "fused": fused_loss, "metered": metered_loss}
    kind = shard.training.cross_entropy or ("eager" if shard.eager else "parallel")
    return kinds.get(kind, eager_loss)(shard)


def _loss(
    shard: ShardedModel, forward: Steps, backward: Steps, *, saved: float, alive: tuple[float, float]
) -> Operator:
    """Return the loss. saved: saved bytes per logit. alive: further bytes per logit during the (forward, backward) pass."""
    logits = float(shard.tokens * shard.vocab)
    return Operator(
        "cross_entropy",
        forward,
        backward,
        saved=saved * logits,
        forward_alive=alive[0] * logits,
        backward_alive=alive[1] * logits,
    )


def parallel_loss(shard: ShardedModel) -> Operator:
    """Return Megatron's vocab-parallel cross-entropy, with three all-reduces of 4 bytes per token.

    They reduce the maximum, the target's logit and the sum of exponentials (tensor_parallel/cross_entropy.py). It saves the fp32
    softmax, 4 bytes per logit (Korthikanti et al. 2022, section 4.3), which becomes the gradient in place. 16-bit logits and
    their gradient exist at the same time; nanotron (nn.py, sharded_cross_entropy) subtracts into another fp32 tensor.
    """
    shape, z = (shard.tokens, shard.vocab), shard.size
    small = shard.exchange("all_reduce", shard.tokens, 1, 4.0)
    narrow = z < 4
    return _loss(
        shard,
        (
            *((copy(shard, "to_fp32", *shape, z + 4),) if narrow else ()),
            copy(shard, "logits_max", *shape, 4.0, "fp32"),
            *small,
            copy(shard, "logits_subtract", *shape, 8.0, "fp32"),
            *small,
            copy(shard, "logits_exp", *shape, 8.0, "fp32"),
            copy(shard, "logits_sum", *shape, 4.0, "fp32"),
            *small,
            copy(shard, "logits_divide", *shape, 8.0, "fp32"),
        ),
        (
            copy(shard, "cross_entropy_backward", *shape, 8.0, "fp32"),
            *((copy(shard, "from_fp32", *shape, z + 4),) if narrow else ()),
        ),
        saved=4.0,
        alive=(4.0 if shard.eager else z if narrow else 0.0, z if narrow else 0.0),
    )


def native_loss(shard: ShardedModel) -> Operator:
    """Return the vocab-parallel loss as fused by torch.compile, with two all-reduces (Megatron-Core,
    fusions/fused_cross_entropy.py).

    The maximum makes fp32 logits; exponentials overwrite them, and the gradient is computed in a copy (comments in that file).
    """
    shape, narrow = (shard.tokens, shard.vocab), shard.size if shard.size < 4 else 0.0
    largest, exponential, quotient, gradient = (
        copy(shard, f"native_{op}", *shape, traffic, "fp32")
        for op, traffic in (("max", narrow + 4), ("exp", 16.0), ("divide", 8.0), ("gradient", 12 + (narrow or 4.0)))
    )
    maximum, sums = (shard.exchange("all_reduce", count * shard.tokens, 1, 4.0) for count in (1, 2))
    forward: Steps = (largest, *maximum, exponential, *sums, quotient)
    return _loss(shard, forward, (gradient,), saved=4.0, alive=(4.0, 4.0))


def fused_loss(shard: ShardedModel) -> Operator:
    """Return Transformer Engine's fused cross-entropy (pytorch/triton/cross_entropy.py, 2.x). It saves only the logits.

    Maximum and sum of exponentials are computed in one pass, of which 12 bytes per token are gathered. The gradient overwrites
    the logits, and is multiplied by the loss's gradient in the backward pass.
    """
    shape, z = (shard.tokens, shard.vocab), shard.size
    gather = shard.exchange("all_gather", shard.tokens * shard.tp, 1, 12.0)
    return _loss(
        shard,
        (copy(shard, "max", *shape, z), *gather, copy(shard, "exp_sum", *shape, 2 * z)),
        (copy(shard, "cross_entropy_backward", *shape, 2 * z),),
        saved=z,
        alive=(0.0, 0.0),
    )


def metered_loss(shard: ShardedModel) -> Operator:
    """Return a fused loss followed by training metrics on its logits: Composer's cross-entropy and perplexity.

    Each metric is the forward pass of PyTorch's cross-entropy in fp32, after every backward pass (composer trainer/trainer.py,
    _eval_train_metrics; metrics/nlp.py), when activations are freed.
    """
    fused, shape, z = fused_loss(shard), (shard.tokens, shard.vocab), shard.size
    once = (
        *((copy(shard, "cast", *shape, z + 4),) if z < 4 else ()),
        vector("softmax", "log_softmax", "fp32", *shape, 5.0, 8.0),
    )
    return fused._replace(backward_input=(*fused.backward_input, *once, *once))


def eager_loss(shard: ShardedModel) -> Operator:
    """Return PyTorch's cross-entropy: copy, log-softmax; backward fill, log-softmax, fill and copy.

    The copy shifts the logits of a decoder by one token. Encoders and T5, whose labels are aligned, copy only 16-bit logits. It
    saves the fp32 log-softmax. 16-bit and copied logits exist at the same time, and backward the gradients of the loss by
    log-softmax and by logits.
    """
    shape, z = (shard.tokens, shard.vocab), shard.size
    small = shard.exchange("all_reduce", shard.tokens, 1, 4.0)
    shifts = shard.model.causal and not shard.model.encoder_layers
    name, filled = ("shift", z) if shifts else ("cast", 0.0)
    copies = shifts or z < 4
    return _loss(
        shard,
        (
            *((copy(shard, name, *shape, z + 4),) if copies else ()),
            *small,
            *small,
            vector("softmax", "log_softmax", "fp32", *shape, 5.0, 8.0),
            *small,
        ),
        (
            copy(shard, "fill", *shape, 4.0, "fp32"),
            vector("softmax", "log_softmax_backward", "fp32", *shape, 5.0, 12.0),
            *((copy(shard, f"{name}_backward", *shape, 4.0 + z + filled),) if copies else ()),
        ),
        saved=4.0,
        alive=(z + (4.0 if copies else 0.0), 8.0),
    )
