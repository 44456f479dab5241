"""What runs again before its backward pass, so that its activations need not be kept: whole blocks, or modules of them.

The words are Megatron's (core/transformer/transformer_config.py): granularity `full` with method `uniform` or `block` and a
number of layers, or granularity `selective` with modules. A module keeps its input and runs its forward pass again; of
`layernorm`, `moe_act` and `mla_up_proj` it is the output, the input of what comes next, that is dropped and made again
(Megatron's output-discarding checkpoints).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from clustersim.config.workload import Training
from clustersim.model.attention import CORE
from clustersim.model.encoder import CROSS
from clustersim.model.operator import Layer, Operator, Rerun


class Module(NamedTuple):
    """A part of a block that can run again."""

    first: tuple[str, ...]
    """Names of the operator that it begins with: the first that a block has …"""
    last: tuple[str, ...]
    """… and of the one that it ends with."""
    readers: tuple[tuple[str, ...], ...] = ()
    """Who keeps its output as an input, if that is dropped: the first set of which a block has one. None: what the module keeps
    inside is dropped."""


MODULES: dict[str, tuple[Module, ...]] = {
    "core_attn": (Module((CORE,), (CORE,)), Module((CROSS,), (CROSS,))),
    "layernorm": (
        Module(("attention_norm",), ("attention_norm",), (("qkv",), ("q_down", "kv_down"), ("q_up", "kv_down"))),
        Module(("mlp_norm",), ("mlp_norm",), (("fc1",), ("router", "shared_fc1"))),
    ),
    "mlp": (Module(("fc1",), ("fc2",)),),
    "moe": (Module(("router",), ("unpermute", "combine")),),
    "moe_act": (Module(("experts_activation",), ("experts_activation",), (("experts_fc2",),)),),
    "mla_up_proj": (Module(("q_up",), ("keys",), ((CORE,),)),),
    "shared_experts": (Module(("shared_fc1",), ("shared_fc2",)),),
}
"""By Megatron's names."""


class Marker:
    """Says of blocks what runs again; like ones, asked for in several stages, stay one object."""

    __slots__ = ("_made", "training")

    def __init__(self, training: Training) -> None:
        self.training = training
        self._made: dict[tuple[int, int], Layer] = {}

    def stage(self, blocks: Sequence[Layer]) -> list[Layer]:
        """Return the blocks of one stage."""
        how = self.training
        count = (how.recompute_layers or len(blocks)) if how.recompute_method == "block" else len(blocks)
        return [*(self._marked(layer, len(blocks)) for layer in blocks[:count]), *blocks[count:]]

    def prediction(self, layer: Layer) -> Layer:
        """Return the block of a further prediction, which the first ones of a stage (`block`) leave out."""
        return layer if self.training.recompute_method == "block" else self._marked(layer, 1)

    def _marked(self, layer: Layer, blocks: int) -> Layer:
        together = (
            min(self.training.recompute_layers or 1, blocks) if self.training.recompute_method == "uniform" else 1
        )
        key = id(layer), blocks if together > 1 else 1
        if key not in self._made:
            self._made[key] = layer._replace(reruns=tuple(self._reruns(layer, blocks, together)))
        return self._made[key]

    def _reruns(self, layer: Layer, blocks: int, together: int) -> list[Rerun]:
        how = self.training
        if how.recompute == "full":
            return [_whole(layer, blocks, together)]
        return _modules(how.recompute_modules or ("core_attn",), layer) if how.recompute == "selective" else []


def _whole(layer: Layer, blocks: int, together: int) -> Rerun:
    """Return the second run of a whole block; of `together` that run again as one only the input of the first is kept."""
    saved, places = math.fsum(op.saved for op in layer.operators), range(len(layer.operators))
    inputs = -(-blocks // together) / blocks
    dropped = saved - inputs * layer.input_bytes
    return Rerun(places, places[-1], dropped, together * saved - layer.input_bytes)


def _modules(names: Sequence[str], layer: Layer) -> list[Rerun]:
    """Return the second runs of the modules that a block has; what lies inside another one runs with that."""
    at = {op.name: place for place, op in enumerate(layer.operators)}
    found = [
        one for name in MODULES if name in names for part in MODULES[name] if (one := _rerun(part, layer.operators, at))
    ]
    return [one for one in found if not any(_inside(one, other) for other in found)]


def _inside(one: Rerun, other: Rerun) -> bool:
    return one is not other and set(one.operators) < set(other.operators)


def _rerun(module: Module, operators: Sequence[Operator], at: dict[str, int]) -> Rerun | None:
    """Return the second run of a module, None where a block has none: before the backward pass of its last reader, or its own."""
    first, last = (next((at[name] for name in names if name in at), None) for names in (module.first, module.last))
    if first is None or last is None:
        return None
    own = range(first, last + 1)
    if not module.readers:
        dropped = math.fsum(operators[i].saved for i in own) - operators[first].kept_input
        return Rerun(own, last, dropped, dropped)
    readers = next([at[name] for name in names if name in at] for names in module.readers if names[0] in at)
    dropped = math.fsum(operators[i].kept_input for i in readers)
    return Rerun(own, max(readers), dropped, dropped)
