"""Linear layers under tensor parallelism: column-parallel (outputs split) and row-parallel (inputs split).

Forward y = x·W, `dgrad` dx = dy·Wᵀ, `wgrad` dW = dyᵀ·x; the collectives are f and g of Megatron-LM (Shoeybi et al. 2019,
section 3), or ḡ and g̅ with sequence parallelism (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from clustersim.model.elementwise import copy
from clustersim.model.kernel import Kernel, gemm
from clustersim.model.operator import Operator
from clustersim.model.sharding import Rank


def column(rank: Rank, name: str, inputs: int, outputs: int, *, bias: bool, saved: float = 0.0) -> Operator:
    """Return a linear of `inputs` to `outputs` (this rank's) features whose input every tp rank needs whole.

    Without sequence parallelism the gradient of the input is all-reduced. With it the input is gathered forward and again
    for wgrad, and the gradient is reduce-scattered. `saved`: bytes of the output that are kept besides the input.
    """
    whole = (rank.tokens, inputs)
    gather = rank.exchange("all_gather", *whole) if rank.sequence_parallel else ()
    reduce = rank.exchange("reduce_scatter" if rank.sequence_parallel else "all_reduce", *whole)
    size = input_size(rank)
    return Operator(
        name,
        (*gather, *product(rank, inputs, outputs)),
        (*gather, *dgrad(rank, inputs, outputs), *reduce),
        wgrad(rank, inputs, outputs, bias),
        parameters=inputs * outputs + (outputs if bias else 0),
        saved=size * rank.local * inputs + saved,
    )


def row(rank: Rank, name: str, inputs: int, outputs: int, *, bias: bool) -> Operator:
    """Return a linear of `inputs` (this rank's) to `outputs` features whose partial sums the tp ranks add up."""
    whole = (rank.tokens, outputs)
    reduce = rank.exchange("reduce_scatter" if rank.sequence_parallel else "all_reduce", *whole)
    gather = rank.exchange("all_gather", *whole) if rank.sequence_parallel else ()
    replicated = rank.replicated(outputs) if bias else 0
    return Operator(
        name,
        (*product(rank, inputs, outputs), *reduce),
        (*gather, *dgrad(rank, inputs, outputs)),
        wgrad(rank, inputs, outputs, bias),
        parameters=inputs * outputs + replicated,
        replicated=replicated,
        saved=input_size(rank) * rank.tokens * inputs,
    )


def input_size(rank: Rank) -> float:
    """Return the bytes of one value of a linear's kept input: fp8 products keep the cast one."""
    return 1.0 if rank.matrix == "fp8" else rank.size


def product(rank: Rank, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the forward product of `rows` (default: all tokens)."""
    rows = rank.tokens if rows is None else rows
    y = gemm("linear", "forward", rank.matrix, 1, rows, outputs, inputs, output=rank.size)
    return (*cast(rank, rows, inputs), y)


def dgrad(rank: Rank, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the gradient of the input."""
    rows = rank.tokens if rows is None else rows
    dx = gemm("linear", "dgrad", rank.matrix, 1, rows, inputs, outputs, output=rank.size)
    return (*cast(rank, rows, outputs), dx)


def wgrad(rank: Rank, inputs: int, outputs: int, bias: bool, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the gradient of the weights, added to the main gradients in the product (fused) or afterwards (eager)."""
    rows = rank.tokens if rows is None else rows
    into = 0.0 if rank.eager else rank.gradient
    dw = gemm("linear", "wgrad", rank.matrix, 1, outputs, inputs, rows, into, output=rank.size)
    extra = accumulate(rank, outputs, inputs) if rank.eager else ()
    return (dw, *extra, *(bias_gradient(rank, rows, outputs) if bias else ()))


def accumulate(rank: Rank, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the sum of a weight's gradient into the main gradient: reads it and reads and writes that."""
    return (copy(rank, "accumulate", rows, columns, rank.size + 2 * rank.gradient),)


def bias_gradient(rank: Rank, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the sum over rows that is the gradient of a bias."""
    return (copy(rank, "bias_gradient", rows, columns, rank.size),)


def cast(rank: Rank, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the conversion of a product's operand to fp8: reads it, writes it and its transpose (Transformer Engine)."""
    return (copy(rank, "cast", rows, columns, rank.size + 2.0),) if rank.matrix == "fp8" else ()
