"""Llama 4 (transformers, models/llama4/configuration_llama4.py): the text model, of whose layers some have experts."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import experts, llama
from clustersim.convert.blocks import runs
from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError, shown

LEFT_OUT = ("the vision encoder", "norms of queries and keys, which have no weights")


def model(config: Config) -> dict[str, object]:
    """Return the shapes of the text model.

    Chunks of attention_chunk_size tokens count as a window of as many; the layers that no_rope_layers marks with 0 see all
    tokens, without rotary positions.
    """
    text = config.keys.get("text_config", config.keys)
    if not isinstance(text, dict):
        raise InputError(f"{config.path}: text_config is {shown(text)}; it holds the keys of the text model")
    config = config.of({**text, "model_type": "llama4"})
    layers, step = config.layers("num_hidden_layers"), config.count("interleave_moe_layer_step", default=1)
    marks = config.keys.get("no_rope_layers") or [int((i + 1) % 4 != 0) for i in range(layers)]
    if not isinstance(marks, list) or len(marks) != layers:
        raise InputError(f"{config.path}: no_rope_layers must mark each of the {layers} layers; list as many")
    window = {"window": config.count("attention_chunk_size", default=8192)}
    dense = {"experts": 0, "ffn": config.count("intermediate_size_mlp", default=16384)}
    each = [
        {**({} if (i + 1) % step == 0 else dense), **(window if marks[i] else {"positions": "none"})}
        for i in range(layers)
    ]
    found = {**llama(config), **experts(config.of({"num_experts_per_tok": 1, **config.keys}), "num_local_experts")}
    return {**found, "shared_experts": 1, "blocks": runs(each)}
