"""FLOP of one training step in closed form, for MFU and HFU.

A GEMM of m×k by k×n takes 2·m·n·k FLOP; the backward pass costs twice the forward pass. With B sequences of s tokens, l layers
of width h, and V rows of logits, a GPT without recomputation takes

    72·B·s·l·h²·(1 + s/(6h) + V/(12·l·h))

and with full recomputation of the blocks 96·B·s·l·h²·(1 + s/(6h) + V/(16·l·h)) (Narayanan et al., SC'21, equation 3),
both with the attention matrix counted in full. By default causal attention counts half, the work that a flash kernel does.

Functions return FLOP of all GPUs for one step of `global_batch` sequences, unless they say otherwise. With `full`, causal and
windowed attention counts in full.
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
    """Return the FLOP of one step without recomputation (the numerator of MFU). full: as in `recomputed_flop`.

    Frozen linears (`training.lora`) have no weight gradients, so they count twice the forward pass; attention and adapters count
    three times. Gradients before the first adapter do not count.
    """
    times = 2 if job.training.lora else 3
    complete = times * (linear_flop(job) + logits_flop(job)) + 3 * (attention_flop(job, full) + adapter_flop(job))
    return complete - _unneeded_flop(job, full)


def _unneeded_flop(job: Job, full: bool) -> float:
    """Return the FLOP of backward work in the first block that adapters make unnecessary; 0 without them or if all is recomputed.
    Linears before the first one with an adapter need no gradient of their input, and attention before it no backward pass."""
    lora, kind, separate = job.training.lora, parameters.kinds(job.model)[0], not job.training.fused_projections
    products, attention = 0, 0.0
    if lora is None or job.training.recompute == "full":
        return 0.0
    for linear, inputs, parts in parameters.adapted_linears(kind):
        products += inputs * sum(columns for _, columns in parts)
        attention += 2 * core_flop(job, kind, full) if linear == "projection" else 0.0
        if adapter_widths := widths(lora, linear, parts, separate):
            return 2.0 * tokens(job) * (products + len(adapter_widths) * inputs * lora.rank) + attention
    return 0.0


def adapter_flop(job: Job) -> float:
    """Return the forward FLOP of all low-rank adapters; 0 without adapters."""
    lora, separate = job.training.lora, not job.training.fused_projections
    if lora is None:
        return 0.0
    kinds = layer_kinds(job.model)
    return 2.0 * tokens(job) * sum(n * parameters.adapter_parameters(kind, lora, separate) for kind, n in kinds)


def hardware_flop(job: Job, full: bool = False) -> float:
    """Return the FLOP that one step executes, recomputation included (the numerator of HFU). full: as in `recomputed_flop`.

    As is customary, recomputation inside the backward pass of a flash kernel is not counted.
    """
    return model_flop(job, full) + recomputed_flop(job, full)


def recomputed_flop(job: Job, full: bool = False) -> float:
    """Return the FLOP of recomputed forward passes of one step on all GPUs; 0 if nothing is recomputed.

    With `recompute: selective`, these are the GEMMs and attention of the listed modules. With `recompute: full`, they are those
    of all blocks, of the first blocks of each stage, or of every n-th block, without the operators whose outputs are saved.
    full: whether causal and windowed attention counts in full.
    """
    training, token_count = job.training, tokens(job)
    if training.recompute == "none":
        return 0.0
    layers, names = parameters.kinds(job.model), set(training.recompute_modules or ("core_attn",))
    if training.recompute == "selective":
        mtp_blocks = [layers[-1]] * job.model.mtp_layers
        total = math.fsum(_modules_flop(kind, names) * token_count for kind in (*layers, *mtp_blocks))
        if job.model.encoder_layers:
            encoder = parameters.distinct_kinds(encoder_model(job.model))
            total += math.fsum(count * _modules_flop(kind, names) for kind, count in encoder) * encoder_tokens(job)
        return total + (attention_flop(job, full) if "core_attn" in names else 0.0)
    all_blocks = training.recompute_method == "uniform" and (training.recompute_every or 1) == 1
    if all_blocks and not training.recompute_saves:
        return linear_flop(job) + attention_flop(job, full) + adapter_flop(job)
    scattered = job.parallelism.sequence_parallel and job.parallelism.tp > 1
    saves = saved_names(training.recompute_saves, scattered=scattered)
    predictions = job.model.mtp_layers if all_blocks else 0
    blocks = [*_recomputed_blocks(job), *[layers[-1]] * predictions]
    mtp_projections = 2.0 * token_count * predictions * 2 * job.model.hidden**2
    return math.fsum(_but_saved_flop(job, kind, saves, full) for kind in blocks) + mtp_projections


def _recomputed_blocks(job: Job) -> Iterator[Model]:
    """Yield the shapes of each recomputed block: all blocks, the first ones of each stage, or every n-th."""
    layers, training, first = parameters.kinds(job.model), job.training, 0
    for portion in portions(job.parallelism, job.model):
        blocks, every = layers[first : first + portion.blocks], training.recompute_every or 1
        limit = training.recompute_layers if training.recompute_method == "block" else None
        yield from blocks[every - 1 :: every][:limit]
        first += portion.blocks


def _but_saved_flop(job: Job, kind: Model, saves: Collection[str], full: bool) -> float:
    """Return the forward FLOP of one block for the whole batch, without GEMMs and attention whose output is saved.

    saves: names of the saved outputs. full: as in `core_flop`.
    """
    scattered = job.parallelism.sequence_parallel and job.parallelism.tp > 1
    grouped = saved_names([name for name in job.training.recompute_saves if name not in UNGROUPED], scattered=scattered)
    routed = kind.hidden * kind.topk * width(kind) if kind.experts else 0
    named = parameters.named_products(kind)
    routed_parts = {name: routed for name in named if name.startswith("mlpw") and name not in grouped}
    products = parameters.block_products(kind)
    products -= sum(size - routed_parts.get(name, 0) for name, size in named.items() if name in saves)
    fused = job.training.attention != "unfused"
    core = 0.0 if fused and "context" in saves else core_flop(job, kind, full)
    return 2.0 * tokens(job) * products + core


def _modules_flop(kind: Model, names: Collection[str]) -> float:
    """Return the forward FLOP per token of the GEMMs of some modules of a block; attention scores are not included.

    names: modules as in `training.recompute_modules`. Modules without GEMMs count 0.
    """
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
    """Return the forward FLOP of the linears of all blocks in one step of the whole job, with `topk` routed experts per token.
    Scans, an encoder, cross-attention and further predictions are included; the output head and adapters are not."""
    block_weights = sum(count * parameters.block_products(kind) for kind, count in layer_kinds(job.model))
    decoder_flop = 2.0 * tokens(job) * (block_weights + job.model.mtp_layers * 2 * job.model.hidden**2)
    return decoder_flop + encoder_linear_flop(job)


def encoder_linear_flop(job: Job) -> float:
    """Return the forward FLOP of the linears of an encoder and of the decoder's cross-attention; 0 without an encoder."""
    model = job.model
    if not model.encoder_layers:
        return 0.0
    inner, keys = model.heads * head_width(model), 2 * (model.kv_heads or model.heads) * head_width(model)
    kinds = parameters.distinct_kinds(encoder_model(model))
    encoder_weights = sum(count * parameters.block_products(kind) for kind, count in kinds)
    encoder_weights += model.layers * model.hidden * keys
    return 2.0 * (encoder_tokens(job) * encoder_weights + tokens(job) * model.layers * 2 * model.hidden * inner)


