"""Llama 1 to 3 (transformers, models/llama/configuration_llama.py)."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import llama
from clustersim.convert.hugging_face import Config


def model(config: Config) -> dict[str, object]:
    """Return the shapes; `attention_bias` and `mlp_bias` stand for all linears."""
    return {**llama(config), "bias": config.flag("mlp_bias", False), "qkv_bias": config.flag("attention_bias", False)}
