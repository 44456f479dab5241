"""FLOP of one training step in closed form, for MFU and HFU.

A product of m×k by k×n is 2·m·n·k; the backward pass costs twice the forward pass. With B sequences of s tokens, l layers
of width h, and V rows of logits, a GPT without recomputation takes

    72·B·s·l·h²·(1 + s/(6h) + V/(12·l·h))

and with full recomputation of the blocks 96·B·s·l·h²·(1 + s/(6h) + V/(16·l·h)) (Narayanan et al., SC'21, equation 3),
both with the attention matrix counted in full. By default causal attention counts half, the work that a flash kernel does.
"""

from __future__ import annotations

from clustersim.model.sharding import dense_layers, dense_width, width
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
    model, h = job.model, job.model.hidden
    dim = model.head_dim or h // model.heads
    attention = h * (model.heads + 2 * (model.kv_heads or model.heads)) * dim + model.heads * dim * h
    factor, dense = 3 if model.activation == "swiglu" else 2, dense_layers(model)
    mlp = h * dense_width(model) * factor
    experts = (model.topk + model.shared_experts) * h * width(model) * factor + h * (model.experts or 0)
    return 2.0 * tokens(job) * (dense * (attention + mlp) + (model.layers - dense) * (attention + experts))


def attention_flop(job: Job, full: bool = False) -> float:
    """Return the forward FLOP of scores and context, 4·B·s²·heads·dim a layer, half when causal unless `full`."""
    model = job.model
    dim = model.head_dim or model.hidden // model.heads
    share = 0.5 if model.causal and not full else 1.0
    return share * 4.0 * tokens(job) * job.training.seq * model.heads * dim * model.layers


def logits_flop(job: Job) -> float:
    """Return the forward FLOP of the head over the padded vocabulary, BERT's transform included."""
    h = job.model.hidden
    return 2.0 * tokens(job) * h * (job.vocab + (h if job.model.head_transform else 0))


def tokens(job: Job) -> int:
    """Return the tokens of one step."""
    return job.training.global_batch * job.training.seq
