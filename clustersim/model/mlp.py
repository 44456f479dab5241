"""The feed-forward half of a block: column-parallel linear, activation, row-parallel linear, residual."""

from __future__ import annotations

from clustersim.model.attention import residual_part
from clustersim.model.elementwise import activation, activation_backward, activation_saved_bytes, copy
from clustersim.model.linear import column, row
from clustersim.model.lora import adapters
from clustersim.model.operator import Operator
from clustersim.model.sharding import ShardedModel, gated


def mlp_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the operators of a dense MLP and its residual sum, without its norm."""
    return (*dense(shard, "", shard.ffn), residual_part(shard, "mlp_residual"))


def dense(shard: ShardedModel, prefix: str, ffn: int) -> tuple[Operator, ...]:
    """Return the two linears, their adapters, and the activation between them. prefix: start of the operators' names, such as
    `shared_`. ffn: width between the linears on this rank."""
    hidden, bias = shard.model.hidden, shard.model.bias
    parts = [(name, ffn) for name in ("mlpwi_0", "mlpwi_1")[: 2 if gated(shard.model) else 1]]
    read = shard.eager or shard.model.norm_position != "pre"  # eager PyTorch saves tensors even if never read
    adapted = adapters(shard, f"{prefix}fc1", hidden, parts)
    wide = len(parts) * ffn
    return (
        column(
            shard, f"{prefix}fc1", hidden, wide, bias=bias, parts=parts, separate=shard.separate, chunked=not adapted
        ),
        *adapted,
        activation_part(shard, f"{prefix}activation", shard.tokens, ffn),
        row(shard, f"{prefix}fc2", ffn, hidden, bias=bias, part="mlpwo", read=read),
        *adapters(shard, f"{prefix}fc2", ffn, (("mlpwo", hidden),)),
    )


def activation_part(shard: ShardedModel, name: str, rows: int, columns: int) -> Operator:
    """Return the activation, named `name`, with `rows` × `columns` outputs as one operator."""
    values = (2 if gated(shard.model) else 1) * columns
    cast = (copy(shard, "cast", rows, values, shard.size + 1),) if shard.narrow_activations else ()
    return Operator(
        name,
        (*cast, *activation(shard, rows, columns)),
        (*cast, *activation_backward(shard, rows, columns)),
        saved=activation_saved_bytes(shard, rows, columns),
        backward_alive=(3 if gated(shard.model) else 2) * shard.size * rows * columns,
    )
