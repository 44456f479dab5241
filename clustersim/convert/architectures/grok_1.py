"""Grok-1 (xai-org/grok-1, run.py; hpcai-tech/grok-1, configuration_grok_1.py): norms before and after each half, GeGLU."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import experts, llama
from clustersim.convert.hugging_face import Config


def model(config: Config) -> dict[str, object]:
    """Return the shapes."""
    found = {**llama(config.of({"hidden_act": "gelu", **config.keys})), **experts(config, "num_experts")}
    return {**found, "norm_position": "both", "tied_embeddings": config.flag("tie_word_embeddings", True)}
