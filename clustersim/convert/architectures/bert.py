"""BERT (transformers, models/bert/configuration_bert.py): an encoder, norms after each half, a transforming head."""

from __future__ import annotations

from clustersim.convert.architectures._gpt import gpt
from clustersim.convert.architectures.gpt_neox import NAMES
from clustersim.convert.hugging_face import Config

LEFT_OUT = ("the embedding of segments", "the pooler")


def model(config: Config) -> dict[str, object]:
    """Return the shapes of the model with its head for masked words."""
    found = gpt(config, NAMES, "hidden_act", "gelu")
    drops = max(config.rate(name, 0.1) for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")) > 0
    return {**found, "norm_position": "post", "causal": False, "head_transform": True, "dropout": drops}
