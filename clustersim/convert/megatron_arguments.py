"""The launch script of Megatron-LM for a workload: what `clustersim import megatron` reads back.

`tables/megatron.csv` has the arguments for single keys; here are those for several keys, or that Megatron-LM accepts only
together with others (megatron/training/arguments.py, `validate_args`; megatron/core/transformer/transformer_config.py;
NVIDIA/Megatron-LM d98e8a64). Keys that no argument can express are found by reading the script back.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import cycle, groupby, islice
from operator import attrgetter

from clustersim.config.workload import Workload
from clustersim.convert.conversions import SCALING
from clustersim.convert.megatron import ALIASES
from clustersim.errors import InputError

Argument = tuple[str, object]
"""(name with underscores, value). True is a flag without value; None and False leave the argument out."""
LINE = 100
"""Largest number of characters in a line of the script."""
NARROW = {"mxfp8": "mxfp8", **{ours: str(name) for name, ours in SCALING.items()}}
"""{precision or fp8_scaling: fp8_recipe}"""
BUILT: dict[str, tuple[object, ...]] = dict.fromkeys(("mamba", "delta", "conv", "indexer"), (None,))
BUILT |= {"output_gate": (False,), "head_transform": (False,), "feed_forward": (True,), "causal": (True,)}
BUILT |= {"norm_position": ("pre",), "encoder_layers": (0,)}
BUILT["activation"] = ("gelu", "gelu_new", "squared_relu", "swiglu", "geglu")
"""{key of a model: values that pretrain_gpt.py can build}"""
OF_EXPERTS = ("moe", "moe_act", "shared_experts")
"""Recomputation modules that only a model with experts has."""
OPTIMIZERS = ("adam", "sgd", "muon")
"""Optimizers that workloads and `--optimizer` share."""
PLACEHOLDERS = "--lr 1e-4 --train-iters 100 --mock-data --tokenizer-type NullTokenizer"
"""Arguments that Megatron-LM requires and that do not change the time of a step."""
RENDEZVOUS = {"NODE_RANK": "the number of this node from 0", "MASTER_ADDR": "the name of node 0"}
RENDEZVOUS["MASTER_PORT"] = "a free port there"
"""Environment variables of a launch on several nodes, with the value that the user must set."""


def script(spec: Workload, nodes: int, gpus: int, layout: str | None = None) -> str:
    """Return the bash script that launches a workload on `nodes` nodes of `gpus` GPUs each.

    layout: layers of each stage in Megatron's letters, None if Megatron-LM's own division is the same. Raises InputError if
    pretrain_gpt.py lacks an argument for the workload.
    """
    refuse_unbuildable(spec)
    groups = [("MODEL", model(spec)), ("TRAINING", training(spec)), ("PARALLEL", parallelism(spec, layout))]
    text = ["#!/bin/bash", f"# {spec.name}, as clustersim simulated it.", connections(spec)]
    text += [f': "${{{name}:?placeholder, set it to {what}}}"' for name, what in RENDEZVOUS.items() if nodes > 1]
    for name, arguments in groups:
        text += [f"{name}_ARGS=(", *_wrapped(arguments), ")"]
    text += ["PLACEHOLDER_ARGS=(  # replace learning rate, iterations, data and tokenizer by yours"]
    text += [f"    {PLACEHOLDERS}", ")"]
    rendezvous = [f'--{name.lower()} "${{{name}}}"' for name in RENDEZVOUS if nodes > 1]
    launched = ["torchrun", f"--nproc_per_node {gpus}", f"--nnodes {nodes}", *rendezvous, "pretrain_gpt.py"]
    names = [*(name for name, _ in groups), "PLACEHOLDER"]
    return "\n".join([*text, " ".join([*launched, *(f'"${{{name}_ARGS[@]}}"' for name in names)]), ""])


def refuse_unbuildable(spec: Workload) -> None:
    """Raise InputError for the first key that Megatron cannot build or refuses."""
    unknown = [f"model.{key}" for key, values in BUILT.items() if getattr(spec.model, key) not in values]
    unknown += ["training.lora"] * (spec.training.lora is not None)
    unknown += ["training.optimizer"] * (spec.training.optimizer not in OPTIMIZERS)
    if unknown:
        raise _no_argument(unknown[0])
    for key, wrong, why in refused(spec):
        if wrong:
            raise InputError(f"{key}: Megatron-LM does not start with it: {why}; change it")


def _no_argument(key: str) -> InputError:
    """Return the error for a key that no argument of pretrain_gpt.py expresses."""
    return InputError(f"{key}: pretrain_gpt.py has no argument for it; write the script by hand, or leave it out")


def refused(spec: Workload) -> Iterator[tuple[str, bool, str]]:
    """Yield (workload key, whether Megatron-LM refuses its value in this workload, reason)."""
    model, train, split = spec.model, spec.training, spec.parallelism
    why = "Megatron-FSDP updates with adam or sgd alone"
    yield "training.optimizer", split.zero > 1 and train.optimizer == "muon", why
    yield (
        "model.mtp_layers",
        model.mtp_layers > 0 and model.positions == "learned",
        "MTP needs rotary positions or none",
    )
    recomputed = train.recompute == "selective" and {"layernorm", "moe_act"} & {*train.recompute_modules}
    delayed = train.precision == "fp8" and train.fp8_scaling == "delayed"
    why = "norms and activations are not recomputed with delayed scaling"
    yield "training.recompute_modules", bool(recomputed and delayed), why
    padded = train.pad_to_capacity and split.algorithms.ep == "deepep"
    yield "training.pad_to_capacity", padded, "DeepEP sends rows without padding"
    paired = split.zero == 3 and split.overlap.ep == "microbatch"
    yield "parallelism.overlap.ep", paired, "Megatron-FSDP gathers the parameters in each pass"
    yield "parallelism.vpp", split.pp == 1 and split.vpp > 1, "one pipeline stage has no virtual ones"
    yield (
        "parallelism.expert_tp",
        bool(model.bias and model.experts and split.etp > 1),
        "experts with a bias are not cut",
    )


def connections(spec: Workload) -> str:
    """Return the line that sets the number of GPU queues: 1 keeps collectives before the kernels that they overlap."""
    split = spec.parallelism
    if split.zero > 1:
        return "unset CUDA_DEVICE_MAX_CONNECTIONS  # FSDP needs more than one"
    if _overlaps_microbatches(spec):
        return "export CUDA_DEVICE_MAX_CONNECTIONS=32  # the overlap of expert parallelism needs more than one"
    return "export CUDA_DEVICE_MAX_CONNECTIONS=1  # what tensor and context parallelism need before Blackwell"


def _overlaps_microbatches(spec: Workload) -> bool:
    """Return whether a forward pass can overlap the exchanges of another microbatch's backward pass."""
    split = spec.parallelism
    chunked = split.ep > 1 and spec.training.recompute != "full" and (split.pp == 1 or split.vpp > 1)
    return split.overlap.ep == "microbatch" and chunked


