"""What GPT-like configs have in common: LayerNorm, biases, no gate."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import PLAIN
from clustersim.convert.hugging_face import Config


def gpt(config: Config, names: dict[str, str], activation: str, default: str) -> dict[str, object]:
    """Return the shapes; names: this project's keys → those of the config; activation: the key that names it."""
    found: dict[str, object] = {key: config.count(name) for key, name in names.items() if key != "layers"}
    return {
        "layers": config.layers(names["layers"]),
        **found,
        "activation": PLAIN[config.choice(activation, tuple(PLAIN), default)],
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }
