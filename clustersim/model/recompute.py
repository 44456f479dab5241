"""Recomputation: parts of blocks that run again before their backward pass, so that their activations are not saved.

The terms are Megatron's (core/transformer/transformer_config.py): granularity `full` with method `uniform` or `block` and a
number of layers, or granularity `selective` with modules. A module saves its input and reruns its forward pass. For `layernorm`,
`moe_act` and `mla_up_proj`, the output, which is the next operator's input, is dropped and recomputed (Megatron's
output-discarding checkpoints).

JAX and PyTorch rerun whole blocks except for outputs that a policy saves, by MaxText's names (layers/decoders.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import cycle, takewhile
from typing import NamedTuple

from clustersim.config.workload import Saved
from clustersim.model.attention import CORE, ROTARY
from clustersim.model.encoder import CROSS
from clustersim.model.kernel import Kernel, narrowed
from clustersim.model.lora import ADAPTER
from clustersim.model.operator import Collective, Layer, Operator, OperatorStep, Rerun, Steps
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
"""Kinds of kernels whose columns are an operator's `outputs`."""
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
"""Outputs that each policy name stands for."""
UNGROUPED = ("op",)
"""Policies by class of operator that list linears but no grouped GEMMs."""


def saved_names(saves: Sequence[Saved], *, scattered: bool) -> frozenset[str]:
    """Return the outputs that names and policies save. `scattered`: whether outputs of row-parallel linears are
    reduce-scattered."""
    found = {one for name in saves for one in POLICIES.get(name, (name,))}
    return frozenset(found | {"out_proj", "mlpwo"} if scattered and "reduce_scatter" in found else found)


class Marker:
    """Adds the recomputation to blocks. Equal blocks of several stages remain one object."""

    __slots__ = ("_made", "_saves", "_saves_grouped", "_whole_kept", "training")

    def __init__(self, shard: ShardedModel) -> None:
        self.training = shard.training
        self._saves = saved_names(shard.training.recompute_saves, scattered=shard.sequence_parallel)
        ungrouped = [name for name in shard.training.recompute_saves if name not in UNGROUPED]
        self._saves_grouped = saved_names(ungrouped, scattered=shard.sequence_parallel)
        self._whole_kept = shard.keeps_gathered
        self._made: dict[tuple[int, int], Layer] = {}

    def stage(self, blocks: Sequence[Layer]) -> list[Layer]:
        """Return the blocks of one stage with their recomputation."""
        how = self.training
        if every := how.recompute_every:
            numbered = enumerate(blocks, 1)
            return [layer if number % every else self._marked(layer, len(blocks)) for number, layer in numbered]
        count = (how.recompute_layers or len(blocks)) if how.recompute_method == "block" else len(blocks)
        different = dict(zip(map(id, blocks[:count]), blocks, strict=False))
        marked = {key: self._marked(layer, len(blocks)) for key, layer in different.items()}
        return [*map(marked.__getitem__, map(id, blocks[:count])), *blocks[count:]]

    def prediction(self, layer: Layer) -> Layer:
        """Return the block of a further prediction, recomputed unless the rule covers only the first blocks or each n-th."""
        how = self.training
        left = how.recompute_method == "block" or (how.recompute_every or 1) > 1
        return layer if left else self._marked(layer, 1)

    def _marked(self, layer: Layer, blocks: int) -> Layer:
        """Return a layer with what its backward pass recomputes, for a stage of `blocks` blocks; equal layers stay one object."""
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
            return [self._but_saved(layer) if self._saves else _whole(layer, blocks, together)]
        return _modules(how.recompute_modules or ("core_attn",), layer) if how.recompute == "selective" else []

    def _but_saved(self, layer: Layer) -> Rerun:
        """Return the recomputation of a whole block except for saved outputs."""
        ends = len(layer.operators)
        last = next((op for op in reversed(layer.operators) if any(one.name == "mlpwo" for one in op.outputs)), None)
        if last is not None and "mlpwo" in self._of(last):  # no backward pass reads tensors after the last GEMM
            ends -= sum(1 for _ in takewhile(lambda op: not op.saved, reversed(layer.operators)))
        again = ((place, tuple(self._again(op))) for place, op in enumerate(layer.operators[:ends]))
        own, whole = (
            math.fsum(one.bytes for op in layer.operators for one in op.outputs if one.name in self._of(op) & names)
            for names in (self._saves, {"out_proj", "mlpwo"})
        )
        saved = math.fsum(op.saved for op in layer.operators)
        kept = min(layer.input_bytes + own, saved)
        operators = tuple((place, steps) for place, steps in again if steps)
        return Rerun(operators, len(layer.operators) - 1, saved - kept, saved + whole - kept)

    def _of(self, op: Operator) -> frozenset[str]:
        """Return the saved outputs among those of an operator."""
        grouped = any(isinstance(step, Kernel) and step.kind == "grouped_gemm" for step in op.forward)
        return self._saves_grouped if grouped else self._saves

    def _again(self, op: Operator) -> Iterator[OperatorStep]:
        """Yield the recomputed steps of an operator: GEMMs of the columns that are not saved.

        If all are saved, only the casts and gathers of its input that backward passes read, unless those gather again.
        """
        columns = sum(one.columns for one in op.outputs)
        saves = self._of(op)
        left = sum(one.columns for one in op.outputs if one.name not in saves)
        if op.name == ROTARY and self._saves.issuperset(QKV):  # saved after the rotation
            return
        each = cycle(op.outputs)  # columns of separate linears, which a ring multiplies chunk by chunk
        for step in op.forward:
            if left < columns and isinstance(step, Kernel) and step.kind in PRODUCTS:
                if step.n < columns and next(each).name not in saves:
                    yield step
                elif step.n == columns and left:
                    yield narrowed(step, left)
            elif left or not op.outputs or (isinstance(step, Kernel) and step.op == "cast"):
                yield step
            elif isinstance(step, Collective) and self._whole_kept and (step.group, step.op) == ("tp", "all_gather"):
                yield step._replace(over=0)


