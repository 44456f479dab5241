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
    chunked: bool = True,
    parts: Sequence[tuple[str, int]] = (),
    separate: bool = False,
) -> Operator:
    """Return a column-parallel linear: its whole input of `inputs` features is needed on every tp rank, and `outputs` is this
    rank's share of the output features.

    Without sequence parallelism the input's gradient is all-reduced. With it, the input is gathered forward and, unless saved
    gathered, again for wgrad, and the gradient is reduce-scattered.

    saved: bytes of output saved in addition to the input. chunked: whether gather and scatter may overlap chunks of the GEMMs.
    parts: (name, columns) of each part of the output that recomputation can save. separate: whether each part is a linear of its
    own.
    """
    input_shape = (shard.tokens, inputs)
    gather = sequence_gather(shard, inputs)
    # gather of the input, scatter of its gradient
    gathered = (shard.tokens + shard.local) * inputs if shard.sequence_parallel else 0
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *input_shape)
    linears = tuple(columns for _, columns in parts) if separate else (outputs,)
    multiply, differentiate = partial(forwards, shard, inputs, linears), partial(dgrads, shard, inputs, linears)
    gradient = differentiate()
    weights = (kernel for columns in linears for kernel in wgrad(shard, inputs, columns, bias))
    weight = (*transposed(shard, inputs), *weights)
    gathered_saved = shard.keeps_gathered and (chunked or shard.overlap != "async")
    regather = () if gathered_saved or shard.lora else gather
    covered = 0 if shard.lora else len(weight)
    backward: Steps = (*overlapped(shard, regather, len(gradient)), *gradient, *overlapped(shard, reduce, covered))
    # without weight gradients to overlap, TE scatters by chunks (Megatron's tp_comm_overlap_rs_dgrad)
    if chunked and (shard.overlap == "async" or (shard.overlap == "ring" and shard.lora)):
        backward = gemm_scatter(shard, reduce, differentiate, inputs)
    saved_input = input_size(shard) * (shard.tokens if gathered_saved else shard.local) * inputs
    return Operator(
        name,
        (
            *early_cast(shard, shard.local, inputs),
            *(
                gather_gemm(shard, gather, multiply)
                if chunked
                else (*gather, *redistributed(shard, gather), *multiply())
            ),
        ),
        backward,
        weight,
        parameters=inputs * outputs + (outputs if bias else 0),
        saved=saved_input + saved,
        outputs=tuple(Output(part, columns, shard.size * shard.tokens * columns) for part, columns in parts),
        saved_input=saved_input,
        backward_alive=shard.size * (shard.tokens * (inputs + outputs) + gathered)
        + gradient_bytes(shard, inputs * outputs),
    )


def gradient_bytes(shard: ShardedModel, parameters: int) -> float:
    """Return the bytes of the gradient of `parameters` weights until it is added to the main gradient; 0 if the GEMM adds it."""
    return shard.size * parameters if shard.accumulates_separately and not shard.lora else 0.0


def row(
    shard: ShardedModel, name: str, inputs: int, outputs: int, *, bias: bool, part: str, read: bool = True
) -> Operator:
    """Return a row-parallel linear: `inputs` is this rank's share of the input features, and the tp ranks reduce the partial sums
    of all `outputs` features.

    part: name of the output for recomputation. read: whether a backward pass, or recomputation, reads the output.
    """
    output_shape = (shard.tokens, outputs)
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *output_shape)
    # block scales differ by rows and by columns, and the weight gradient needs the latter
    copies = 2 if shard.format and shard.format.scale and not shard.lora else 1
    gather = sequence_gather(shard, outputs, copies)
    replicated = shard.replicated(outputs) if bias else 0
    return Operator(
        name,
        gemm_scatter(shard, reduce, partial(product, shard, inputs, outputs), outputs),
        (
            *early_cast(shard, shard.local, outputs),
            *gather_gemm(shard, gather, partial(cast_gemm, shard, "dgrad", outputs, inputs)),
        ),
        (*transposed(shard, outputs), *wgrad(shard, inputs, outputs, bias)),
        parameters=inputs * outputs + replicated,
        replicated=replicated,
        saved=input_size(shard) * shard.tokens * inputs,
        outputs=(Output(part, outputs, shard.size * shard.local * outputs * read),),
        saved_input=input_size(shard) * shard.tokens * inputs,
        backward_alive=shard.size * shard.tokens * (inputs + outputs) + gradient_bytes(shard, inputs * outputs),
    )


SMS = 16
"""Number of SMs of a collective that overlaps a GEMM, fully or by scattered chunks; rings use copy engines (same source)."""
SPLITS = 4
"""Number of chunks of a GEMM whose sums are scattered chunk by chunk: Transformer Engine's num_splits
(common/comm_gemm_overlap)."""


