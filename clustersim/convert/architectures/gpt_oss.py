"""GPT-OSS (transformers, models/gpt_oss/configuration_gpt_oss.py): every other layer slides, experts, biases."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import TYPES, experts, llama, sliding
from clustersim.convert.hugging_face import Config

LEFT_OUT = ("attention sinks, one number a head", "biases of experts")


def model(config: Config) -> dict[str, object]:
    """Return the shapes; without layer_types the even layers slide."""
    layers = config.layers("num_hidden_layers")
    kinds = config.keys.get("layer_types") or [TYPES[(layer + 1) % 2] for layer in range(layers)]
    windows = sliding(config.of({**config.keys, "layer_types": kinds}), layers)
    found = {"head_dim": 64, **llama(config), **experts(config, "num_local_experts"), **windows}
    return {**found, "bias": config.flag("attention_bias", True)}
