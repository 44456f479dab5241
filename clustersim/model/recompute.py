"""Recomputation: parts of blocks that repeat their forward pass before their backward pass instead of saving activations.

The terms are Megatron's (core/transformer/transformer_config.py): granularity `full` with method `uniform` or `block` and a
number of layers, or granularity `selective` with modules. A module saves its input and repeats its forward pass. For `layernorm`,
`moe_act` and `mla_up_proj`, the output, which is the next operator's input, is dropped and recomputed (Megatron's
output-discarding checkpoints).

JAX and PyTorch repeat whole blocks except for outputs that a policy saves, by MaxText's names (layers/decoders.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, takewhile
from typing import NamedTuple

from clustersim.config.workload import Saved
from clustersim.model.attention import CORE, ROTARY
from clustersim.model.encoder import CROSS
from clustersim.model.kernel import Kernel, with_columns
from clustersim.model.lora import ADAPTER
from clustersim.model.operator import Collective, Layer, Operator, OperatorStep, Recomputation, Steps
from clustersim.model.sharding import ShardedModel


class Module(NamedTuple):
    """A part of a block that can be recomputed."""

    first: tuple[str, ...]
    """Candidate names of its first operator: the first name that a block has …"""
    last: tuple[str, ...]
    """… and candidate names of its last operator."""
    readers: tuple[tuple[str, ...], ...] = ()
    """Candidate sets of operators that save its output as their input, if that is dropped: the first set with an operator of the
    block. Empty: tensors inside the module are dropped."""


MODULES: dict[str, tuple[Module, ...]] = {
    "core_attn": (Module((CORE,), (CORE,)), Module((CROSS,), (CROSS,))),
    "layernorm": (
        Module(
            ("attention_norm",),
            ("attention_norm",),
            (("qkv", "in_proj"), ("in_proj",), ("q_down", "kv_down"), ("q_up", "kv_down")),
        ),
        Module(("mlp_norm",), ("mlp_norm",), (("fc1",), ("router", "shared_fc1"))),
    ),
    "mlp": (Module(("fc1",), ("fc2",)),),
    "moe": (Module(("router",), ("unpermute", "combine")),),
    "moe_act": (Module(("experts_activation",), ("experts_activation",), (("experts_fc2",),)),),
    "mla_up_proj": (Module(("q_up",), ("keys",), ((CORE,),)),),
    "shared_experts": (Module(("shared_fc1",), ("shared_fc2",)),),
}
"""Parts of each module, by Megatron's name."""

PRODUCTS = ("linear", "grouped_gemm")
"""Kinds of kernels whose columns are the `outputs` of an operator, in order."""
QKV: tuple[Saved, ...] = ("query_proj", "key_proj", "value_proj")
DOTS: tuple[Saved, ...] = (*QKV, "out_proj")
POLICIES: dict[Saved, tuple[Saved, ...]] = {
    "qkv_proj": QKV,
    "mlpwi": ("mlpwi_0", "mlpwi_1"),
    "save_qkv_proj": QKV,
    "save_out_proj": ("out_proj",),
    "save_dot_except_mlp": DOTS,
    "save_dot_except_mlpwi": (*DOTS, "mlpwo"),
    "save_dot_with_context_except_mlp": (*DOTS, "context"),
    "minimal": (*DOTS, "mlpwi_0", "mlpwi_1", "mlpwo"),
    "minimal_with_context": (*DOTS, "context", "mlpwi_0", "mlpwi_1", "mlpwo"),
    "minimal_flash": (*DOTS, "context", "mlpwi_0", "mlpwi_1", "mlpwo"),
    # the 1st, 3rd, … of the GEMMs for queries, keys, values, output, gate, up, down, and attention or exchanges; grouped GEMMs of
    # experts are not on its list (torchtitan/distributed/activation_checkpoint.py, SelectiveAC)
    "op": ("query_proj", "value_proj", "context", "mlpwi_0", "mlpwo", "reduce_scatter", "dispatch", "combine"),
}
"""{policy: names of the outputs that it saves}"""
UNGROUPED = ("op",)
"""Policies that apply to linears but not to grouped GEMMs of experts."""