def _wrapped(arguments: Iterator[Argument]) -> Iterator[str]:
    """Yield lines of at most LINE characters with flags and values. An argument of None or False is skipped."""
    line = ""
    for name, value in arguments:
        if value is None or value is False:
            continue
        flag = f"--{name.replace('_', '-')}"
        several = value if isinstance(value, tuple) else (value,)
        words = flag if value is True else " ".join([flag, *(shlex.quote(str(item)) for item in several)])
        if len(line) + len(words) > LINE:
            yield line
            line = ""
        line = f"{line} {words}" if line else f"    {words}"
    if line:
        yield line


def _plain(spec: Workload, section: str) -> Iterator[Argument]:
    """Yield the arguments that express single keys of a section, in the order of the table."""
    for name, row in ALIASES.items():
        if row.key[0] == section and row.columns["export"] == "x":
            yield name, row.write(attrgetter(".".join(map(str, row.key)))(spec)) or None


def model(spec: Workload) -> Iterator[Argument]:
    """Yield the arguments of the model. Raises InputError for blocks that no argument describes."""
    shapes = spec.model
    yield from _plain(spec, "model")
    if shapes.kv_heads and shapes.kv_heads < shapes.heads and not shapes.mla:
        yield from (("group_query_attention", True), ("num_query_groups", shapes.kv_heads))
    yield "max_position_embeddings", max(shapes.max_positions or 0, spec.training.seq)
    yield from (
        ("hidden_dropout", 0.1 if shapes.dropout else 0.0),
        ("attention_dropout", 0.1 if shapes.dropout else 0.0),
    )
    yield "no_bias_gelu_fusion", shapes.bias and shapes.activation in ("squared_relu", "gelu_new")
    if shapes.mla:
        yield from {"multi_latent_attention": True, **shapes.mla.model_dump()}.items()
    if shapes.experts:
        yield from _experts(spec)
    yield from _layers(spec)


