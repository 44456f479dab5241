"""LayerNorm and RMSNorm, with the sum of gradients where the residual branch forks.

`training.norm_kernels` selects the kernels. Fused ones keep a row in registers: values are read once, backward with their
gradient. PyTorch's read a row once for its statistics and once for the output; backward, one kernel reads values and gradient
twice, and one for the weights once (aten/src/ATen/native/cuda/layer_norm_kernel.cu). Eager RMSNorm is Hugging Face's
(transformers, models/llama/modeling_llama.py): in fp32, operation by operation.
"""

from __future__ import annotations

from clustersim.model.elementwise import add, pointwise
from clustersim.model.kernel import Kernel, vector
from clustersim.model.linear import accumulate
from clustersim.model.operator import Operator
from clustersim.model.sharding import ShardedModel

_EAGER = (6, 8, 4, 8, 6, 4)
"""Bytes per element of cast, square, mean, product, cast and weight, from and to 16 bits."""
_EAGER_BACKWARD = (6, 2, 4, 6, 8, 12, 4, 4, 8, 12, 12, 6)
"""Bytes per element backward: product and sum for the weight, weight, cast, product, product and sum for the mean, its broadcast,
square (two), sum, cast."""


def norm_kernels(shard: ShardedModel, rows: int, columns: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return (forward, backward) kernels of a norm over `rows` rows of `columns` values."""
    op: str = shard.model.norm
    z = shard.size
    eager = shard.norm_kernels == "eager"
    if z < 4 and eager and op == "rmsnorm":
        return _parts(shard, rows, columns, "norm_part", _EAGER), _parts(
            shard, rows, columns, "norm_part_backward", _EAGER_BACKWARD
        )
    if z < 4 and shard.norm_kernels == "upcast":
        return _upcast(shard, rows, columns)
    if z < 4 and shard.norm_kernels != "fused":
        op, read, backward_read = f"torch_{op}", 3, 7
    else:
        read, backward_read = 2, 3 if z < 4 else 5
    return (
        (vector("layernorm", op, shard.dtype, rows, columns, 6.0, read * z),),
        (vector("layernorm", f"{op}_backward", shard.dtype, rows, columns, 12.0, backward_read * z),),
    )


def _upcast(shard: ShardedModel, rows: int, columns: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return (forward, backward) kernels of PyTorch's norm on values cast to fp32, with 4 bytes per value of input and gradient.

    The backward pass repeats the forward kernels, unless the block is recomputed anyway (InternEvo, model/modeling_internlm.py,
    dropout_selective_checkpoint).
    """
    op, z = f"torch_{shard.model.norm}", shard.size
    cast = pointwise(shard, "upcast", rows, columns, z + 4)
    forward = (cast, vector("layernorm", op, shard.dtype, rows, columns, 6.0, 2 * 4 + z))
    backward = vector("layernorm", f"{op}_backward", shard.dtype, rows, columns, 12.0, 3 * (4 + z) + 4)
    recomputed = forward if shard.training.recompute == "none" else ()
    return forward, (*recomputed, backward, cast._replace(op="downcast"))


def _parts(shard: ShardedModel, rows: int, columns: int, op: str, traffic: tuple[int, ...]) -> tuple[Kernel, ...]:
    """Return one elementwise kernel for each entry of `traffic`, in bytes of memory traffic per value."""
    return tuple(pointwise(shard, op, rows, columns, value_bytes) for value_bytes in traffic)


def norm(shard: ShardedModel, name: str, *, fork: bool = True, width: int | None = None) -> Operator:
    """Return a norm over the hidden dimension (or `width` values) of the rank's own tokens. fork: whether the input also feeds a
    residual, so that its two gradients are added. The norm saves its input."""
    rows, hidden, z = shard.local, width or shard.model.hidden, shard.size
    forward, backward = norm_kernels(shard, rows, hidden)
    weights = shard.replicated(hidden * (2 if shard.model.norm == "layernorm" else 1))
    return Operator(
        name,
        forward,
        (*backward, *((add(shard, rows, hidden),) if fork else ())),
        accumulate(shard, 1, weights),
        parameters=weights,
        replicated=weights,
        saved=z * rows * hidden,
        backward_alive=2 * z * rows * hidden,
    )
