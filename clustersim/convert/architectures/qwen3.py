"""Qwen3 (transformers, models/qwen3/configuration_qwen3.py): queries and keys are normed head by head, no biases."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import llama
from clustersim.convert.hugging_face import Config


def model(config: Config) -> dict[str, object]:
    """Return the shapes; heads are 128 wide where nobody says otherwise."""
    return {"head_dim": 128, **llama(config), "qkv_bias": config.flag("attention_bias", False), "qk_norm": True}
