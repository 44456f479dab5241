"""Megatron's names of arguments, and how their values read here (megatron/training/arguments.py).

An alias may stand at the top level or in any section, with hyphens or underscores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clustersim.config.yaml import Loc
from clustersim.convert.megatron_groups import LONGEST


def same(value: object) -> object:
    """Return the value as it is."""
    return value


def only(when: object, result: object) -> Callable[[object], object]:
    """Return a conversion to `result` for the value `when`; any other value leaves the default (None drops the key)."""
    return lambda value: result if value is when else None if isinstance(value, bool) else value


def inverse(value: object) -> object:
    """Return the opposite of a truth value."""
    return not value if isinstance(value, bool) else value


def positive(value: object) -> object:
    """Return whether a probability is above zero."""
    return value > 0 if isinstance(value, int | float) and not isinstance(value, bool) else value


def lower(value: object) -> object:
    """Return text in lower case."""
    return value.lower() if isinstance(value, str) else value


def words(ours: Mapping[str | bool, object]) -> Callable[[object], object]:
    """Return a conversion of Megatron's words to these; any other value stays as it is, for validation to judge."""
    return lambda value: ours.get(value, value) if isinstance(value, str | bool) else value


POSITIONS: Mapping[str | bool, str] = {
    "learned_absolute": "learned", "rope": "rotary", "yarn": "rotary", "mrope": "rotary", "alibi": "none",
}  # fmt: skip
"""Of position_embedding_type."""
ATTENTION: Mapping[str | bool, str] = {
    "auto": "flash", "flash": "flash", "fused": "flash", "unfused": "unfused", "local": "unfused",
}  # fmt: skip
"""Of attention_backend."""
DISPATCHERS: Mapping[str | bool, str | None] = {
    "flex": "deepep", "alltoall": None, "alltoall_seq": None, "allgather": None,
}  # fmt: skip
"""Of moe_token_dispatcher_type: flex is DeepEP, or HybridEP, which sends as much."""


def fp8(value: object) -> object:
    """Return the data type for Megatron's fp8 format (`hybrid` or `e4m3`, both of which multiply in fp8)."""
    return "fp8" if value in ("hybrid", "e4m3", True) else None if value is False else value


SCALING: Mapping[object, str] = {"delayed": "delayed", "tensorwise": "current", "blockwise": "block"}
"""Of fp8_recipe, where plain fp8 has its scales from."""


def fp8_recipe(value: object) -> object:
    """Return the keys of Megatron's fp8 recipe: a data type, or where plain fp8 has its scales from."""
    scaling = SCALING.get(value) if isinstance(value, str) else None
    return {"precision": "fp8", "fp8_scaling": scaling} if scaling else {"precision": value}


def fp4(value: object) -> object:
    """Return the data type for Megatron's fp4 format, whose only recipe is NVFP4BlockScaling (core/fp4_utils.py)."""
    return "nvfp4" if value in ("e2m1", True) else None if value is False else value


def shared_expert(value: object) -> object:
    """Return the keys of one shared expert of that width; None for none."""
    return {"shared_experts": 1, "shared_ffn": value} if value else None


def real(value: object) -> object:
    """Return a whole number as a real one, None for one below zero, which Megatron takes for none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if value > 0 else None
    return value


def or_none(value: object) -> object:
    """Return the value, None for 0."""
    return value or None


def partition(value: object) -> object:
    """Return the keys of BigScience's division of layers, which counts the embedding and the head where it names them."""
    ends = isinstance(value, str) and "embedding" in value
    return {"account_for_embedding": True, "account_for_loss": True} if ends else None


def several(value: object) -> object:
    """Return a list of one for a single word."""
    return [value] if isinstance(value, str) else value


def ulysses(value: object) -> object:
    """Return the keys of DeepSpeed's sequence parallelism among so many ranks, which exchange heads for tokens."""
    return {"cp": value, "cp_type": "a2a"} if value != 1 else None


def context(value: object) -> object:
    """Return how context-parallel ranks see the whole sequence, of which Megatron takes one for all layers or one for each."""
    return value[0] if isinstance(value, list) and len(set(map(str, value))) == 1 else value


def inner(value: object) -> object:
    """Return the first of the two sizes of hierarchical context parallelism."""
    return value[0] if isinstance(value, list) and len(value) == 2 else value


Alias = tuple[Loc, Callable[[object], object]]

