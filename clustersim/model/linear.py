"""Linear layers under tensor parallelism: column-parallel (outputs split) and row-parallel (inputs split).

Forward y = x·W, `dgrad` dx = dy·Wᵀ, `wgrad` dW = dyᵀ·x; the collectives are f and g of Megatron-LM (Shoeybi et al. 2019,
section 3), or ḡ and g̅ with sequence parallelism (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from clustersim.model.elementwise import copy
from clustersim.model.kernel import Kernel, gemm
from clustersim.model.operator import Collective, Operator, Output, Steps
from clustersim.model.sharding import ShardedModel


def column(
    shard: ShardedModel,
    name: str,
    inputs: int,
    outputs: int,
    *,
    bias: bool,
    saved: float = 0.0,
    chunks: bool = True,
    parts: Sequence[tuple[str, int]] = (),
) -> Operator:
    """Return a linear of `inputs` to `outputs` (this rank's) features whose input every tp rank needs whole.

    Without sequence parallelism the gradient of the input is all-reduced. With it the input is gathered forward and again
    for wgrad, and the gradient is reduce-scattered. `saved`: bytes of the output that are kept besides the input.
    `chunks`: whether the gather may run under chunks of the product. `parts`: names and columns of its outputs.
    """
    whole = (shard.tokens, inputs)
    gather = shard.exchange("all_gather", *whole) if shard.sequence_parallel else ()
    # the input gathered, and its gradient scattered
    both = (shard.tokens + shard.local) * inputs if shard.sequence_parallel else 0
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *whole)
    forward, gradient = product(shard, inputs, outputs), dgrad(shard, inputs, outputs)
    weight = wgrad(shard, inputs, outputs, bias)
    back: Steps = (*beside(shard, gather, len(gradient)), *gradient, *beside(shard, reduce, len(weight)))
    whole_kept = shard.overlap == "async" and chunks
    if whole_kept:
        back = scattered(shard, reduce, partial(dgrad, shard, inputs, outputs), inputs)
    kept = input_size(shard) * (shard.tokens if whole_kept else shard.local) * inputs
    return Operator(
        name,
        gathered(shard, gather, partial(product, shard, inputs, outputs)) if chunks else (*gather, *forward),
        back,
        weight,
        parameters=inputs * outputs + (outputs if bias else 0),
        saved=kept + saved,
        outputs=tuple(Output(part, columns, shard.size * shard.tokens * columns) for part, columns in parts),
        kept_input=kept,
        backward_alive=shard.size * (shard.tokens * (inputs + outputs) + both) + made(shard, inputs * outputs),
    )


def made(shard: ShardedModel, parameters: int) -> float:
    """Return the bytes of a weight's gradient until it is added to the main one: none where the product adds it there."""
    return shard.size * parameters if shard.eager else 0.0


def row(
    shard: ShardedModel, name: str, inputs: int, outputs: int, *, bias: bool, part: str, read: bool = True
) -> Operator:
    """Return a linear of `inputs` (this rank's) to `outputs` features whose partial sums the tp ranks add up.

    part: the name of its output; read: whether a backward pass, or what runs again before one, needs that.
    """
    whole = (shard.tokens, outputs)
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *whole)
    gather = shard.exchange("all_gather", *whole) if shard.sequence_parallel else ()
    replicated = shard.replicated(outputs) if bias else 0
    return Operator(
        name,
        scattered(shard, reduce, partial(product, shard, inputs, outputs), outputs),
        gathered(shard, gather, partial(dgrad, shard, inputs, outputs)),
        wgrad(shard, inputs, outputs, bias),
        parameters=inputs * outputs + replicated,
        replicated=replicated,
        saved=input_size(shard) * shard.tokens * inputs,
        outputs=(Output(part, outputs, shard.size * shard.local * outputs * read),),
        kept_input=input_size(shard) * shard.tokens * inputs,
        backward_alive=shard.size * shard.tokens * (inputs + outputs) + made(shard, inputs * outputs),
    )


SMS = 16
"""SMs of a collective beside a product, in bulk or under chunks of sums; rings are copy engines' work (the same file)."""
SPLITS = 4
"""Chunks of a product whose sums are scattered one by one: Transformer Engine's num_splits (common/comm_gemm_overlap)."""


def beside(shard: ShardedModel, calls: tuple[Collective, ...], kernels: int) -> tuple[Collective, ...]:
    """Return collectives under so many of the kernels that follow, if any runs under products."""
    return (
        calls if shard.overlap in ("none", "async") else tuple(call._replace(over=kernels, sms=SMS) for call in calls)
    )


