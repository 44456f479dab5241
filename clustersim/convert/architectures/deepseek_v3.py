"""DeepSeek-V3 and R1 (transformers, models/deepseek_v3/configuration_deepseek_v3.py)."""

from __future__ import annotations

from clustersim.convert.architectures._deepseek import deepseek
from clustersim.convert.hugging_face import Config


def model(config: Config) -> dict[str, object]:
    """Return the shapes, with the further predictions that num_nextn_predict_layers counts."""
    return {**deepseek(config), "mtp_layers": config.index("num_nextn_predict_layers", 0)}
