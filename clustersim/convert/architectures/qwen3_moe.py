"""Qwen3-MoE (transformers, models/qwen3_moe/configuration_qwen3_moe.py): Qwen3 with experts."""

from __future__ import annotations

from clustersim.convert.architectures import qwen3
from clustersim.convert.architectures._moe import sparse
from clustersim.convert.hugging_face import Config


def model(config: Config) -> dict[str, object]:
    """Return the shapes."""
    return {**qwen3.model(config), **sparse(config, "num_experts")}
