"""FLOP of one training step in closed form, for MFU and HFU.

A product of m×k by k×n is 2·m·n·k; the backward pass costs twice the forward pass. With B sequences of s tokens, l layers
of width h, and V rows of logits, a GPT without recomputation takes

    72·B·s·l·h²·(1 + s/(6h) + V/(12·l·h))

and with full recomputation of the blocks 96·B·s·l·h²·(1 + s/(6h) + V/(16·l·h)) (Narayanan et al., SC'21, equation 3),
both with the attention matrix counted in full. By default causal attention counts half, the work that a flash kernel does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from clustersim.config.workload import Model
from clustersim.model import parameters
from clustersim.model.encoder import encoder_model
from clustersim.model.lora import widths
from clustersim.model.recompute import UNGROUPED, saved_names
from clustersim.model.sharding import documents, gated, head_width, width
from clustersim.parallel.job import Job
from clustersim.parallel.layout import portions


def model_flop(job: Job, full: bool = False) -> float:
    """Return the FLOP that one step of `global_batch` sequences needs, without recomputation (the numerator of MFU).

    Frozen linears (`training.lora`) have no weight gradients, so they count twice the forward pass; attention and adapters count
    three times. Gradients before the first adapter do not count.
    """
    times = 2 if job.training.lora else 3
    whole = times * (linear_flop(job) + logits_flop(job)) + 3 * (attention_flop(job, full) + adapter_flop(job))
    return whole - _unneeded_flop(job, full)


def _unneeded_flop(job: Job, full: bool) -> float:
    """Return the FLOP of gradients that are not computed in the first block: inputs before its first adapter, and attention."""
    lora, kind, apart = job.training.lora, parameters.kinds(job.model)[0], not job.training.fused_projections
    products, attention = 0, 0.0
    if lora is None or job.training.recompute == "full":
        return 0.0
    for name, inputs, parts in parameters.adapted_linears(kind):
        products += inputs * sum(columns for _, columns in parts)
        attention += 2 * core_flop(job, kind, full) if name == "projection" else 0.0
        if own := widths(lora, name, parts, apart):
            return 2.0 * tokens(job) * (products + len(own) * inputs * lora.rank) + attention
    return 0.0


def adapter_flop(job: Job) -> float:
    """Return the forward FLOP of all low-rank adapters for the whole batch; 0 without adapters."""
    lora, apart = job.training.lora, not job.training.fused_projections
    own = sum(n * parameters.adapter_parameters(kind, lora, apart) for kind, n in layer_kinds(job.model)) if lora else 0
    return 2.0 * tokens(job) * own


def hardware_flop(job: Job, full: bool = False) -> float:
    """Return the FLOP that one step executes, recomputation included (the numerator of HFU).

    As is customary, recomputation inside the backward pass of a flash kernel is not counted.
    """
    return model_flop(job, full) + recomputed_flop(job, full)


def recomputed_flop(job: Job, full: bool = False) -> float:
    """Return the FLOP of recomputed forward passes: all blocks, the first blocks of each stage, or some modules."""
    how, count = job.training, tokens(job)
    if how.recompute == "none":
        return 0.0
    layers, names = parameters.kinds(job.model), set(how.recompute_modules or ("core_attn",))
    if how.recompute == "selective":
        further = [layers[-1]] * job.model.mtp_layers
        own = math.fsum(_modules_flop(kind, names) * count for kind in (*layers, *further))
        if job.model.encoder_layers:
            encoder = parameters.distinct(encoder_model(job.model))
            own += math.fsum(count * _modules_flop(kind, names) for kind, count in encoder) * encoder_tokens(job)
        return own + (attention_flop(job, full) if "core_attn" in names else 0.0)
    whole = how.recompute_method == "uniform" and (how.recompute_every or 1) == 1
    if whole and not how.recompute_saves:
        return linear_flop(job) + attention_flop(job, full) + adapter_flop(job)
    saves = saved_names(how.recompute_saves, scattered=job.parallelism.sequence_parallel and job.parallelism.tp > 1)
    predictions = job.model.mtp_layers if whole else 0
    blocks = [*_blocks_again(job), *[layers[-1]] * predictions]
    joined = 2.0 * count * predictions * 2 * job.model.hidden**2
    return math.fsum(_but_saved_flop(job, kind, saves, full) for kind in blocks) + joined


def _blocks_again(job: Job) -> Iterator[Model]:
    """Yield the blocks that are recomputed: all, the first ones of each stage, or every n-th."""
    layers, how, first = parameters.kinds(job.model), job.training, 0
    for portion in portions(job.parallelism, job.model):
        own, every = layers[first : first + portion.blocks], how.recompute_every or 1
        yield from own[every - 1 :: every][: how.recompute_layers if how.recompute_method == "block" else None]
        first += portion.blocks


def _but_saved_flop(job: Job, kind: Model, saves: Collection[str], full: bool) -> float:
    """Return the forward FLOP of one block for the whole batch, except GEMMs and attention whose output is in `saves`."""
    scattered = job.parallelism.sequence_parallel and job.parallelism.tp > 1
    grouped = saved_names([one for one in job.training.recompute_saves if one not in UNGROUPED], scattered=scattered)
    routed = kind.hidden * kind.topk * width(kind) if kind.experts else 0
    left = {name: routed for name in parameters.named_products(kind) if name.startswith("mlpw") and name not in grouped}
    products = parameters.block_products(kind)
    products -= sum(own - left.get(name, 0) for name, own in parameters.named_products(kind).items() if name in saves)
    fused = job.training.attention != "unfused"
    core = 0.0 if fused and "context" in saves else core_flop(job, kind, full)
    return 2.0 * tokens(job) * products + core


def _modules_flop(kind: Model, names: Collection[str]) -> float:
    """Return the forward FLOP per token of the modules `names` of a block that contain GEMMs."""
    h, factor, shared = kind.hidden, 3 if gated(kind) else 2, kind.shared_experts * (kind.shared_ffn or width(kind))
    products, experts = 0, kind.experts if kind.feed_forward else None
    if "mlp" in names and not kind.experts and kind.feed_forward:
        products += factor * h * width(kind)
    if "moe" in names and experts:
        products += factor * h * (kind.topk * width(kind) + shared) + h * experts
    elif "shared_experts" in names and experts:
        products += factor * h * shared
    if "mla_up_proj" in names and kind.mla:
        products += parameters.up_products(kind)
    return 2.0 * products


def linear_flop(job: Job) -> float:
    """Return the forward FLOP of all linears in the blocks for the whole batch."""
    own = sum(count * parameters.block_products(kind) for kind, count in layer_kinds(job.model))
    ours = 2.0 * tokens(job) * (own + job.model.mtp_layers * 2 * job.model.hidden**2)
    return ours + encoder_linear_flop(job)


def encoder_linear_flop(job: Job) -> float:
    """Return the forward FLOP of the linears of an encoder and of the decoder's cross-attention; 0 without an encoder."""
    model = job.model
    if not model.encoder_layers:
        return 0.0
    inner, keys = model.heads * head_width(model), 2 * (model.kv_heads or model.heads) * head_width(model)
    own = sum(count * parameters.block_products(kind) for kind, count in parameters.distinct(encoder_model(model)))
    own += model.layers * model.hidden * keys
    return 2.0 * (encoder_tokens(job) * own + tokens(job) * model.layers * 2 * model.hidden * inner)


