"""Qwen1.5-MoE and Qwen2-MoE (transformers, models/qwen2_moe/configuration_qwen2_moe.py): experts, and one for all tokens."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import llama
from clustersim.convert.architectures._moe import sparse
from clustersim.convert.hugging_face import Config

LEFT_OUT = ("the gate of the shared expert, one weight a channel",)


def model(config: Config) -> dict[str, object]:
    """Return the shapes."""
    shared = {"shared_experts": 1, "shared_ffn": config.count("shared_expert_intermediate_size")}
    return {**llama(config), "qkv_bias": True, **sparse(config, "num_experts"), **shared}
