"""Linear layers under tensor parallelism: column-parallel (outputs split) and row-parallel (inputs split).

Forward y = x·W, `dgrad` dx = dy·Wᵀ, `wgrad` dW = dyᵀ·x; the collectives are f and g of Megatron-LM (Shoeybi et al. 2019,
section 3), or ḡ and g̅ with sequence parallelism (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from clustersim.model.elementwise import copy
from clustersim.model.kernel import Kernel, gemm
from clustersim.model.operator import Operator
from clustersim.model.sharding import ShardedModel


def column(shard: ShardedModel, name: str, inputs: int, outputs: int, *, bias: bool, saved: float = 0.0) -> Operator:
    """Return a linear of `inputs` to `outputs` (this rank's) features whose input every tp rank needs whole.

    Without sequence parallelism the gradient of the input is all-reduced. With it the input is gathered forward and again
    for wgrad, and the gradient is reduce-scattered. `saved`: bytes of the output that are kept besides the input.
    """
    whole = (shard.tokens, inputs)
    gather = shard.exchange("all_gather", *whole) if shard.sequence_parallel else ()
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *whole)
    size = input_size(shard)
    return Operator(
        name,
        (*gather, *product(shard, inputs, outputs)),
        (*gather, *dgrad(shard, inputs, outputs), *reduce),
        wgrad(shard, inputs, outputs, bias),
        parameters=inputs * outputs + (outputs if bias else 0),
        saved=size * shard.local * inputs + saved,
        kept_input=size * shard.local * inputs,
    )


def row(shard: ShardedModel, name: str, inputs: int, outputs: int, *, bias: bool) -> Operator:
    """Return a linear of `inputs` (this rank's) to `outputs` features whose partial sums the tp ranks add up."""
    whole = (shard.tokens, outputs)
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *whole)
    gather = shard.exchange("all_gather", *whole) if shard.sequence_parallel else ()
    replicated = shard.replicated(outputs) if bias else 0
    return Operator(
        name,
        (*product(shard, inputs, outputs), *reduce),
        (*gather, *dgrad(shard, inputs, outputs)),
        wgrad(shard, inputs, outputs, bias),
        parameters=inputs * outputs + replicated,
        replicated=replicated,
        saved=input_size(shard) * shard.tokens * inputs,
        kept_input=input_size(shard) * shard.tokens * inputs,
    )


def input_size(shard: ShardedModel) -> float:
    """Return the bytes of one value of a linear's kept input: fp8 products keep the cast one."""
    return 1.0 if shard.matrix == "fp8" else shard.size


def product(shard: ShardedModel, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the forward product of `rows` (default: all tokens)."""
    rows = shard.tokens if rows is None else rows
    y = gemm("linear", "forward", shard.matrix, 1, rows, outputs, inputs, output=shard.size)
    return (*cast(shard, rows, inputs), y)


def dgrad(shard: ShardedModel, inputs: int, outputs: int, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the gradient of the input."""
    rows = shard.tokens if rows is None else rows
    dx = gemm("linear", "dgrad", shard.matrix, 1, rows, inputs, outputs, output=shard.size)
    return (*cast(shard, rows, outputs), dx)


def wgrad(shard: ShardedModel, inputs: int, outputs: int, bias: bool, rows: int | None = None) -> tuple[Kernel, ...]:
    """Return the gradient of the weights, added to the main gradients in the product (fused) or afterwards (eager)."""
    rows = shard.tokens if rows is None else rows
    into = 0.0 if shard.eager or not shard.adds_gradients else shard.gradient
    dw = gemm("linear", "wgrad", shard.matrix, 1, outputs, inputs, rows, into, output=shard.size)
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
    """Return the conversion of a product's operand to fp8: reads it, writes it and its transpose (Transformer Engine)."""
    return (copy(shard, "cast", rows, columns, shard.size + 2.0),) if shard.matrix == "fp8" else ()