def encoder_tokens(job: Job) -> int:
    """Return the number of tokens of one step that an encoder reads."""
    return job.training.global_batch * (job.training.encoder_seq or job.training.seq)


def layer_kinds(model: Model) -> list[tuple[Model, int]]:
    """Return the kinds of blocks as (kind, number of blocks), including blocks that predict further tokens."""
    further = [(parameters.kinds(model)[-1], model.mtp_layers)] if model.mtp_layers else []
    return [*parameters.distinct(model), *further]


def attention_flop(job: Job, full: bool = False) -> float:
    """Return the forward FLOP of scores and context, 4·B·s²·heads·dim per layer, half if causal unless `full`.

    For packed documents, s is the length of equal documents with the same work. If queries and values differ in width, dim is
    their mean; with a window of w < s tokens the keys are w·(1 - w/2s).
    """
    own = math.fsum(count * core_flop(job, kind, full) for kind, count in layer_kinds(job.model))
    return own + encoder_attention_flop(job)


def encoder_attention_flop(job: Job) -> float:
    """Return the forward FLOP of scores and context of an encoder and of cross-attention; 0 without an encoder."""
    model, width = job.model, job.model.heads * head_width(job.model)
    if not model.encoder_layers:
        return 0.0
    seq = job.training.encoder_seq or job.training.seq
    return 4.0 * seq * width * (encoder_tokens(job) * model.encoder_layers + tokens(job) * model.layers)


def core_flop(job: Job, kind: Model, full: bool = False) -> float:
    """Return the forward FLOP of one block's scores and context, and of an indexer's scores of all keys, for the whole batch."""
    if "attention" not in kind.mixer:
        return 0.0
    _, seq = documents(job.training)
    every = 0.5 if kind.causal and not full else 1.0
    indexed = every * 2.0 * kind.indexer.heads * kind.indexer.dim if kind.indexer else 0.0
    return tokens(job) * seq * (_seen(kind, seq, full) * 4.0 * _scores(kind) + indexed)


def _scores(kind: Model) -> float:
    """Return heads · dim, with dim the mean width of queries and values."""
    if kind.mla is None:
        return kind.heads * head_width(kind)
    return kind.heads * (kind.mla.qk_head_dim + kind.mla.qk_pos_emb_head_dim + kind.mla.v_head_dim) / 2


def _seen(kind: Model, seq: int, full: bool) -> float:
    """Return the mean share of all keys that a query sees, between 0 and 1."""
    if full:
        return 1.0
    if 0 < kind.window < seq:
        return kind.window / seq * (1 - kind.window / seq / 2)
    return 0.5 if kind.causal else 1.0


def logits_flop(job: Job) -> float:
    """Return the forward FLOP of the head over the padded vocabulary, including BERT's transform."""
    h = job.model.hidden
    return 2.0 * tokens(job) * h * (job.vocab * (1 + job.model.mtp_layers) + (h if job.model.head_transform else 0))


def tokens(job: Job) -> int:
    """Return the number of tokens of one step without padding."""
    padded = job.training.padded
    return job.training.global_batch * (padded.mean if padded else job.training.seq)