ALIASES: Mapping[str, Alias] = {
    "num_layers": (("model", "layers"), same),
    "hidden_size": (("model", "hidden"), same),
    "num_attention_heads": (("model", "heads"), same),
    "num_query_groups": (("model", "kv_heads"), same),
    "num_key_value_heads": (("model", "kv_heads"), same),
    "kv_channels": (("model", "head_dim"), same),
    "ffn_hidden_size": (("model", "ffn"), same),
    "vocab_size": (("model", "vocab"), same),
    "padded_vocab_size": (("model", "vocab"), same),
    "pad_vocab_size_to": (("model", "vocab"), same),
    "make_vocab_size_divisible_by": (("model", "vocab_multiple"), same),
    "max_position_embeddings": (("model", "max_positions"), same),
    "position_embedding_type": (("model", "positions"), words(POSITIONS)),
    "normalization": (("model", "norm"), lower),
    "swiglu": (("model", "activation"), only(True, "swiglu")),
    "disable_bias_linear": (("model", "bias"), inverse),
    "add_bias_linear": (("model", "bias"), same),
    "untie_embeddings_and_output_weights": (("model", "tied_embeddings"), inverse),
    "hidden_dropout": (("model", "dropout"), positive),
    "openai_gelu": (("model", "activation"), only(True, "gelu_new")),
    "use_rotary_position_embeddings": (("model", "positions"), only(True, "rotary")),
    "encoder_num_layers": (("model", "layers"), same),
    "num_experts": (("model", "experts"), same),
    "num_moe_experts": (("model", "experts"), same),
    "moe_ffn_hidden_size": (("model", "ffn"), same),
    "moe_router_topk": (("model", "topk"), same),
    "moe_router_num_groups": (("model", "router_groups"), same),
    "moe_router_group_topk": (("model", "router_group_topk"), same),
    "moe_token_dispatcher_type": (("parallelism", "algorithms", "ep"), words(DISPATCHERS)),
    "moe_deepep_num_sms": (("parallelism", "overlap", "sms"), same),
    "moe_expert_capacity_factor": (("training", "capacity_factor"), real),
    "moe_train_capacity_factor": (("training", "capacity_factor"), real),
    "moe_pad_expert_input_to_capacity": (("training", "pad_to_capacity"), same),
    "moe_shared_expert_intermediate_size": (("model",), shared_expert),
    "mtp_num_layers": (("model", "mtp_layers"), or_none),
    "glu_activation": (("model", "activation"), same),
    "activation_func_clamp_value": (("model", "activation_clamp"), same),
    "squared_relu": (("model", "activation"), only(True, "squared_relu")),
    "qk_layernorm": (("model", "qk_norm"), same),
    "add_qkv_bias": (("model", "qkv_bias"), only(True, True)),
    "seq_length": (("training", "seq"), same),
    "encoder_seq_length": (("training", "seq"), same),
    "micro_batch_size": (("training", "micro_batch"), same),
    "global_batch_size": (("training", "global_batch"), same),
    "bf16": (("training", "precision"), only(True, "bf16")),
    "fp16": (("training", "precision"), only(True, "fp16")),
    "fp8": (("training", "precision"), fp8),
    "fp8_format": (("training", "precision"), fp8),
    "fp8_recipe": (("training",), fp8_recipe),
    "fp4": (("training", "precision"), fp4),
    "fp4_format": (("training", "precision"), fp4),
    "fp4_recipe": (("training", "precision"), same),
    "attention_backend": (("training", "attention"), words(ATTENTION)),
    "optimizer": (("training", "optimizer"), lower),
    "check_for_nan_in_loss_and_grad": (("training", "check_nan"), same),
    "no_check_for_nan_in_loss_and_grad": (("training", "check_nan"), inverse),
    "clip_grad": (("training", "clip_gradients"), positive),
    "cross_entropy_fusion_impl": (
        ("training", "cross_entropy"),
        words({"te": "fused", "native": "parallel"}),
    ),
    "apply_rope_fusion": (("training", "rope_kernels"), words({True: "fused", False: "eager"})),
    "no_rope_fusion": (("training", "rope_kernels"), only(True, "eager")),
    "gradient_accumulation_fusion": (("training", "fused_accumulation"), same),
    "no_gradient_accumulation_fusion": (("training", "fused_accumulation"), inverse),
    "use_flash_attn": (("training", "attention"), words({True: "flash", False: "unfused"})),
    "use_flash_attn_v1": (("training", "attention"), only(True, "flash1")),
    "use_flash_attn_v2": (("training", "attention"), only(True, "flash2")),
    "use_flash_attn_triton": (("training", "attention"), only(True, "triton")),
    "recompute_granularity": (("training", "recompute"), same),
    "recompute_activations": (("training", "recompute"), only(True, "selective")),
    "recompute_modules": (("training", "recompute_modules"), several),
    "recompute_method": (("training", "recompute_method"), same),
    "recompute_num_layers": (("training", "recompute_layers"), same),
    "checkpoint_activations": (("training", "recompute"), only(True, "full")),
    "activations_checkpoint_method": (("training", "recompute"), lambda v: "full" if isinstance(v, str) else v),
    "grad_reduce_in_bf16": (("training", "gradients"), only(True, "bf16")),
    "main_grads_dtype": (("training", "gradients"), same),
    "exp_avg_dtype": (("training", "moments"), same),
    "exp_avg_sq_dtype": (("training", "moments"), same),
    "megatron_fsdp_grad_comm_dtype": (("training", "gradients"), lambda v: None if v == "auto" else v),
    "accumulate_allreduce_grads_in_fp32": (("training", "gradients"), only(True, "fp32")),
    "tensor_model_parallel_size": (("parallelism", "tp"), same),
    "pipeline_model_parallel_size": (("parallelism", "pp"), same),
    "virtual_pipeline_model_parallel_size": (("parallelism", "vpp"), same),
    "pp_partition_method": (("parallelism",), partition),
    "account_for_embedding_in_pipeline_split": (("parallelism", "account_for_embedding"), same),
    "account_for_loss_in_pipeline_split": (("parallelism", "account_for_loss"), same),
    "num_virtual_stages_per_pipeline_rank": (("parallelism", "vpp"), same),
    "pipeline_model_parallel_layout": (("parallelism", "layout"), same),
    "decoder_first_pipeline_num_layers": (("parallelism", "first_layers"), same),
    "decoder_last_pipeline_num_layers": (("parallelism", "last_layers"), same),
    "num_layers_in_first_pipeline_stage": (("parallelism", "first_layers"), same),
    "num_layers_in_last_pipeline_stage": (("parallelism", "last_layers"), same),
    "sequence_parallel": (("parallelism", "sequence_parallel"), same),
    "scatter_gather_tensors_in_pipeline": (("parallelism", "scatter_gather"), same),
    "no_scatter_gather_tensors_in_pipeline": (("parallelism", "scatter_gather"), inverse),
    "data_parallel_size": (("parallelism", "dp"), same),
    "expert_model_parallel_size": (("parallelism", "ep"), same),
    "expert_tensor_parallel_size": (("parallelism", "expert_tp"), same),
    "moe_expert_parallel_size": (("parallelism", "ep"), same),
    "use_distributed_optimizer": (("parallelism", "zero"), lambda v: int(v) if isinstance(v, bool) else v),
    "zero_stage": (("parallelism", "zero"), same),
    "num_distributed_optimizer_instances": (("parallelism", "optimizer_instances"), same),
    "context_parallel_size": (("parallelism", "cp"), same),
    "cp_comm_type": (("parallelism", "cp_type"), context),
    "ds_sequence_parallel_size": (("parallelism",), ulysses),
    "hierarchical_context_parallel_sizes": (("parallelism", "cp_inner"), inner),
    "use_torch_fsdp2": (("parallelism", "zero"), only(True, 3)),
    "ddp_bucket_size": (("parallelism", "bucket"), same),
    "overlap_grad_reduce": (("parallelism", "overlap", "grad_reduce"), same),
    "overlap_param_gather": (("parallelism", "overlap", "param_gather"), same),
    "overlap_p2p_comm": (("parallelism", "overlap", "p2p"), same),
    "overlap_p2p_communication": (("parallelism", "overlap", "p2p"), same),
    "tp_comm_overlap": (("parallelism", "overlap", "tp"), only(True, "ring")),
    "moe_shared_expert_overlap": (("parallelism", "overlap", "ep"), only(True, "shared")),
    "overlap_moe_expert_parallel_comm": (("parallelism", "overlap", "ep"), only(True, "microbatch")),
    "no_overlap_p2p_communication": (("parallelism", "overlap", "p2p"), inverse),
}

