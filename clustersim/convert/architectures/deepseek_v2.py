"""DeepSeek-V2 (deepseek-ai/DeepSeek-V2, configuration_deepseek.py)."""

from __future__ import annotations

from clustersim.convert.architectures._deepseek import deepseek
from clustersim.convert.hugging_face import Config


def model(config: Config) -> dict[str, object]:
    """Return the shapes."""
    return deepseek(config)