def saved_names(saves: Sequence[Saved], *, scattered: bool) -> frozenset[str]:
    """Return the names of all outputs that `saves`, names or policies, save. scattered: whether outputs of row-parallel linears
    are reduce-scattered, which policies may save."""
    names = {output for name in saves for output in POLICIES.get(name, (name,))}
    return frozenset(names | {"out_proj", "mlpwo"} if scattered and "reduce_scatter" in names else names)


class Marker:
    """Adds the recomputation to blocks. Equal blocks of several stages remain one object."""

    __slots__ = ("_cache", "_gathered", "_saves", "_saves_grouped", "training")

    def __init__(self, shard: ShardedModel) -> None:
        self.training = shard.training
        self._saves = saved_names(shard.training.recompute_saves, scattered=shard.sequence_parallel)
        ungrouped = [name for name in shard.training.recompute_saves if name not in UNGROUPED]
        self._saves_grouped = saved_names(ungrouped, scattered=shard.sequence_parallel)
        self._gathered = shard.keeps_gathered
        self._cache: dict[tuple[int, int], Layer] = {}

    def stage(self, blocks: Sequence[Layer]) -> list[Layer]:
        """Return the blocks of one stage, in order, with their recomputation."""
        training = self.training
        if every := training.recompute_every:
            numbered = enumerate(blocks, 1)
            return [layer if number % every else self._marked(layer, len(blocks)) for number, layer in numbered]
        count = (training.recompute_layers or len(blocks)) if training.recompute_method == "block" else len(blocks)
        different = dict(zip(map(id, blocks[:count]), blocks, strict=False))
        marked = {key: self._marked(layer, len(blocks)) for key, layer in different.items()}
        return [*map(marked.__getitem__, map(id, blocks[:count])), *blocks[count:]]

    def prediction(self, layer: Layer) -> Layer:
        """Return the block of a further prediction, recomputed unless the rule covers only the first blocks or each n-th."""
        training = self.training
        left = training.recompute_method == "block" or (training.recompute_every or 1) > 1
        return layer if left else self._marked(layer, 1)

    def _marked(self, layer: Layer, blocks: int) -> Layer:
        """Return a layer with its recomputations, on a stage of `blocks` blocks; equal layers stay one object."""
        together = (
            min(self.training.recompute_layers or 1, blocks) if self.training.recompute_method == "uniform" else 1
        )
        key = id(layer), blocks if together > 1 else 1
        if key not in self._cache:
            self._cache[key] = replace(layer, recomputations=tuple(self._recomputations(layer, blocks, together)))
        return self._cache[key]

    def _recomputations(self, layer: Layer, blocks: int, together: int) -> list[Recomputation]:
        training = self.training
        if training.recompute == "full":
            return [self._all_but_saved(layer) if self._saves else _full_block(layer, blocks, together)]
        if training.recompute == "selective":
            return _modules(training.recompute_modules or ("core_attn",), layer)
        return []

    def _all_but_saved(self, layer: Layer) -> Recomputation:
        """Return the recomputation of a whole block except for the outputs that names or policies save."""
        ends = len(layer.operators)
        last = next((op for op in reversed(layer.operators) if any(part.name == "mlpwo" for part in op.outputs)), None)
        # no backward pass reads tensors after the last GEMM
        if last is not None and "mlpwo" in self._saved_names(last):
            ends -= sum(1 for _ in takewhile(lambda op: not op.saved, reversed(layer.operators)))
        recomputed = ((place, tuple(self._recomputed_steps(op))) for place, op in enumerate(layer.operators[:ends]))
        outputs = [(part, self._saved_names(op)) for op in layer.operators for part in op.outputs]
        named, gathered = (
            math.fsum(part.bytes for part, saves in outputs if part.name in saves & names)
            for names in (self._saves, {"out_proj", "mlpwo"})
        )
        saved = math.fsum(op.saved for op in layer.operators)
        remaining = min(layer.input_bytes + named, saved)
        operators = tuple((place, steps) for place, steps in recomputed if steps)
        return Recomputation(operators, len(layer.operators) - 1, saved - remaining, saved + gathered - remaining)

    def _saved_names(self, op: Operator) -> frozenset[str]:
        """Return the names of outputs that are saved if `op` has them; for grouped GEMMs, some policies do not count."""
        grouped = any(isinstance(step, Kernel) and step.kind == "grouped_gemm" for step in op.forward)
        return self._saves_grouped if grouped else self._saves

    def _recomputed_steps(self, op: Operator) -> Iterator[OperatorStep]:
        """Yield the recomputed steps of an operator: GEMMs of the columns that are not saved.

        If all are saved, only the casts and gathers of its input that backward passes read, unless these repeat the gather.
        """
        columns = sum(part.columns for part in op.outputs)
        saves = self._saved_names(op)
        left = sum(part.columns for part in op.outputs if part.name not in saves)
        if op.name == ROTARY and self._saves.issuperset(QKV):  # saved after the rotation
            return
        each = cycle(op.outputs)  # columns of separate linears, which a ring multiplies chunk by chunk
        for step in op.forward:
            if left < columns and isinstance(step, Kernel) and step.kind in PRODUCTS:
                if step.n < columns and next(each).name not in saves:
                    yield step
                elif step.n == columns and left:
                    yield with_columns(step, left)
            elif left or not op.outputs or (isinstance(step, Kernel) and step.op == "cast"):
                yield step
            elif isinstance(step, Collective) and self._gathered and (step.group, step.op) == ("tp", "all_gather"):
                yield step._replace(over=0)


