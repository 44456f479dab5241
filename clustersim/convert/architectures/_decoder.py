"""What configs of decoders have in common: Llama's keys, and which layers slide."""

from __future__ import annotations

from clustersim.convert.blocks import runs
from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError

GATED = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_new": "geglu", "gelu_pytorch_tanh": "geglu"}
PLAIN = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_fast": "gelu", "relu": "relu", "relu2": "squared_relu"}
"""hidden_act → activation, with a gate beside the first linear and without."""


def llama(config: Config) -> dict[str, object]:
    """Return the shapes of a decoder with RMSNorm, SwiGLU, rotary positions and no biases, from Llama's keys."""
    heads = config.count("num_attention_heads")
    return {
        "layers": config.layers("num_hidden_layers"),
        "hidden": config.count("hidden_size"),
        "heads": heads,
        "kv_heads": config.count("num_key_value_heads", default=heads),
        **optional(config, "head_dim", "head_dim"),
        "ffn": config.count("intermediate_size"),
        "vocab": config.count("vocab_size"),
        **optional(config, "max_positions", "max_position_embeddings"),
        "norm": "rmsnorm",
        "activation": GATED[config.choice("hidden_act", tuple(GATED), "silu")],
        "positions": "rotary",
        "bias": False,
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def optional(config: Config, key: str, name: str) -> dict[str, int]:
    """Return {key: number} where a config has it."""
    return {} if config.keys.get(name) is None else {key: config.count(name)}


def experts(config: Config, *names: str) -> dict[str, int]:
    """Return experts and how many of them a token visits."""
    return {"experts": config.count(*names), "topk": config.count("num_experts_per_tok", default=2)}


def sliding(config: Config, layers: int) -> dict[str, object]:
    """Return the windows of layers: `layer_types` says which slide, else all do where sliding_window is set."""
    width, kinds = config.keys.get("sliding_window"), config.keys.get("layer_types")
    if width is None or not config.flag("use_sliding_window", True):
        return {}
    width = config.count("sliding_window")
    if kinds is None:
        return {"window": width}
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise InputError(f"{config.path}: layer_types must name each of the {layers} layers; list as many")
    flags = [config.of({"layer_types": kind}).choice("layer_types", TYPES, TYPES[0]) == TYPES[1] for kind in kinds]
    return {"blocks": runs([{"window": width} if flag else {} for flag in flags])} if any(flags) else {}


TYPES = ("full_attention", "sliding_attention")
