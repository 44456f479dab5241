"""Megatron's names of arguments, and how their values read here (megatron/training/arguments.py).

An alias may stand at the top level or in any section, with hyphens or underscores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clustersim.config.yaml import Loc


def same(value: Any) -> Any:
    """Return the value as it is."""
    return value


def only(when: Any, result: Any) -> Callable[[Any], Any]:
    """Return a conversion to `result` for the value `when`; any other value leaves the default (None drops the key)."""
    return lambda value: result if value is when else None if isinstance(value, bool) else value


def inverse(value: Any) -> Any:
    """Return the opposite of a truth value."""
    return not value if isinstance(value, bool) else value


def positive(value: Any) -> Any:
    """Return whether a probability is above zero."""
    return value > 0 if isinstance(value, int | float) and not isinstance(value, bool) else value


def lower(value: Any) -> Any:
    """Return text in lower case."""
    return value.lower() if isinstance(value, str) else value


def positions(value: Any) -> Any:
    """Return this project's word for Megatron's position_embedding_type."""
    words = {"learned_absolute": "learned", "rope": "rotary"}
    return words.get(value, value) if isinstance(value, str) else value


Alias = tuple[Loc, Callable[[Any], Any]]

ALIASES: Mapping[str, Alias] = {
    "num_layers": (("model", "layers"), same),
    "hidden_size": (("model", "hidden"), same),
    "num_attention_heads": (("model", "heads"), same),
    "num_query_groups": (("model", "kv_heads"), same),
    "kv_channels": (("model", "head_dim"), same),
    "ffn_hidden_size": (("model", "ffn"), same),
    "vocab_size": (("model", "vocab"), same),
    "padded_vocab_size": (("model", "vocab"), same),
    "make_vocab_size_divisible_by": (("model", "vocab_multiple"), same),
    "max_position_embeddings": (("model", "max_positions"), same),
    "position_embedding_type": (("model", "positions"), positions),
    "normalization": (("model", "norm"), lower),
    "swiglu": (("model", "activation"), only(True, "swiglu")),
    "disable_bias_linear": (("model", "bias"), inverse),
    "add_bias_linear": (("model", "bias"), same),
    "untie_embeddings_and_output_weights": (("model", "tied_embeddings"), inverse),
    "hidden_dropout": (("model", "dropout"), positive),
    "num_experts": (("model", "experts"), same),
    "moe_router_topk": (("model", "topk"), same),
    "seq_length": (("training", "seq"), same),
    "micro_batch_size": (("training", "micro_batch"), same),
    "global_batch_size": (("training", "global_batch"), same),
    "bf16": (("training", "precision"), only(True, "bf16")),
    "fp16": (("training", "precision"), only(True, "fp16")),
    "use_flash_attn": (("training", "attention"), lambda v: {True: "flash", False: "unfused"}.get(v, v)),
    "recompute_granularity": (("training", "recompute"), same),
    "accumulate_allreduce_grads_in_fp32": (("training", "gradients"), only(True, "fp32")),
    "tensor_model_parallel_size": (("parallelism", "tp"), same),
    "pipeline_model_parallel_size": (("parallelism", "pp"), same),
    "virtual_pipeline_model_parallel_size": (("parallelism", "vpp"), same),
    "account_for_embedding_in_pipeline_split": (("parallelism", "account_for_embedding"), same),
    "account_for_loss_in_pipeline_split": (("parallelism", "account_for_loss"), same),
    "data_parallel_size": (("parallelism", "dp"), same),
    "expert_model_parallel_size": (("parallelism", "ep"), same),
    "expert_tensor_parallel_size": (("parallelism", "expert_tp"), same),
    "use_distributed_optimizer": (("parallelism", "zero"), lambda v: int(v) if isinstance(v, bool) else v),
    "ddp_bucket_size": (("parallelism", "bucket"), same),
    "overlap_grad_reduce": (("parallelism", "overlap", "grad_reduce"), same),
    "overlap_param_gather": (("parallelism", "overlap", "param_gather"), same),
    "overlap_p2p_comm": (("parallelism", "overlap", "p2p"), same),
}

REMEDIES: Mapping[str, str] = {
    "num_layers_per_virtual_pipeline_stage": "write virtual_pipeline_model_parallel_size, the chunks of a pipeline rank",
    "context_parallel_size": "leave it out, the sequence is not split over ranks of its own",
}
"""Names that have no counterpart, and what to write instead."""


def find(key: str) -> Alias | None:
    """Return where an alias belongs and how its value converts, or None when `key` is no alias."""
    return ALIASES.get(key.replace("-", "_"))
