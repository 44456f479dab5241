"""GPT-NeoX and Pythia (transformers, models/gpt_neox/configuration_gpt_neox.py)."""

from __future__ import annotations

from clustersim.convert.architectures._gpt import gpt
from clustersim.convert.hugging_face import Config

NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "ffn": "intermediate_size",
    "max_positions": "max_position_embeddings",
}
LEFT_OUT = (
    "parallel residuals: both halves of a block run one after the other",
    "rotary positions of a part of each head",
)


def model(config: Config) -> dict[str, object]:
    """Return the shapes; the head has weights of its own."""
    found = gpt(config, NAMES, "hidden_act", "gelu")
    return {**found, "positions": "rotary", "tied_embeddings": config.flag("tie_word_embeddings", False)}