def _full_block(layer: Layer, blocks: int, together: int) -> Recomputation:
    """Return the recomputation of a whole block. blocks: number on the stage. together: number of successive blocks that are
    recomputed as one; only the first saves its input."""
    saved, places = math.fsum(op.saved for op in layer.operators), range(len(layer.operators))
    operators = _forward(layer.operators, places)
    inputs = -(-blocks // together) / blocks
    dropped = saved - inputs * layer.input_bytes
    return Recomputation(operators, places[-1], dropped, together * saved - layer.input_bytes)


def _forward(operators: Sequence[Operator], places: range) -> tuple[tuple[int, Steps], ...]:
    return tuple((place, operators[place].forward) for place in places)


def _modules(names: Sequence[str], layer: Layer) -> list[Recomputation]:
    """Return the recomputation of each of the modules `names` in a block, without modules that are inside another one."""
    index = {op.name: place for place, op in enumerate(layer.operators)}
    modules = [module for name in MODULES if name in names for module in MODULES[name]]
    parts = [part for module in modules if (part := _module_recomputation(module, layer, index))]
    return [part for part in parts if not any(_inside(part, other) for other in parts)]


def _inside(part: Recomputation, other: Recomputation) -> bool:
    """Return whether `other` recomputes all operators of `part`, and more."""
    return part is not other and dict(part.operators).keys() < dict(other.operators).keys()


def _module_recomputation(module: Module, layer: Layer, index: dict[str, int]) -> Recomputation | None:
    """Return the recomputation of a module, which runs before the backward pass of its last reader, or else of its last operator.
    Return None if the block lacks the module. index: {name: index} of the operators in the layer."""
    operators = layer.operators
    first, last = (
        next((index[name] for name in names if name in index), None) for names in (module.first, module.last)
    )
    if first is None or last is None:
        return None
    indices = range(first, index.get(operators[last].name + ADAPTER, last) + 1)
    recomputed = _forward(operators, indices)
    if not module.readers:
        entry = operators[first]  # a frozen linear saves no input itself, but the module starts from it
        entry_bytes = layer.input_bytes if entry.frozen else entry.saved_input
        dropped = math.fsum(operators[i].saved for i in indices) - entry_bytes
        return Recomputation(recomputed, last, dropped, dropped)
    reading = next(names for names in module.readers if names[0] in index)
    readers = [index[name] for reader in reading for name in (reader, reader + ADAPTER) if name in index]
    dropped = math.fsum(operators[i].saved_input for i in readers)
    return Recomputation(recomputed, max(readers), dropped, dropped)
