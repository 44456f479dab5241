"""Mistral (transformers, models/mistral/configuration_mistral.py): Llama, whose first releases slide."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import llama, sliding
from clustersim.convert.hugging_face import Config


def model(config: Config) -> dict[str, object]:
    """Return the shapes."""
    return {**llama(config), **sliding(config, config.layers("num_hidden_layers"))}
