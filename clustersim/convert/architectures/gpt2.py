"""GPT-2, and GPT-3 by its shapes (transformers, models/gpt2/configuration_gpt2.py)."""

from __future__ import annotations

from clustersim.convert.architectures._gpt import gpt
from clustersim.convert.hugging_face import Config

NAMES = {"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "vocab": "vocab_size"}


def model(config: Config) -> dict[str, object]:
    """Return the shapes."""
    found = gpt(config, NAMES, "activation_function", "gelu_new")
    width = config.count("n_inner", default=4 * config.count("n_embd"))
    drops = max(config.rate(name, 0.1) for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop")) > 0
    return {**found, "ffn": width, "max_positions": config.count("n_positions", "n_ctx"), "dropout": drops}