def sequence_gather(shard: ShardedModel, columns: int, copies: int = 1) -> tuple[Collective, ...]:
    """Return the all-gather of `copies` operands of `columns` columns over tp; () without sequence parallelism."""
    if not shard.sequence_parallel:
        return ()
    size = shard.format.size if shard.format and shard.format.travels else shard.size
    return shard.exchange("all_gather", shard.tokens, columns, copies * size)


def overlapped(shard: ShardedModel, calls: tuple[Collective, ...], kernels: int) -> Steps:
    """Return `calls` so that they overlap the next `kernels` kernels; without such overlap, `calls` and their layout copies."""
    if shard.overlap in ("none", "async"):
        return (*calls, *redistributed(shard, calls))
    return tuple(call._replace(over=kernels, sms=SMS) for call in calls)


def redistributed(shard: ShardedModel, calls: tuple[Collective, ...]) -> tuple[Kernel, ...]:
    """Return one layout copy for each of `calls`, after eager gathers or before eager scatters along the sequence; else ().

    PyTorch's collectives split and join the first dimension, but the sequence is the second (torch
    distributed/_functional_collectives.py).
    """
    if not shard.redistributes or not shard.sequence_parallel or shard.overlap != "none":
        return ()
    columns = (round(call.size / shard.tokens / shard.size) for call in calls)
    return tuple(copy(shard, "redistribute", shard.tokens, width, 2 * shard.size) for width in columns)


