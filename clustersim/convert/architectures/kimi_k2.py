"""Kimi K2 (moonshotai/Kimi-K2-Base, configuration_deepseek.py): DeepSeek-V3's blocks."""

from __future__ import annotations

from clustersim.convert.architectures._deepseek import deepseek
from clustersim.convert.hugging_face import Config


def model(config: Config) -> dict[str, object]:
    """Return the shapes."""
    return deepseek(config)
