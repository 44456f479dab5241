"""Nemotron-4 and Minitron (transformers, models/nemotron/configuration_nemotron.py): LayerNorm, squared ReLU without a gate."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import PLAIN, llama
from clustersim.convert.hugging_face import Config


def model(config: Config) -> dict[str, object]:
    """Return the shapes."""
    activation = PLAIN[config.choice("hidden_act", tuple(PLAIN), "relu2")]
    return {**llama(config.of({**config.keys, "hidden_act": "silu"})), "norm": "layernorm", "activation": activation}
