"""Qwen2 and Qwen2.5 (transformers, models/qwen2/configuration_qwen2.py): Llama with biases of queries, keys and values."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import llama, sliding
from clustersim.convert.hugging_face import Config


def model(config: Config) -> dict[str, object]:
    """Return the shapes; with use_sliding_window layers from max_window_layers on slide."""
    layers = config.layers("num_hidden_layers")
    first = config.count("max_window_layers", default=28)
    if not config.flag("use_sliding_window", False):
        return {**llama(config), "qkv_bias": True}
    found = sliding(config, layers)
    if "window" in found:
        found = {"blocks": [{"count": first}, {"count": layers - first, **found}]} if first < layers else {}
    return {**llama(config), "qkv_bias": True, **found}