REMEDIES: Mapping[str, str] = {
    "num_layers_per_virtual_pipeline_stage": "write virtual_pipeline_model_parallel_size, the chunks of a pipeline rank",
    "gated_linear_unit": "write model.activation: swiglu or geglu",
    "window_size": "write model.window, the first of its numbers and one more",
    "no_position_embedding": "write position_embedding_type: none",
    "cpu_offloading": "leave it out, offloading is not modelled",
    "cpu_optimizer": "leave it out, offloading is not modelled",
    "optimizer_cpu_offload": "leave it out, offloading is not modelled",
    "fine_grained_activation_offloading": "leave it out, offloading is not modelled",
    "rampup_batch_size": "write the global_batch_size of the step that you ask about",
    "step_batch_size_schedule": "write the global_batch_size of the step that you ask about",
    "use_tp_pp_dp_mapping": "leave it out, ranks are numbered tp, ep, dp, pp",
}
"""Names that have no counterpart, and what to write instead."""

YIELDS: Mapping[str, frozenset[str]] = {
    "bf16": frozenset({"fp8", "fp8_format", "fp4", "fp4_format"}),
    "fp16": frozenset({"fp8", "fp8_format", "fp4", "fp4_format"}),
    "fp8": frozenset({"fp8_recipe"}),
    "fp8_format": frozenset({"fp8_recipe"}),
    "fp4": frozenset({"fp4_recipe"}),
    "fp4_format": frozenset({"fp4_recipe"}),
    "ffn_hidden_size": frozenset({"moe_ffn_hidden_size"}),
    "accumulate_allreduce_grads_in_fp32": frozenset({"grad_reduce_in_bf16", "main_grads_dtype"}),
    "recompute_activations": frozenset({"recompute_granularity"}),
    "use_flash_attn": frozenset({"attention_backend"}),
    "use_distributed_optimizer": frozenset({"use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp"}),
    "main_grads_dtype": frozenset({"use_megatron_fsdp"}),
    "exp_avg_sq_dtype": frozenset({"exp_avg_dtype"}),
}
"""Names that Megatron takes together with a more precise one, which decides."""