def encoder_tokens(job: Job) -> int:
    """Return the number of tokens of one step that an encoder reads: the batch times `encoder_seq`, or `seq` if it is unset."""
    return job.training.global_batch * (job.training.encoder_seq or job.training.seq)


def layer_kinds(model: Model) -> list[tuple[Model, int]]:
    """Return (shapes, number of blocks) for each distinct kind of block, and one for the blocks that predict further tokens."""
    mtp_blocks = [(parameters.kinds(model)[-1], model.mtp_layers)] if model.mtp_layers else []
    return [*parameters.distinct_kinds(model), *mtp_blocks]


def attention_flop(job: Job, full: bool = False) -> float:
    """Return the forward FLOP of scores and context, 4·B·s²·heads·dim per layer, half of it if causal unless `full`.

    For packed documents, s is the length of equal documents with the same work. If queries and values differ in width, dim is
    their mean; with a window of w < s tokens the keys are w·(1 - w/2s).
    """
    decoder_flop = math.fsum(count * core_flop(job, kind, full) for kind, count in layer_kinds(job.model))
    return decoder_flop + encoder_attention_flop(job)


def encoder_attention_flop(job: Job) -> float:
    """Return the forward FLOP of scores and context of an encoder and of cross-attention; 0 without an encoder."""
    model, width = job.model, job.model.heads * head_width(job.model)
    if not model.encoder_layers:
        return 0.0
    seq = job.training.encoder_seq or job.training.seq
    return 4.0 * seq * width * (encoder_tokens(job) * model.encoder_layers + tokens(job) * model.layers)


def core_flop(job: Job, kind: Model, full: bool = False) -> float:
    """Return the forward FLOP of scores and context of one block for the whole batch; 0 for a block without attention. An
    indexer's scores of all keys are included. full: whether causal and windowed attention counts in full."""
    if "attention" not in kind.mixer:
        return 0.0
    _, seq = documents(job.training)
    indexed_share = 0.5 if kind.causal and not full else 1.0
    indexed = indexed_share * 2.0 * kind.indexer.heads * kind.indexer.dim if kind.indexer else 0.0
    return tokens(job) * seq * (_visible_share(kind, seq, full) * 4.0 * _scores(kind) + indexed)


def _scores(kind: Model) -> float:
    """Return heads · dim of a block, with dim the mean width of queries and values."""
    if kind.mla is None:
        return kind.heads * head_width(kind)
    return kind.heads * (kind.mla.qk_head_dim + kind.mla.qk_pos_emb_head_dim + kind.mla.v_head_dim) / 2


def _visible_share(kind: Model, seq: int, full: bool) -> float:
    """Return the mean share of the keys of a sequence of `seq` tokens that a query sees, between 0 and 1; 1 if `full`."""
    if full:
        return 1.0
    if 0 < kind.window < seq:
        return kind.window / seq * (1 - kind.window / seq / 2)
    return 0.5 if kind.causal else 1.0


def logits_flop(job: Job) -> float:
    """Return the forward FLOP of the head over the padded vocabulary, including further predictions and BERT's transform."""
    h = job.model.hidden
    return 2.0 * tokens(job) * h * (job.vocab * (1 + job.model.mtp_layers) + (h if job.model.head_transform else 0))


def tokens(job: Job) -> int:
    """Return the number of tokens of one step, without padding."""
    padded = job.training.padded
    return job.training.global_batch * (padded.mean if padded else job.training.seq)