def _whole(layer: Layer, blocks: int, together: int) -> Rerun:
    """Return the recomputation of a whole block. Of `together` blocks that are recomputed as one, only the first saves its
    input."""
    saved, places = math.fsum(op.saved for op in layer.operators), range(len(layer.operators))
    operators = _forward(layer.operators, places)
    inputs = -(-blocks // together) / blocks
    dropped = saved - inputs * layer.input_bytes
    return Rerun(operators, places[-1], dropped, together * saved - layer.input_bytes)


def _forward(operators: Sequence[Operator], places: range) -> tuple[tuple[int, Steps], ...]:
    return tuple((place, operators[place].forward) for place in places)


def _modules(names: Sequence[str], layer: Layer) -> list[Rerun]:
    """Return the recomputation of the modules that a block has; a module inside another is part of that one's."""
    at = {op.name: place for place, op in enumerate(layer.operators)}
    found = [one for name in MODULES if name in names for part in MODULES[name] if (one := _rerun(part, layer, at))]
    return [one for one in found if not any(_inside(one, other) for other in found)]


def _inside(one: Rerun, other: Rerun) -> bool:
    """Return whether one recomputation repeats only operators that another one repeats too."""
    return one is not other and dict(one.operators).keys() < dict(other.operators).keys()


def _rerun(module: Module, layer: Layer, at: dict[str, int]) -> Rerun | None:
    """Return the recomputation of a module before the backward pass of its last reader or its own; None if the block lacks it."""
    operators = layer.operators
    first, last = (next((at[name] for name in names if name in at), None) for names in (module.first, module.last))
    if first is None or last is None:
        return None
    own = range(first, at.get(operators[last].name + ADAPTER, last) + 1)
    again = _forward(operators, own)
    if not module.readers:
        entry = operators[first]  # a frozen linear saves no input itself, but the module starts from it
        dropped = math.fsum(operators[i].saved for i in own) - (layer.input_bytes if entry.frozen else entry.kept_input)
        return Rerun(again, last, dropped, dropped)
    reading = next(names for names in module.readers if names[0] in at)
    readers = [at[name] for each in reading for name in (each, each + ADAPTER) if name in at]
    dropped = math.fsum(operators[i].kept_input for i in readers)
    return Rerun(again, max(readers), dropped, dropped)
