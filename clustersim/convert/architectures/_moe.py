"""Which layers of Qwen's mixtures have experts, and how wide those are."""

from __future__ import annotations

from clustersim.convert.architectures._decoder import experts
from clustersim.convert.blocks import runs
from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError, shown


def sparse(config: Config, *names: str) -> dict[str, object]:
    """Return the experts of every decoder_sparse_step-th layer that mlp_only_layers does not name; the others have one MLP."""
    layers, step = config.layers("num_hidden_layers"), config.count("decoder_sparse_step", default=1)
    dense = config.keys.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(one, int) for one in dense):
        raise InputError(f"{config.path}: mlp_only_layers is {shown(dense)}; it is a list of numbers of layers")
    flags = [(layer + 1) % step == 0 and layer not in dense for layer in range(layers)]
    wide: dict[str, object] = {"experts": 0, "ffn": config.count("intermediate_size")}
    blocks = {} if all(flags) else {"blocks": runs([{} if flag else wide for flag in flags])}
    return {**experts(config, *names), "ffn": config.count("moe_intermediate_size"), **blocks}
