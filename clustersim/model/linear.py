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
    """Return a linear of `inputs` to `outputs` (this rank's) features whose whole input is needed on every tp rank.

    Without sequence parallelism the input's gradient is all-reduced. With it, the input is gathered forward and, unless saved
    gathered, again for wgrad, and the gradient is reduce-scattered. `saved`: bytes of output saved besides the input. `chunks`:
    whether the gather may overlap chunks of the GEMM. `parts`: names and columns of the outputs; `apart`: each is a separate
    linear.
    """
    whole = (shard.tokens, inputs)
    gather = gathers(shard, inputs)
    # gather of the input, scatter of its gradient
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
    # without weight gradients to overlap, TE scatters by chunks (Megatron's tp_comm_overlap_rs_dgrad)
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
    """Return the bytes of a weight's gradient until it is added to the main one; 0 if the GEMM itself adds it."""
    return shard.size * parameters if shard.accumulates_apart and not shard.lora else 0.0


def row(
    shard: ShardedModel, name: str, inputs: int, outputs: int, *, bias: bool, part: str, read: bool = True
) -> Operator:
    """Return a linear of `inputs` (this rank's) to `outputs` features whose partial sums are reduced over the tp ranks.

    part: name of the output. read: whether a backward pass, or recomputation, reads the output.
    """
    whole = (shard.tokens, outputs)
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *whole)
    # block scales differ by rows and by columns, and the weight gradient needs the latter
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
"""SMs of a collective that overlaps a GEMM, whole or in chunks of sums; rings use copy engines (same file)."""
SPLITS = 4
"""Number of chunks of a GEMM whose sums are scattered chunk by chunk: Transformer Engine's num_splits
(common/comm_gemm_overlap)."""


def gathers(shard: ShardedModel, columns: int, copies: int = 1) -> tuple[Collective, ...]:
    """Return the all-gather of `copies` operands of `columns` columns over the tp ranks; nothing if they share no sequence."""
    if not shard.sequence_parallel:
        return ()
    size = shard.format.size if shard.format and shard.format.travels else shard.size
    return shard.exchange("all_gather", shard.tokens, columns, copies * size)


def beside(shard: ShardedModel, calls: tuple[Collective, ...], kernels: int) -> Steps:
    """Return collectives that overlap the `kernels` kernels after them; or, if they do not overlap, with their layout copies."""
    if shard.overlap in ("none", "async"):
        return (*calls, *redistributed(shard, calls))
    return tuple(call._replace(over=kernels, sms=SMS) for call in calls)


def redistributed(shard: ShardedModel, calls: tuple[Collective, ...]) -> tuple[Kernel, ...]:
    """Return the copies after eager gathers, or before eager scatters, along the sequence: PyTorch's collectives split and join
    the first dimension, but the sequence is the second (torch distributed/_functional_collectives.py)."""
    if not shard.redistributes or not shard.sequence_parallel or shard.overlap != "none":
        return ()
    columns = (round(call.size / shard.tokens / shard.size) for call in calls)
    return tuple(copy(shard, "redistribute", shard.tokens, each, 2 * shard.size) for each in columns)


