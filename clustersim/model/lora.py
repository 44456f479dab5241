"""Low-rank adapters on frozen linears: LoRA (Hu et al. 2021, arXiv 2106.09685), QLoRA (Dettmers et al., arXiv 2305.14314).

y = W·x + alpha/rank · B·A·x. Frozen weights have no gradients and no optimizer state, and a frozen linear saves no input. Input
gradients are computed as before, back to the first adapter. Under tensor parallelism A and B are split as in Megatron-Bridge
(067f987, peft/utils.py, ParallelLinearAdapter).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated

from clustersim.config.evidence import Declared
from clustersim.config.workload import Lora
from clustersim.model.elementwise import add, copy, pointwise
from clustersim.model.kernel import Kernel
from clustersim.model.linear import dgrad, input_size, product, wgrad
from clustersim.model.operator import Operator, OperatorStep, Steps
from clustersim.model.sharding import ShardedModel

ADAPTER = "_adapter"
"""Suffix of the names of adapters' operators."""
TARGETS = {
    "qkv": ("linear_qkv", ("linear_q", "linear_k", "linear_v")),
    "projection": ("linear_proj", ()),
    "fc1": ("linear_fc1", ("linear_fc1_gate", "linear_fc1_up")),
    "fc2": ("linear_fc2", ()),
}
"""{operator of the linear: (adapter target of all its outputs together, adapter target of each part)}"""
COLUMN = ("qkv", "fc1")
"""Names of the operators of column-parallel linears, whose whole input is on every tp rank."""
NF4: Annotated[float, Declared("B")] = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes per weight in nf4: 4 bits, an 8-bit scale per 64 weights, and an fp32 scale per 256 of those (QLoRA, section 3)."""

PACKED = {"nf4": NF4, "int8": 1.0}
"""{format: bytes per weight} of formats that are unpacked to 16 bits for the input gradient."""


def widths(lora: Lora, name: str, parts: Sequence[tuple[str, int]], separate: bool) -> tuple[int, ...]:
    """Return the output width of each adapter of the linear of operator `name`; () if it has none. parts: (name, columns) of each
    part of its output. separate: whether each part is a linear of its own."""
    joint_target, part_targets = TARGETS.get(name, ("", ()))
    columns = tuple(n for _, n in parts)
    if joint_target in lora.targets:
        return columns if separate else (sum(columns),)
    return tuple(n for target, n in zip(part_targets, columns, strict=False) if target in lora.targets)


def adapters(shard: ShardedModel, name: str, inputs: int, parts: Sequence[tuple[str, int]]) -> tuple[Operator, ...]:
    """Return (operator,) with the adapters of the linear `name` of `inputs` (this rank's) features; () if it has none.

    parts: as in `widths`.

    On a column-parallel linear the columns of A are split and A·x is gathered. On a row-parallel one A·x is summed, the columns
    of B are split, and B·A·x is gathered or exchanged for tokens. The adapters of a linear run in sequence: dropout of the input,
    A, B, product with the scale, sum with the linear's output. They save their input (after dropout, with a mask byte per value)
    and A·x. All tensors have the activations' type.
    """
    lora, shard, column = shard.lora, shard.in_activation_type, name in COLUMN
    outputs = widths(lora, name, parts, shard.separate) if lora else ()
    if not lora or not outputs:
        return ()
    forward, outer, inner = list[OperatorStep](), list[OperatorStep](), list[OperatorStep]()
    weights, parameters = list[Kernel](), 0
    tokens, z, rank, tp = shard.tokens, shard.size, lora.rank, shard.tp
    rows = tokens if column else shard.local
    masks = [copy(shard, op, tokens, inputs, 2 * z + 1) for op in ("dropout", "dropout_backward")]
    drop, restore = ([mask] if lora.dropout else [] for mask in masks)
    for columns in outputs:
        narrow, wide = (rank // tp, columns) if column else (rank, columns // tp)
        narrow_sum = shard.exchange("all_gather" if column else "all_reduce", tokens, rank)
        narrow_sum_backward = shard.exchange("all_reduce", tokens, rank)
        moved: Steps = () if column else shard.exchange("all_gather", tokens, columns)
        returned: Steps = moved if shard.sequence_parallel else ()
        if lora.a2a and shard.sequence_parallel and not column:
            moved = returned = shard.exchange("all_to_all", tokens, wide)
        scale = pointwise(shard, "mul", rows, columns, 2 * z)
        first, second = product(shard, inputs, narrow), product(shard, rank, wide)
        forward += (*drop, *first, *narrow_sum, *second, *moved, scale, add(shard, rows, columns))
        outer += (scale, *returned, *dgrad(shard, rank, wide), *narrow_sum_backward)
        inner += (*dgrad(shard, inputs, narrow), *restore, add(shard, tokens, inputs))
        if column and not shard.sequence_parallel:
            inner += shard.exchange("all_reduce", tokens, inputs)
        weights += (*wgrad(shard, rank, wide, False), *wgrad(shard, inputs, narrow, False))
        parameters += inputs * narrow + rank * wide
    values = float(tokens * inputs)
    saved_input = 0.0 if lora.dropout or previous_saves_input(shard, name) else z * values
    dropped = len(outputs) * (z + 1) * values if lora.dropout else 0.0
    return (
        Operator(
            name + ADAPTER,
            tuple(forward),
            (*outer, *inner),
            tuple(weights),
            parameters=parameters,
            saved=saved_input + dropped + len(outputs) * z * tokens * rank,
            saved_input=saved_input,
            backward_alive=z * (rows * max(outputs) + tokens * (2 * inputs + rank)),
        ),
    )


def previous_saves_input(shard: ShardedModel, name: str) -> bool:
    """Return whether the operator before the linear `name` saves that linear's input anyway. Fused attention and ReLU do, as
    their backward passes read their own output."""
    return (name == "projection" and shard.training.attention != "unfused") or (
        name.endswith("fc2") and shard.model.activation == "relu"
    )


def frozen(shard: ShardedModel, operators: Sequence[Operator], stored: bool = True) -> tuple[Operator, ...]:
    """Return operators whose weights, except adapters, are frozen; unchanged if all weights are trained. stored: whether their
    linears are stored in the format `training.lora.base`, as in blocks."""
    return tuple(_frozen(shard, op, stored) if shard.lora else op for op in operators)


def _frozen(shard: ShardedModel, op: Operator, stored: bool) -> Operator:
    """Return an operator without weight gradients, and without the saved input that only these need.

    nf4 weights are unpacked before each GEMM (bitsandbytes, autograd/_functions.py, MatMul4Bit), int8 ones before input gradients
    (MatMul8bitLt), as int8 GEMMs are 0.5 to 1.8 × as fast as 16-bit ones (arXiv 2208.07339, appendix D). fp8 weights with one
    scale per tensor are transposed for the input gradient (Transformer Engine with disable_parameter_transpose_cache, as in
    NVIDIA's MLPerf submission); with block scales they are stored row-wise and column-wise.
    """
    if not op.parameters or op.name.endswith(ADAPTER):
        return op
    shapes = [(gemm.batch, gemm.m, gemm.n, gemm.k) for gemm in op.backward_weight if gemm.op == "wgrad"]
    base, form, z = shard.lora and shard.lora.base, shard.format, shard.size
    saved_input, size = op.saved_input if shapes else 0.0, z
    still_saved = saved_input / input_size(shard) * z if previous_saves_input(shard, op.name) else 0.0
    before, before_backward = tuple[Kernel, ...](), tuple[Kernel, ...]()
    if not stored or op.name == "router" or not shapes:
        base = None
    if base in PACKED:
        size = PACKED[base]
        before = before_backward = tuple(copy(shard, "dequantize", b * m, n, size + z) for b, m, n, _ in shapes)
    if (
        base == "int8"
    ):  # each module reads its input once to int8, and int32 outputs are scaled to the activations' type
        casts = tuple(copy(shard, "cast", b * k, n, z + 1) for b, _, n, k in shapes)
        before = casts + tuple(copy(shard, "dequantize", b * k, m, 4 + z) for b, m, _, k in shapes)
    elif base and form:
        size = form.size * (2 if form.scale else 1)
        transposed = shapes if not form.scale else []
        before_backward = tuple(copy(shard, "transpose", b * m, n, 2 * form.size) for b, m, n, _ in transposed)
    return op._replace(
        forward=(*before, *op.forward),
        backward_input=(*before_backward, *op.backward_input),
        backward_weight=(),
        parameters=0,
        replicated=0,
        frozen=math.ceil(op.parameters * size / z),
        saved=op.saved - saved_input + still_saved,
        saved_input=still_saved,
    )


def without_entry_gradients(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return the operators of a model's first layer or block without the gradients that no earlier adapter needs.

    The first adapter computes only the gradient of A·x, which comes before the GEMM for the gradient of A.
    """
    place = next((i for i, op in enumerate(operators) if op.name.endswith(ADAPTER)), len(operators))
    before = [op._replace(backward_input=()) for op in operators[:place]]
    if place == len(operators):
        return tuple(before)
    first = operators[place]
    rank = min(kernel.n for kernel in first.backward_input if isinstance(kernel, Kernel) and kernel.op == "dgrad")
    left = takewhile(lambda step: not (isinstance(step, Kernel) and 0 < step.k <= rank), first.backward_input)
    return (*before, first._replace(backward_input=tuple(left)), *operators[place + 1 :])
