"""Mixtral (transformers, models/mixtral/configuration_mixtral.py): Mistral with experts in every layer."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import experts, llama, sliding
from clustersim.convert.hugging_face import Config


def model(config: Config) -> dict[str, object]:
    """Return the shapes."""
    return {
        **llama(config),
        **experts(config, "num_local_experts"),
        **sliding(config, config.layers("num_hidden_layers")),
    }
