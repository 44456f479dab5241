"""The launch script of Megatron-LM for a workload: what `clustersim import megatron` reads back.

Names are those of megatron/training/arguments.py (Megatron-LM core 0.13). What a workload says and no argument can is found by
reading the script back.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from clustersim.config.workload import Workload
from clustersim.convert.megatron import ATTENTION, DISPATCHERS, POSITIONS, SCALING

Argument = tuple[str, object]
"""A name without its dashes, and its value; True: it stands alone, None or False: it is left out."""
LINE = 100
"""Letters of a line of the script at most."""
ACTIVATIONS = {"swiglu": "swiglu", "squared_relu": "squared-relu", "geglu": "quick-geglu", "gelu_new": "openai-gelu"}
"""activation → the switch that says it; Megatron's own is GELU."""
NARROW = {"mxfp8": "mxfp8", **{ours: name for name, ours in SCALING.items() if isinstance(name, str)}}
"""Precision or fp8_scaling → fp8_recipe."""


def script(spec: Workload, nodes: int, gpus: int) -> str:
    """Return the script that launches a workload on nodes of some GPUs each."""
    groups = [("MODEL", model(spec)), ("TRAINING", training(spec)), ("PARALLEL", parallelism(spec))]
    lines = ["#!/bin/bash", f"# {spec.name}, as clustersim simulated it."]
    for name, said in groups:
        lines += [f"{name}_ARGS=(", *_wrapped(said), ")"]
    launched = f"torchrun --nproc_per_node {gpus} --nnodes {nodes} pretrain_gpt.py"
    return "\n".join([*lines, " ".join([launched, *(f'"${{{name}_ARGS[@]}}"' for name, _ in groups)]), ""])


def _wrapped(said: Iterator[Argument]) -> Iterator[str]:
    line = ""
    for name, value in said:
        if value is None or value is False:
            continue
        words = f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}"
        if len(line) + len(words) > LINE:
            yield line
            line = ""
        line = f"{line} {words}" if line else f"    {words}"
    if line:
        yield line


def _reverse(ours: object, known: object) -> object:
    """Return the first of Megatron's words for one of ours."""
    return next((name for name, value in dict(known).items() if value == ours), None)  # type: ignore[call-overload]