def gather_gemm(shard: ShardedModel, gather: tuple[Collective, ...], make: Callable[..., tuple[Kernel, ...]]) -> Steps:
    """Return a gather followed by a GEMM; or the GEMM in chunks, the rank's own first, while a ring brings the next chunk. make:
    returns the kernels of the GEMM on `rows` rows (default: all tokens)."""
    # PyTorch's async cannot cast between (issue 149990)
    casts_late = shard.format is not None and not shard.format.travels
    if casts_late or shard.overlap not in ("ring", "async") or not gather or shard.tokens % shard.tp:
        return (*gather, *redistributed(shard, gather), *make())
    chunk = make(rows=shard.tokens // shard.tp)
    # a share (t - 1) / t in t - 1 steps
    step = gather[0]._replace(size=gather[0].size / (shard.tp - 1), over=len(chunk))
    ring: Steps = (step, *chunk)
    return (*(ring * (shard.tp - 1)), *chunk)


def gemm_scatter(
    shard: ShardedModel, reduce: tuple[Collective, ...], make: Callable[..., tuple[Kernel, ...]], columns: int
) -> Steps:
    """Return a GEMM of `columns` columns followed by `reduce`; or the GEMM in chunks, each reduced during the next one.

    make: returns the kernels of the GEMM on `rows` rows (default: all tokens). The last chunk is exposed. In PyTorch it is the
    rank's own, followed by the sum of all that arrived (_fused_matmul_reduce_scatter in torch/distributed/_symmetric_memory).
    """
    if shard.overlap == "async" and reduce and not shard.tokens % shard.tp:
        chunk = make(rows=shard.tokens // shard.tp)
        step = reduce[0]._replace(size=reduce[0].size / (shard.tp - 1), over=len(chunk))
        total = copy(shard, "sum_chunks", shard.tokens // shard.tp, columns, (shard.tp + 1) * shard.size)
        ring: Steps = (step, *chunk)
        return (*chunk, *(ring * (shard.tp - 1)), total)
    if shard.overlap != "ring" or not reduce or shard.tokens % SPLITS:
        return (*make(), *redistributed(shard, reduce), *reduce)
    chunk = make(rows=shard.tokens // SPLITS)
    [call] = reduce
    part = call._replace(size=call.size / SPLITS)
    part_and_chunk: Steps = (part._replace(over=len(chunk), sms=SMS), *chunk)
    return (*chunk, *(part_and_chunk * (SPLITS - 1)), part)


def input_size(shard: ShardedModel) -> float:
    """Return the bytes per value of a linear's operands and of its saved input, which is in the narrow format if there is one."""
    return shard.format.size if shard.format else shard.size


def product(shard: ShardedModel, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the kernels of a forward GEMM, with the cast of its input, on `rows` rows (default: all tokens)."""
    rows = shard.tokens if rows is None else rows
    return (*early_cast(shard, rows, inputs), *cast_gemm(shard, "forward", inputs, outputs, rows))


def dgrad(shard: ShardedModel, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the kernels of the GEMM for the input's gradient, with the cast of its operand. rows: default all tokens."""
    rows = shard.tokens if rows is None else rows
    return (*early_cast(shard, rows, outputs), *cast_gemm(shard, "dgrad", outputs, inputs, rows))


def forwards(shard: ShardedModel, inputs: int, linears: Sequence[int], rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the forward GEMMs of one input, cast once, for linears with output widths `linears`. rows: default all tokens."""
    first, *others = (cast_gemm(shard, "forward", inputs, columns, rows) for columns in linears)
    return (*first, *(kernels[-1] for kernels in others))


def dgrads(shard: ShardedModel, inputs: int, linears: Sequence[int], rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the GEMMs for the gradient of an input that linears of output widths `linears` share, and the sum over them.

    rows: default all tokens.
    """
    rows, n = shard.tokens if rows is None else rows, len(linears)
    each = (kernel for columns in linears for kernel in dgrad(shard, inputs, columns, rows))
    return (*each, *((copy(shard, "sum_gradients", rows, inputs, (n + 1) * shard.size),) if n > 1 else ()))


def cast_gemm(shard: ShardedModel, op: str, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return a GEMM on `rows` rows (default: all tokens) of `inputs` columns, after casts that were not made before a gather. op:
    `forward` or `dgrad`."""
    rows, narrow = shard.tokens if rows is None else rows, shard.format
    casts = cast(shard, rows, inputs) if narrow and not narrow.travels else ()
    casts = (*casts, *recast(shard, inputs, outputs))
    y = gemm("linear", op, shard.linear_dtype, 1, rows, outputs, inputs, output=shard.size, operand=input_size(shard))
    return (*casts, y, *(rescaled(shard, rows, outputs) if op == "dgrad" else ()))


def wgrad(shard: ShardedModel, inputs: int, outputs: int, bias: bool, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the weight-gradient GEMM, the sum into the main gradients unless the GEMM adds itself, and the gradient of the bias.

    rows: default all tokens.
    """
    rows = shard.tokens if rows is None else rows
    main = 0.0 if shard.accumulates_separately or not shard.adds_gradients else shard.gradient
    shape = (outputs, inputs, rows)
    dw = gemm("linear", "wgrad", shard.linear_dtype, 1, *shape, main, output=shard.size, operand=input_size(shard))
    added = accumulate(shard, outputs, inputs) if shard.accumulates_separately else ()
    bias_gradient = (copy(shard, "bias_gradient", rows, outputs, shard.size),) if bias else ()
    return (dw, *rescaled(shard, outputs, inputs), *added, *bias_gradient)


def accumulate(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the kernel that adds a rows×columns gradient to the main gradient; () if passes allocate new gradients (FSDP)."""
    moved = shard.size + 2 * shard.gradient
    return (copy(shard, "accumulate", rows, columns, moved),) if shard.adds_gradients else ()


def cast(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the cast of a GEMM's operand, written row-wise and column-wise (Transformer Engine); () without a narrow format.

    The column-wise copy is for weight gradients, which frozen weights lack. nvfp4 reads the operand twice, first for its largest
    value (pytorch/csrc/quantizer.cpp, nvte_hadamard_transform_amax).
    """
    if shard.format is None:
        return ()
    written = 1 if shard.lora else 2
    return (copy(shard, "cast", rows, columns, shard.format.reads * shard.size + written * shard.format.size),)


def recast(shard: ShardedModel, inputs: int, outputs: int, max_reads: float = float("inf")) -> tuple[Kernel, ...]:
    """Return the cast of weights in one layout if each pass casts them, otherwise () (torchao float8_linear.py). max_reads: upper
    bound on how often the cast reads the weights."""
    if shard.format is None or not shard.recasts:
        return ()
    return (copy(shard, "cast", inputs, outputs, min(shard.format.reads, max_reads) * shard.size + shard.format.size),)


def early_cast(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the cast of an operand before its gather if the format is gathered in narrow form, otherwise ()."""
    return cast(shard, rows, columns) if shard.format and shard.format.travels else ()


def transposed(shard: ShardedModel, columns: int) -> tuple[Kernel, ...]:
    """Return the kernel that transposes a gathered operand of `columns` columns for the weight gradient; () if not needed.

    With one scale per tensor only its row-wise copy is gathered (Transformer Engine, pytorch/distributed.py, _all_gather_fp8).
    """
    form = shard.format
    if form is None or form.scale or not form.travels or not shard.sequence_parallel:
        return ()
    return (copy(shard, "transpose", shard.tokens, columns, 2 * form.size),)


def rescaled(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the kernel that scales a GEMM's output of rows×columns values; () if the GEMM scales it itself."""
    rescales = shard.format is not None and shard.format.rescales
    return (copy(shard, "rescale", rows, columns, 2 * shard.size),) if rescales else ()
