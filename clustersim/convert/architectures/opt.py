"""OPT (transformers, models/opt/configuration_opt.py)."""

from __future__ import annotations

from clustersim.convert.architectures._gpt import gpt
from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError

NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "ffn": "ffn_dim",
}
OFFSET = 2
"""Rows of the table of positions beyond `max_position_embeddings` (OPTLearnedPositionalEmbedding)."""


def model(config: Config) -> dict[str, object]:
    """Return the shapes. Raises InputError for OPT-350m, whose embedding is narrower than its blocks."""
    found = gpt(config, NAMES, "activation_function", "relu")
    if config.count("word_embed_proj_dim", default=config.count("hidden_size")) != found["hidden"]:
        raise InputError(
            f"{config.path}: word_embed_proj_dim differs from hidden_size, which is not supported; make them equal"
        )
    if not config.flag("do_layer_norm_before", True):
        found["norm_position"] = "post"
    positions = config.count("max_position_embeddings") + OFFSET
    drops = max(config.rate(name, default) for name, default in (("dropout", 0.1), ("attention_dropout", 0.0))) > 0
    return {**found, "max_positions": positions, "dropout": drops}
