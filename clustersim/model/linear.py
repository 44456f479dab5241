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
    apart: bool = False,
) -> Operator:
    """Return a linear of `inputs` to `outputs` (this rank's) features whose input every tp rank needs whole.

    Without sequence parallelism the gradient of the input is all-reduced. With it the input is gathered forward and, unless it
    is kept so, again for wgrad, and the gradient is reduce-scattered. `saved`: bytes of the output that are kept besides the
    input. `chunks`: whether the gather may run under chunks of the product. `parts`: names and columns of its outputs;
    `apart`: each is a linear of its own.
    """
    whole = (shard.tokens, inputs)
    gather = gathers(shard, inputs)
    # the input gathered, and its gradient scattered
    both = (shard.tokens + shard.local) * inputs if shard.sequence_parallel else 0
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *whole)
    linears = tuple(columns for _, columns in parts) if apart else (outputs,)
    multiply, differentiate = partial(forwards, shard, inputs, linears), partial(dgrads, shard, inputs, linears)
    gradient = differentiate()
    weights = (kernel for columns in linears for kernel in wgrad(shard, inputs, columns, bias))
    weight = (*transposed(shard, inputs), *weights)
    whole_kept = shard.keeps_gathered and (chunks or shard.overlap != "async")
    again = () if whole_kept or shard.lora else gather
    under = 0 if shard.lora else len(weight)
    back: Steps = (*beside(shard, again, len(gradient)), *gradient, *beside(shard, reduce, under))
    # without gradients of weights to run beside, TE scatters by chunks (Megatron's tp_comm_overlap_rs_dgrad)
    if chunks and (shard.overlap == "async" or (shard.overlap == "ring" and shard.lora)):
        back = scattered(shard, reduce, differentiate, inputs)
    kept = input_size(shard) * (shard.tokens if whole_kept else shard.local) * inputs
    return Operator(
        name,
        (
            *early_cast(shard, shard.local, inputs),
            *(gathered(shard, gather, multiply) if chunks else (*gather, *redistributed(shard, gather), *multiply())),
        ),
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
    return shard.size * parameters if shard.accumulates_apart and not shard.lora else 0.0


def row(
    shard: ShardedModel, name: str, inputs: int, outputs: int, *, bias: bool, part: str, read: bool = True
) -> Operator:
    """Return a linear of `inputs` (this rank's) to `outputs` features whose partial sums the tp ranks add up.

    part: the name of its output; read: whether a backward pass, or what runs again before one, needs that.
    """
    whole = (shard.tokens, outputs)
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *whole)
    # scales by block differ by rows and by columns, which the gradient of the weights needs
    both = 2 if shard.format and shard.format.scale and not shard.lora else 1
    gather = gathers(shard, outputs, both)
    replicated = shard.replicated(outputs) if bias else 0
    return Operator(
        name,
        scattered(shard, reduce, partial(product, shard, inputs, outputs), outputs),
        (
            *early_cast(shard, shard.local, outputs),
            *gathered(shard, gather, partial(multiplied, shard, "dgrad", outputs, inputs)),
        ),
        (*transposed(shard, outputs), *wgrad(shard, inputs, outputs, bias)),
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


def gathers(shard: ShardedModel, columns: int, copies: int = 1) -> tuple[Collective, ...]:
    """Return the all-gather of `copies` operands of `columns` columns over the ranks that share a sequence, if they do."""
    if not shard.sequence_parallel:
        return ()
    size = shard.format.size if shard.format and shard.format.travels else shard.size
    return shard.exchange("all_gather", shard.tokens, columns, copies * size)


def beside(shard: ShardedModel, calls: tuple[Collective, ...], kernels: int) -> Steps:
    """Return collectives that overlap the `kernels` kernels after them, or exposed ones with their layout copies."""
    if shard.overlap in ("none", "async"):
        return (*calls, *redistributed(shard, calls))
    return tuple(call._replace(over=kernels, sms=SMS) for call in calls)


def redistributed(shard: ShardedModel, calls: tuple[Collective, ...]) -> tuple[Kernel, ...]:
    """Return the copies of what eager collectives gather, or before they scatter it, along the sequence: PyTorch's cut and join
    the first dimension, and a sequence is the second (torch distributed/_functional_collectives.py)."""
    if not shard.redistributes or not shard.sequence_parallel or shard.overlap != "none":
        return ()
    columns = (round(call.size / shard.tokens / shard.size) for call in calls)
    return tuple(copy(shard, "redistribute", shard.tokens, each, 2 * shard.size) for each in columns)


def gathered(shard: ShardedModel, gather: tuple[Collective, ...], make: Callable[..., tuple[Kernel, ...]]) -> Steps:
    """Return a product of what is gathered: whole, or in chunks, the own one first, under the ring that brings the next."""
    if shard.overlap not in ("ring", "async") or not gather or shard.tokens % shard.tp:
        return (*gather, *redistributed(shard, gather), *make())
    chunk = make(rows=shard.tokens // shard.tp)
    [call] = gather
    step = call._replace(size=call.size / (shard.tp - 1), over=len(chunk))  # (t - 1) / t of it in t - 1 steps
    ring: Steps = (step, *chunk)
    return (*(ring * (shard.tp - 1)), *chunk)


def scattered(
    shard: ShardedModel, reduce: tuple[Collective, ...], make: Callable[..., tuple[Kernel, ...]], columns: int
) -> Steps:
    """Return a product of `columns` columns whose sums are scattered: whole, or by chunks, each under the product of the next.

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
        return (*make(), *redistributed(shard, reduce), *reduce)
    chunk = make(rows=shard.tokens // SPLITS)
    [call] = reduce
    part = call._replace(size=call.size / SPLITS)
    under: Steps = (part._replace(over=len(chunk), sms=SMS), *chunk)
    return (*chunk, *(under * (SPLITS - 1)), part)


def input_size(shard: ShardedModel) -> float:
    """Return the bytes of one value of a linear's operands, the kept input too: narrow products keep the cast one."""
    return shard.format.size if shard.format else shard.size


def product(shard: ShardedModel, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the forward product of `rows` (default: all tokens) that the rank has whole."""
    rows = shard.tokens if rows is None else rows
    return (*early_cast(shard, rows, inputs), *multiplied(shard, "forward", inputs, outputs, rows))


def dgrad(shard: ShardedModel, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the gradient of the input."""
    rows = shard.tokens if rows is None else rows
    return (*early_cast(shard, rows, outputs), *multiplied(shard, "dgrad", outputs, inputs, rows))


def forwards(shard: ShardedModel, inputs: int, linears: Sequence[int], rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the products of one operand, cast once, with linears of these output widths."""
    first, *others = (multiplied(shard, "forward", inputs, columns, rows) for columns in linears)
    return (*first, *(one[-1] for one in others))


def dgrads(shard: ShardedModel, inputs: int, linears: Sequence[int], rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the gradient of the input that linears of these output widths share: the sum of theirs."""
    rows, n = shard.tokens if rows is None else rows, len(linears)
    each = (kernel for columns in linears for kernel in dgrad(shard, inputs, columns, rows))
    return (*each, *((copy(shard, "sum_gradients", rows, inputs, (n + 1) * shard.size),) if n > 1 else ()))


def multiplied(shard: ShardedModel, op: str, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return a product, `forward` or `dgrad`, of `rows` (default: all tokens) of `inputs` columns, cast here if not before."""
    rows, form = shard.tokens if rows is None else rows, shard.format
    late = cast(shard, rows, inputs) if form and not form.travels else ()
    late = (*late, *recast(shard, inputs, outputs))
    y = gemm("linear", op, shard.matrix, 1, rows, outputs, inputs, output=shard.size, operand=input_size(shard))
    return (*late, y, *(rescaled(shard, rows, outputs) if op == "dgrad" else ()))


def wgrad(shard: ShardedModel, inputs: int, outputs: int, bias: bool, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the gradient of the weights, added to the main gradients in the product or afterwards."""
    rows = shard.tokens if rows is None else rows
    into = 0.0 if shard.accumulates_apart or not shard.adds_gradients else shard.gradient
    shape = (outputs, inputs, rows)
    dw = gemm("linear", "wgrad", shard.matrix, 1, *shape, into, output=shard.size, operand=input_size(shard))
    added = accumulate(shard, outputs, inputs) if shard.accumulates_apart else ()
    summed = (copy(shard, "bias_gradient", rows, outputs, shard.size),) if bias else ()
    return (dw, *rescaled(shard, outputs, inputs), *added, *summed)


def accumulate(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the sum of a weight's gradient into the main gradient: reads it and reads and writes that."""
    moved = shard.size + 2 * shard.gradient
    return (copy(shard, "accumulate", rows, columns, moved),) if shard.adds_gradients else ()


def cast(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the cast of a product's operand: it is read, and written by rows and by columns (Transformer Engine).

    Columns are for gradients of weights, which frozen ones lack.
    nvfp4 reads it twice, the first time for its largest value (pytorch/csrc/quantizer.cpp, nvte_hadamard_transform_amax).
    """
    if shard.format is None:
        return ()
    written = 1 if shard.lora else 2
    return (copy(shard, "cast", rows, columns, shard.format.reads * shard.size + written * shard.format.size),)


def recast(shard: ShardedModel, inputs: int, outputs: int) -> tuple[Kernel, ...]:
    """Return the cast of a product's weights, in one order, where each pass makes it (torchao, float8_linear.py)."""
    if shard.format is None or not shard.recasts:
        return ()
    return (copy(shard, "cast", inputs, outputs, shard.format.reads * shard.size + shard.format.size),)


def early_cast(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the cast of an operand of a format that travels, before it is gathered."""
    return cast(shard, rows, columns) if shard.format and shard.format.travels else ()


def transposed(shard: ShardedModel, columns: int) -> tuple[Kernel, ...]:
    """Return the transposition of a gathered operand for the gradient of the weights.

    With one scale a tensor it travels by rows alone (Transformer Engine, pytorch/distributed.py, _all_gather_fp8).
    """
    form = shard.format
    if form is None or form.scale or not form.travels or not shard.sequence_parallel:
        return ()
    return (copy(shard, "transpose", shard.tokens, columns, 2 * form.size),)


def rescaled(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the scaling of a gradient's product behind it, where the product's kernel takes one scale a tensor alone."""
    behind = shard.format is not None and shard.format.rescales
    return (copy(shard, "rescale", rows, columns, 2 * shard.size),) if behind else ()