def model(spec: Workload) -> Iterator[Argument]:
    """Yield what says the model."""
    one = spec.model
    kv, dense = one.kv_heads or one.heads, one.experts is None
    yield from (("num-layers", one.layers), ("hidden-size", one.hidden), ("num-attention-heads", one.heads))
    yield from (("group-query-attention", kv < one.heads), ("num-query-groups", kv if kv < one.heads else None))
    yield from (("kv-channels", one.head_dim), ("ffn-hidden-size", one.ffn if dense else one.dense_ffn or one.ffn))
    yield from (("vocab-size", one.vocab), ("tokenizer-type", "NullTokenizer"))
    yield "make-vocab-size-divisible-by", one.vocab_multiple
    yield "max-position-embeddings", one.max_positions or spec.training.seq
    yield "position-embedding-type", _reverse(one.positions, POSITIONS) if one.positions != "none" else "none"
    yield "normalization", {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[one.norm]
    if one.activation in ACTIVATIONS:
        yield ACTIVATIONS[one.activation], True
    yield from (("disable-bias-linear", not one.bias), ("add-qkv-bias", bool(one.qkv_bias and not one.bias)))
    yield from (("qk-layernorm", one.qk_norm), ("untie-embeddings-and-output-weights", not one.tied_embeddings))
    yield from (("hidden-dropout", 0.1 if one.dropout else 0.0), ("attention-dropout", 0.1 if one.dropout else 0.0))
    yield "mtp-num-layers", one.mtp_layers or None
    yield from _windows(spec)
    if one.mla:
        yield "multi-latent-attention", True
        yield from ((name.replace("_", "-"), value) for name, value in one.mla.model_dump().items())
    if not dense:
        yield from _experts(spec)


def _windows(spec: Workload) -> Iterator[Argument]:
    """Yield the windows of all layers, or of all but the last of each few."""
    one = spec.model
    plain = all(block.model_fields_set <= {"count", "window"} for block in one.blocks)
    widths = [block.window or 0 for block in one.blocks]
    if one.window and not one.blocks:
        yield "window-size", f"{one.window - 1},0"
    elif plain and len(widths) == 2 and widths[0] and not widths[1] and one.blocks[1].count == 1:
        yield from (("window-size", f"{widths[0] - 1},0"), ("window-attn-skip-freq", one.blocks[0].count + 1))


def _experts(spec: Workload) -> Iterator[Argument]:
    one = spec.model
    yield from (("num-experts", one.experts), ("moe-router-topk", one.topk), ("moe-ffn-hidden-size", one.ffn))
    if one.dense_layers:
        yield "moe-layer-freq", f"([0]*{one.dense_layers}+[1]*{one.layers - one.dense_layers})"
    if one.router_groups > 1:
        yield from (("moe-router-num-groups", one.router_groups), ("moe-router-group-topk", one.router_group_topk))
    if one.shared_experts:
        width = one.shared_experts * (one.shared_ffn or one.ffn or 4 * one.hidden)
        yield "moe-shared-expert-intermediate-size", width
    yield from (("moe-grouped-gemm", True), ("activation-func-clamp-value", one.activation_clamp))


def training(spec: Workload) -> Iterator[Argument]:
    """Yield what says batch, precision, attention, recomputation and optimizer."""
    one = spec.training
    yield from (("seq-length", one.seq), ("micro-batch-size", one.micro_batch), ("global-batch-size", one.global_batch))
    narrow = one.precision in ("fp8", "mxfp8", "nvfp4")
    yield from (("bf16", one.precision == "bf16" or narrow), ("fp16", one.precision == "fp16"))
    if one.precision in ("fp8", "mxfp8"):
        yield from (
            ("fp8-format", "hybrid"),
            ("fp8-recipe", NARROW.get(one.fp8_scaling if one.precision == "fp8" else "mxfp8")),
        )
    yield "fp4-format", "e2m1" if one.precision == "nvfp4" else None
    if one.bf16_first_layers or one.bf16_last_layers:
        yield "first-last-layers-bf16", True
        yield from (
            ("num-layers-at-start-in-bf16", one.bf16_first_layers),
            ("num-layers-at-end-in-bf16", one.bf16_last_layers),
        )
    yield "attention-backend", _reverse(one.attention, ATTENTION) if one.attention != "flash" else "flash"
    if one.recompute != "none":
        yield "recompute-granularity", one.recompute
        yield "recompute-modules", " ".join(one.recompute_modules) or None
        if one.recompute == "full":
            yield from (("recompute-method", one.recompute_method), ("recompute-num-layers", one.recompute_layers or 1))
    yield from (("grad-reduce-in-bf16", one.gradients == "bf16"), ("optimizer", one.optimizer))
    yield "clip-grad", 1.0 if one.clip_gradients else 0.0
    if one.cross_entropy == "fused":
        yield from (("cross-entropy-loss-fusion", True), ("cross-entropy-fusion-impl", "te"))
    yield "moe-expert-capacity-factor", one.capacity_factor
    yield "moe-pad-expert-input-to-capacity", one.pad_to_capacity
    yield from (("exp-avg-dtype", one.moments), ("exp-avg-sq-dtype", one.moments))


def parallelism(spec: Workload) -> Iterator[Argument]:
    """Yield what says the split and what overlaps."""
    one = spec.parallelism
    overlap = one.overlap
    yield from (("tensor-model-parallel-size", one.tp), ("pipeline-model-parallel-size", one.pp))
    yield "num-virtual-stages-per-pipeline-rank", one.vpp if one.vpp > 1 and not one.layout else None
    yield "pipeline-model-parallel-layout", one.layout
    yield from (
        ("decoder-first-pipeline-num-layers", one.first_layers),
        ("decoder-last-pipeline-num-layers", one.last_layers),
    )
    yield "account-for-embedding-in-pipeline-split", one.account_for_embedding
    yield "account-for-loss-in-pipeline-split", one.account_for_loss
    yield "context-parallel-size", one.cp if one.cp > 1 else None
    yield "cp-comm-type", one.cp_type if one.cp > 1 else None
    if one.cp_inner:
        yield "hierarchical-context-parallel-sizes", f"{one.cp_inner} {one.cp // one.cp_inner}"
    if spec.model.experts:
        yield from (("expert-model-parallel-size", one.ep), ("expert-tensor-parallel-size", one.expert_tp))
        yield "moe-token-dispatcher-type", _reverse(one.algorithms.ep, DISPATCHERS) or "alltoall"
        yield "moe-deepep-num-sms", overlap.sms if one.algorithms.ep == "deepep" and overlap.sms else None
    yield from (("sequence-parallel", one.sequence_parallel), ("use-distributed-optimizer", one.zero == 1))
    if one.zero > 1:
        strategy = {2: "optim_grads", 3: "optim_grads_params"}[one.zero]
        yield from (("use-megatron-fsdp", True), ("data-parallel-sharding-strategy", strategy))
    yield "num-distributed-optimizer-instances", one.optimizer_instances if one.optimizer_instances > 1 else None
    yield "ddp-bucket-size", one.bucket
    yield from (("overlap-grad-reduce", overlap.grad_reduce), ("overlap-param-gather", overlap.param_gather))
    yield "tp-comm-overlap", overlap.tp != "none"
    yield "no-overlap-p2p-communication", one.vpp > 1 and not overlap.p2p
    yield "moe-shared-expert-overlap", overlap.ep == "shared"
    yield "overlap-moe-expert-parallel-comm", overlap.ep == "microbatch" and (one.pp == 1 or one.vpp > 1)