def gathered(shard: ShardedModel, gather: tuple[Collective, ...], make: Callable[..., tuple[Kernel, ...]]) -> Steps:
    """Return a GEMM on a gathered operand: whole, or in chunks, the rank's own first, while a ring brings the next chunk."""
    late = shard.format is not None and not shard.format.travels  # PyTorch's async cannot cast between (issue 149990)
    if late or shard.overlap not in ("ring", "async") or not gather or shard.tokens % shard.tp:
        return (*gather, *redistributed(shard, gather), *make())
    chunk = make(rows=shard.tokens // shard.tp)
    # a share (t - 1) / t in t - 1 steps
    step = gather[0]._replace(size=gather[0].size / (shard.tp - 1), over=len(chunk))
    ring: Steps = (step, *chunk)
    return (*(ring * (shard.tp - 1)), *chunk)


def scattered(
    shard: ShardedModel, reduce: tuple[Collective, ...], make: Callable[..., tuple[Kernel, ...]], columns: int
) -> Steps:
    """Return a GEMM of `columns` columns whose sums are scattered: whole, or in chunks, each while the next one is multiplied.

    The last chunk is exposed. In PyTorch it is the rank's own, followed by the sum of all that arrived
    (_fused_matmul_reduce_scatter in torch/distributed/_symmetric_memory).
    """
    if shard.overlap == "async" and reduce and not shard.tokens % shard.tp:
        own = make(rows=shard.tokens // shard.tp)
        step = reduce[0]._replace(size=reduce[0].size / (shard.tp - 1), over=len(own))
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
    """Return the bytes per value of a linear's operands and saved input; narrow GEMMs save the cast one."""
    return shard.format.size if shard.format else shard.size


def product(shard: ShardedModel, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the forward GEMM on `rows` rows (default: all tokens) that are whole on this rank."""
    rows = shard.tokens if rows is None else rows
    return (*early_cast(shard, rows, inputs), *multiplied(shard, "forward", inputs, outputs, rows))


def dgrad(shard: ShardedModel, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the GEMM that computes the input's gradient."""
    rows = shard.tokens if rows is None else rows
    return (*early_cast(shard, rows, outputs), *multiplied(shard, "dgrad", outputs, inputs, rows))


def forwards(shard: ShardedModel, inputs: int, linears: Sequence[int], rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the GEMMs of one operand, cast once, with linears of these output widths."""
    first, *others = (multiplied(shard, "forward", inputs, columns, rows) for columns in linears)
    return (*first, *(one[-1] for one in others))


def dgrads(shard: ShardedModel, inputs: int, linears: Sequence[int], rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the GEMMs for the input gradient shared by linears of these output widths, and the sum over them."""
    rows, n = shard.tokens if rows is None else rows, len(linears)
    each = (kernel for columns in linears for kernel in dgrad(shard, inputs, columns, rows))
    return (*each, *((copy(shard, "sum_gradients", rows, inputs, (n + 1) * shard.size),) if n > 1 else ()))


def multiplied(shard: ShardedModel, op: str, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return a GEMM, `forward` or `dgrad`, on `rows` rows (default: all tokens) of `inputs` columns, preceded by its cast if
    needed."""
    rows, form = shard.tokens if rows is None else rows, shard.format
    late = cast(shard, rows, inputs) if form and not form.travels else ()
    late = (*late, *recast(shard, inputs, outputs))
    y = gemm("linear", op, shard.matrix, 1, rows, outputs, inputs, output=shard.size, operand=input_size(shard))
    return (*late, y, *(rescaled(shard, rows, outputs) if op == "dgrad" else ()))


def wgrad(shard: ShardedModel, inputs: int, outputs: int, bias: bool, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the weight-gradient GEMM and, unless it adds to the main gradients itself, the sum after it."""
    rows = shard.tokens if rows is None else rows
    into = 0.0 if shard.accumulates_apart or not shard.adds_gradients else shard.gradient
    shape = (outputs, inputs, rows)
    dw = gemm("linear", "wgrad", shard.matrix, 1, *shape, into, output=shard.size, operand=input_size(shard))
    added = accumulate(shard, outputs, inputs) if shard.accumulates_apart else ()
    summed = (copy(shard, "bias_gradient", rows, outputs, shard.size),) if bias else ()
    return (dw, *rescaled(shard, outputs, inputs), *added, *summed)


def accumulate(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the sum of a weight's gradient into the main gradient: reads the first, reads and writes the second."""
    moved = shard.size + 2 * shard.gradient
    return (copy(shard, "accumulate", rows, columns, moved),) if shard.adds_gradients else ()


def cast(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the cast of a GEMM's operand: read once, written row-wise and column-wise (Transformer Engine).

    The column-wise copy is for weight gradients, which frozen weights lack. nvfp4 reads the operand twice, first for its largest
    value (pytorch/csrc/quantizer.cpp, nvte_hadamard_transform_amax).
    """
    if shard.format is None:
        return ()
    written = 1 if shard.lora else 2
    return (copy(shard, "cast", rows, columns, shard.format.reads * shard.size + written * shard.format.size),)


def recast(shard: ShardedModel, inputs: int, outputs: int, most: float = float("inf")) -> tuple[Kernel, ...]:
    """Return the cast of weights in one layout, read `most` times at most, if each pass casts them (torchao float8_linear.py)."""
    if shard.format is None or not shard.recasts:
        return ()
    return (copy(shard, "cast", inputs, outputs, min(shard.format.reads, most) * shard.size + shard.format.size),)


def early_cast(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the cast of an operand before its gather, for formats that are gathered in narrow form."""
    return cast(shard, rows, columns) if shard.format and shard.format.travels else ()


def transposed(shard: ShardedModel, columns: int) -> tuple[Kernel, ...]:
    """Return the transposition of a gathered operand for the weight gradient.

    With one scale per tensor only its row-wise copy is gathered (Transformer Engine, pytorch/distributed.py, _all_gather_fp8).
    """
    form = shard.format
    if form is None or form.scale or not form.travels or not shard.sequence_parallel:
        return ()
    return (copy(shard, "transpose", shard.tokens, columns, 2 * form.size),)


def rescaled(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the scaling of a GEMM's output in a separate kernel, if the GEMM supports only one scale per tensor."""
    behind = shard.format is not None and shard.format.rescales
    return (copy(shard, "rescale", rows, columns, 2 * shard.size),) if behind else ()
