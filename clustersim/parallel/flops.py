"""FLOP of one training step in closed form, for MFU and HFU.

A product of m×k by k×n is 2·m·n·k; the backward pass costs twice the forward pass. With B sequences of s tokens, l layers
of width h, and V rows of logits, a GPT without recomputation takes

    72·B·s·l·h²·(1 + s/(6h) + V/(12·l·h))

and with full recomputation of the blocks 96·B·s·l·h²·(1 + s/(6h) + V/(16·l·h)) (Narayanan et al., SC'21, equation 3),
both with the attention matrix counted in full. By default causal attention counts half, the work that a flash kernel does.
"""

from __future__ import annotations

import math

from clustersim.config.workload import Model
from clustersim.model.blocks import distinct, kinds
from clustersim.model.sharding import gated, head_width, width
from clustersim.parallel.job import Job


def model_flop(job: Job, full: bool = False) -> float:
    """Return the FLOP that one step of `global_batch` sequences needs, without recomputation (the numerator of MFU)."""
    return 3 * (linear_flop(job) + attention_flop(job, full) + logits_flop(job))


def hardware_flop(job: Job, full: bool = False) -> float:
    """Return the FLOP that one step runs, recomputed blocks or attention cores included (the numerator of HFU).

    What a flash kernel computes again inside its own backward pass is not counted, as is the custom.
    """
    again = {
        "none": 0.0,
        "selective": attention_flop(job, full),
        "full": linear_flop(job) + attention_flop(job, full),
    }
    return model_flop(job, full) + again[job.training.recompute]


def linear_flop(job: Job) -> float:
    """Return the forward FLOP of all linears in the blocks, for the whole batch."""
    own = sum(count * block_products(kind) for kind, count in layer_kinds(job.model))
    return 2.0 * tokens(job) * (own + job.model.mtp_layers * 2 * job.model.hidden**2)


def layer_kinds(model: Model) -> list[tuple[Model, int]]:
    """Return the kinds of blocks as (kind, how many), those that predict further tokens among them."""
    further = [(kinds(model)[-1], model.mtp_layers)] if model.mtp_layers else []
    return [*distinct(model), *further]


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
    queries, rope = kind.heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim), mla.qk_pos_emb_head_dim
    q = (h + queries) * mla.q_lora_rank if mla.q_lora_rank else h * queries
    kv = h * (mla.kv_lora_rank + rope) + mla.kv_lora_rank * kind.heads * (mla.qk_head_dim + mla.v_head_dim)
    return q + kv + kind.heads * mla.v_head_dim * h


def attention_flop(job: Job, full: bool = False) -> float:
    """Return the forward FLOP of scores and context, 4·B·s²·heads·dim a layer, half when causal unless `full`.

    With queries and values of different widths their mean is dim; with a window of w < s tokens it is w·(1 - w/2s) of the s keys.
    """
    seq = job.training.seq
    each = ((count, _scores(kind), _seen(kind, seq, full)) for kind, count in layer_kinds(job.model))
    return math.fsum(share * 4.0 * tokens(job) * seq * width * count for count, width, share in each)


def _scores(kind: Model) -> float:
    """Return heads · dim, the mean of queries' and values'."""
    if kind.mla is None:
        return kind.heads * head_width(kind)
    return kind.heads * (kind.mla.qk_head_dim + kind.mla.qk_pos_emb_head_dim + kind.mla.v_head_dim) / 2


def _seen(kind: Model, seq: int, full: bool) -> float:
    """Return the share of all keys that a query sees in the mean."""
    if full:
        return 1.0
    if 0 < kind.window < seq:
        return kind.window / seq * (1 - kind.window / seq / 2)
    return 0.5 if kind.causal else 1.0


def logits_flop(job: Job) -> float:
    """Return the forward FLOP of the head over the padded vocabulary, BERT's transform included."""
    h = job.model.hidden
    return 2.0 * tokens(job) * h * (job.vocab * (1 + job.model.mtp_layers) + (h if job.model.head_transform else 0))


def tokens(job: Job) -> int:
    """Return the tokens of one step."""
    return job.training.global_batch * job.training.seq