NEEDS: Mapping[str, frozenset[str]] = {
    "recompute_num_layers": frozenset({"recompute_granularity", "checkpoint_activations", "recompute"}),
    "cross_entropy_fusion_impl": frozenset({"cross_entropy_loss_fusion"}),
    "fp8_recipe": frozenset({"fp8", "fp8_format"}),
    "fp4_recipe": frozenset({"fp4", "fp4_format"}),
}
"""Names that say nothing without one of these."""


def find(key: str) -> Alias | None:
    """Return where an alias belongs and how its value converts, or None when `key` is no alias."""
    return ALIASES.get(key.replace("-", "_"))


def refused(key: str, value: object) -> str | None:
    """Return the key to write instead of a name that has no counterpart; None for other names, and where it is off."""
    remedy = REMEDIES.get(key)
    return None if remedy is None or value in (None, False, 0) else remedy


INTERVAL = 2
"""Every second layer has experts by default."""
OF_EXPERTS = (
    "num_experts",
    "topk",
    "expert_interval",
    "mlp_type",
    "moe_train_capacity_factor",
    "disable_moe_token_dropping",
)
"""Arguments that say nothing without experts."""


def translated(given: Mapping[str, object]) -> dict[str, object]:
    """Return arguments as Megatron would be given them; those of other programs as they are."""
    found = dict(given)
    if not found.get("deepspeed"):
        return found
    experts, layers = found.get("num_experts", 1), found.get("num_layers")
    if experts in (1, True):
        return {name: value for name, value in found.items() if name not in OF_EXPERTS}
    if "topk" in found:
        found["moe_router_topk"] = found.pop("topk")
    every = found.pop("expert_interval", INTERVAL)
    if isinstance(layers, int) and layers <= LONGEST and isinstance(every, int) and every > 1:
        found["moe_layer_freq"] = [int((layer + 1) % every == 0) for layer in range(layers)]
    hidden = found.get("hidden_size")
    if found.pop("mlp_type", "") == "residual" and isinstance(hidden, int):
        found["moe_shared_expert_intermediate_size"] = found.get("ffn_hidden_size", 4 * hidden)
    if not found.pop("disable_moe_token_dropping", False):
        found.setdefault("moe_train_capacity_factor", 1.0)
    return found


def implied(given: Mapping[str, object], pp: int) -> dict[str, tuple[object, str]]:
    """Return the keys of a workload that DeepSpeed has otherwise than Megatron, each with its value and why."""
    if not given.get("deepspeed"):
        return {}
    found: dict[str, tuple[object, str]] = {
        "training.attention": ("unfused", "Megatron-DeepSpeed's without --use-flash-attn")
    }
    if given.get("zero_stage") == 2 and pp == 1:
        found["parallelism.reduce_every_microbatch"] = True, "DeepSpeed's of ZeRO-2"
    if given.get("zero_stage") == 3:
        found["parallelism.zero3"] = {}, "DeepSpeed's buckets, as its zero_optimization has them by default"
    return found
