"""T5 and T5 v1.1 (transformers, models/t5/configuration_t5.py): an encoder and a decoder without biases."""

from __future__ import annotations

from clustersim.convert.hugging_face import Config

FORWARD = {"relu": "relu", "gated-gelu": "geglu", "gelu": "gelu", "gated-silu": "swiglu"}
LEFT_OUT = ("relative positions",)


def model(config: Config) -> dict[str, object]:
    """Return the shapes; without num_decoder_layers both have as many."""
    encoder = config.layers("num_layers")
    return {
        "layers": config.count("num_decoder_layers", default=encoder),
        "encoder_layers": encoder,
        "hidden": config.count("d_model"),
        "heads": config.count("num_heads"),
        "head_dim": config.count("d_kv"),
        "ffn": config.count("d_ff"),
        "vocab": config.count("vocab_size"),
        "norm": "rmsnorm",
        "activation": FORWARD[config.choice("feed_forward_proj", tuple(FORWARD), "relu")],
        "positions": "none",
        "bias": False,
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }
