"""Switch Transformers (transformers, models/switch_transformers): T5 with one of many experts for a token in every n-th block."""

from __future__ import annotations

from clustersim.convert.architectures import t5
from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError

LEFT_OUT = t5.LEFT_OUT


def model(config: Config) -> dict[str, object]:
    """Return the shapes. Raises InputError where encoder and decoder have experts in different blocks."""
    step = config.count("encoder_sparse_step", default=2)
    if step != config.count("decoder_sparse_step", default=2):
        raise InputError(f"{config.path}: encoder_sparse_step and decoder_sparse_step differ; make them equal")
    dense = {"count": step - 1, "experts": 0} if step > 1 else None
    experts = {"experts": config.count("num_experts"), "topk": 1}
    blocks = {"blocks": [dense, {}]} if dense else {}
    return {**t5.model(config), **experts, **blocks, "dropout": config.rate("dropout_rate", 0.1) > 0}