def gathered(shard: ShardedModel, gather: tuple[Collective, ...], make: Callable[..., tuple[Kernel, ...]]) -> Steps:
    """Return a product of what is gathered: whole, or in chunks, the own one first, under the ring that brings the next."""
    if shard.overlap not in ("ring", "async") or not gather or shard.tokens % shard.tp:
        return (*gather, *make())
    chunk = make(rows=shard.tokens // shard.tp)
    [call] = gather
    step = call._replace(size=call.size / (shard.tp - 1), over=len(chunk))  # (t - 1) / t of it in t - 1 steps
    ring: Steps = (step, *chunk)
    return (*(ring * (shard.tp - 1)), *chunk)


def scattered(
    shard: ShardedModel, reduce: tuple[Collective, ...], make: Callable[..., tuple[Kernel, ...]], columns: int
) -> Steps:
    """Return a product of so many columns whose sums are scattered: whole, or in chunks, each under the product of the next.

    The last is exposed; of PyTorch's chunks the last is the rank's own, and the sum of all that arrived follows it
    (_fused_matmul_reduce_scatter in torch/distributed/_symmetric_memory).
    """
    if shard.overlap == "async" and reduce and not shard.tokens % shard.tp:
        own = make(rows=shard.tokens // shard.tp)
        [call] = reduce
        step = call._replace(size=call.size / (shard.tp - 1), over=len(own))
        total = copy(shard, "sum_chunks", shard.tokens // shard.tp, columns, (shard.tp + 1) * shard.size)
        sent: Steps = (step, *own)
        return (*own, *(sent * (shard.tp - 1)), total)
    if shard.overlap != "ring" or not reduce or shard.tokens % SPLITS:
        return (*make(), *reduce)
    chunk = make(rows=shard.tokens // SPLITS)
    [call] = reduce
    part = call._replace(size=call.size / SPLITS)
    under: Steps = (part._replace(over=len(chunk), sms=SMS), *chunk)
    return (*chunk, *(under * (SPLITS - 1)), part)


def input_size(shard: ShardedModel) -> float:
    """Return the bytes of one value of a linear's operands, the kept input too: narrow products keep the cast one."""
    return shard.format.size if shard.format else shard.size


def product(shard: ShardedModel, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the forward product of `rows` (default: all tokens)."""
    rows = shard.tokens if rows is None else rows
    y = gemm("linear", "forward", shard.matrix, 1, rows, outputs, inputs, output=shard.size, operand=input_size(shard))
    return (*cast(shard, rows, inputs), y)


def dgrad(shard: ShardedModel, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the gradient of the input."""
    rows = shard.tokens if rows is None else rows
    dx = gemm("linear", "dgrad", shard.matrix, 1, rows, inputs, outputs, output=shard.size, operand=input_size(shard))
    return (*cast(shard, rows, outputs), dx)


def wgrad(shard: ShardedModel, inputs: int, outputs: int, bias: bool, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the gradient of the weights, added to the main gradients in the product (fused) or afterwards (eager)."""
    rows = shard.tokens if rows is None else rows
    into = 0.0 if shard.eager or not shard.adds_gradients else shard.gradient
    shape = (outputs, inputs, rows)
    dw = gemm("linear", "wgrad", shard.matrix, 1, *shape, into, output=shard.size, operand=input_size(shard))
    extra = accumulate(shard, outputs, inputs) if shard.eager else ()
    return (dw, *extra, *(bias_gradient(shard, rows, outputs) if bias else ()))


def accumulate(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the sum of a weight's gradient into the main gradient: reads it and reads and writes that."""
    if not shard.adds_gradients:
        return ()
    return (copy(shard, "accumulate", rows, columns, shard.size + 2 * shard.gradient),)


def bias_gradient(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the sum over rows that is the gradient of a bias."""
    return (copy(shard, "bias_gradient", rows, columns, shard.size),)


def cast(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the cast of a product's operand: it is read, and written by rows and by columns (Transformer Engine).

    nvfp4 reads it twice, the first time for its largest value (pytorch/csrc/quantizer.cpp, nvte_hadamard_transform_amax).
    """
    if shard.format is None:
        return ()
    return (copy(shard, "cast", rows, columns, shard.format.reads * shard.size + 2 * shard.format.size),)