def _experts(spec: Workload) -> Iterator[Argument]:
    """Yield the arguments of router and shared experts."""
    model = spec.model
    yield from (
        ("moe_router_topk", model.topk),
        ("moe_router_pre_softmax", model.topk == 1),
        ("moe_grouped_gemm", True),
    )
    yield "moe_permute_fusion", spec.training.permutation == "fused"
    if model.router_groups > 1:
        yield from (("moe_router_num_groups", model.router_groups), ("moe_router_group_topk", model.router_group_topk))
    if model.shared_experts:
        width = model.shared_experts * (model.shared_ffn or model.ffn or 4 * model.hidden)
        yield "moe_shared_expert_intermediate_size", width


def _layers(spec: Workload) -> Iterator[Argument]:
    """Yield the arguments of widths, experts, windows and positions by layer. Raises InputError for other differences."""
    model = spec.model
    repeated = cycle(block for block in model.blocks for _ in range(block.count))
    blocks = list(islice(repeated, model.layers if model.blocks else 0))
    supported = {"count", "experts", "ffn", "window", "positions"}
    experts = [int(bool(model.experts if block.experts is None else block.experts)) for block in blocks]
    widths = [(kind, block.ffn or model.ffn) for kind, block in zip(experts, blocks, strict=True)]
    windows = [model.window if block.window is None else block.window for block in blocks]
    places = [block.positions or model.positions for block in blocks]
    if model.dense_layers and not blocks:
        experts = [0] * model.dense_layers + [1] * (model.layers - model.dense_layers)
        widths = [(0, model.dense_ffn or model.ffn), (1, model.ffn)]
    fits = all(block.model_fields_set <= supported and block.experts in (None, 0, model.experts) for block in blocks)
    fits = fits and len(set(widths)) <= len(set(experts))
    fits = fits and len({*windows} - {0}) <= 1 and len({*places} - {"none"}) <= 1
    if not fits or ("none" in places and model.positions != "rotary"):
        raise _no_argument("model.blocks")
    width_of = dict(widths)
    yield "ffn_hidden_size", width_of.get(0, model.ffn) or 4 * model.hidden
    yield "moe_ffn_hidden_size", (width_of.get(1, model.ffn) or 4 * model.hidden) if model.experts else None
    yield "moe_layer_freq", pattern(experts) if model.experts else None
    window = max(windows, default=model.window)
    yield "window_size", f"{window - 1},0" if window else None
    yield "window_attn_skip_freq", pattern([int(width > 0) for width in windows]) if window else None
    yield "no_rope_freq", pattern([int(place == "none") for place in places]) if "none" in places else None


