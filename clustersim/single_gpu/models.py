"""A model's config.json → its graph, by our own path: neither transformers nor torch is needed."""

from __future__ import annotations

from collections.abc import Callable

from clustersim.convert.hugging_face import Config
from clustersim.errors import InputError, suggest
from clustersim.single_gpu import bert, gpt2, opt, switch
from clustersim.single_gpu.model import Graph
from clustersim.single_gpu.tape import Tape

BUILDERS: dict[str, Callable[[Tape, Config, int, int], None]] = {
    "gpt2": gpt2.build,
    "bert": bert.build,
    "opt": opt.build,
    "switch_transformers": switch.build,
}
"""By `model_type`."""


def build(config: Config, batch: int, seq: int, dtype: str = "fp32", training: bool = False) -> Graph:
    """Return the graph of a config.json for `batch` sequences of `seq` tokens.

    In training: forward, loss, backward, and the sum of each weight's gradient into the one that is there; no optimizer.
    Raises InputError for a model_type without a builder and for shapes that make no sense.
    """
    if config.kind not in BUILDERS:
        raise InputError(f"{config.path}: model_type {config.kind!r} is not built in; {suggest(config.kind, BUILDERS)}")
    tape = Tape(dtype, training)
    BUILDERS[config.kind](tape, config, batch, seq)
    if training and tape.phase == "forward":
        raise InputError(
            f"{config.path}: has no loss to train on; name one with a head in architectures, or predict inference"
        )
    return tape.graph(config.kind)