def pattern(flags: Sequence[int]) -> str | None:
    """Return flags per layer in the notation of Megatron-LM's patterns, `([0]*3+[1]*1)*12`; None if all are 1."""
    if all(flags):
        return None
    count, sequence = len(flags), list(flags)
    period = next(length for length in range(1, count + 1) if sequence == sequence[:length] * (count // length))
    parts = (f"[{flag}]*{len(list(equal))}" for flag, equal in groupby(sequence[:period]))
    return f"({'+'.join(parts)})*{count // period}"


def training(spec: Workload) -> Iterator[Argument]:
    """Yield the arguments of batch, precision, attention, recomputation and optimizer."""
    train, offload = spec.training, spec.training.offload
    yield from _plain(spec, "training")
    narrow = train.precision in ("fp8", "mxfp8", "nvfp4")
    yield from (("bf16", train.precision == "bf16" or narrow), ("fp16", train.precision == "fp16"))
    if train.precision in ("fp8", "mxfp8"):
        recipe = NARROW.get(train.fp8_scaling if train.precision == "fp8" else "mxfp8")
        yield from (("fp8_format", "hybrid"), ("fp8_recipe", recipe))
    yield "fp4_format", "e2m1" if train.precision == "nvfp4" else None
    delayed = train.precision == "fp8" and train.fp8_scaling == "delayed"
    if narrow and not delayed and (train.bf16_first_layers or train.bf16_last_layers):
        yield from (("first_last_layers_bf16", True), ("num_layers_at_start_in_bf16", train.bf16_first_layers))
        yield "num_layers_at_end_in_bf16", train.bf16_last_layers
    modules = [name for name in train.recompute_modules if spec.model.experts or name not in OF_EXPERTS]
    yield "recompute_modules", tuple(modules) if train.recompute == "selective" and modules else None
    if train.recompute == "full":
        yield from (("recompute_method", train.recompute_method), ("recompute_num_layers", train.recompute_layers or 1))
    yield "clip_grad", 1.0 if train.clip_gradients else 0.0
    main = "fp16" if train.main_params == "fp16" else "fp32"
    types = {"main_params_dtype": main, "exp_avg_dtype": train.moments, "exp_avg_sq_dtype": train.moments}
    aware = spec.parallelism.zero == 1 and train.optimizer == "adam"
    if aware and (offload.optimizer_states or set(types.values()) != {"fp32"}):
        yield from {"use_precision_aware_optimizer": True, **types}.items()
        yield from (("optimizer_cpu_offload", offload.optimizer_states > 0),)
        yield "optimizer_offload_fraction", offload.optimizer_states or None
        yield "overlap_cpu_optimizer_d2h_h2d", offload.optimizer_states > 0 and offload.overlap
    if offload.activations and spec.parallelism.pp == 1 and train.recompute == "none":
        yield "cpu_offloading_num_layers", min(round(offload.activations * spec.model.layers), spec.model.layers - 1)


def parallelism(spec: Workload, layout: str | None = None) -> Iterator[Argument]:
    """Yield the arguments of the parallel degrees, the pipeline and the overlap of communication.

    layout: layers of each stage in Megatron's letters, if the workload has none and Megatron-LM would divide them differently.
    """
    split, overlap = spec.parallelism, spec.parallelism.overlap
    layout = split.layout or layout
    yield from _plain(spec, "parallelism")
    yield "pipeline_model_parallel_layout", layout
    if not layout:
        yield "num_virtual_stages_per_pipeline_rank", split.vpp if split.vpp > 1 else None
        yield "decoder_first_pipeline_num_layers", split.first_layers
        yield "decoder_last_pipeline_num_layers", split.last_layers
        yield "account_for_embedding_in_pipeline_split", split.account_for_embedding
        yield "account_for_loss_in_pipeline_split", split.account_for_loss
    yield "microbatch_group_size_per_virtual_pipeline_stage", split.schedule.partition("/")[2] or None
    yield "overlap_param_gather", overlap.param_gather and overlap.grad_reduce and split.zero > 0
    yield "tp_comm_overlap", overlap.tp == "ring" and split.sequence_parallel and split.tp > 1
    yield "no_overlap_p2p_communication", split.vpp > 1 and not overlap.p2p and split.pp > 2
    yield "cp_comm_type", split.cp_type if split.cp > 1 else None
    if split.cp_inner:
        yield "hierarchical_context_parallel_sizes", (split.cp_inner, split.cp // split.cp_inner)
    if spec.model.experts:
        backend = split.algorithms.ep if split.algorithms.ep in ("deepep", "hybridep") else None
        sms = overlap.sms if backend and isinstance(overlap.sms, int) else 0
        yield "moe_token_dispatcher_type", "flex" if backend else "alltoall"
        yield from (("moe_flex_dispatcher_backend", backend), ("moe_flex_dispatcher_num_sms", sms or None))
        yield "overlap_moe_expert_parallel_comm", _overlaps_microbatches(spec)
    if split.zero > 1:
        strategy = {2: "optim_grads", 3: "optim_grads_params"}[split.zero]
        yield from (("use_megatron_fsdp", True), ("data_parallel_sharding_strategy", strategy))
        yield "ckpt_format", "fsdp_dtensor"
