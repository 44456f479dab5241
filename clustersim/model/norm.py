"""LayerNorm and RMSNorm, with the sum of gradients where the residual branch forks off."""

from __future__ import annotations

from clustersim.model.elementwise import add
from clustersim.model.kernel import vector
from clustersim.model.linear import accumulate
from clustersim.model.operator import Operator
from clustersim.model.sharding import ShardedModel


def norm(shard: ShardedModel, name: str, *, fork: bool = True, width: int | None = None) -> Operator:
    """Return a norm over the hidden dimension (or `width` values) of the rank's own tokens.

    Forward reads and writes the values once; backward reads the input and the gradient twice and writes one result
    (PyTorch's two passes: input gradient, then weight gradient). `fork`: the input also feeds a residual, so two gradients
    are added. Keeps its input.
    """
    rows, hidden, z = shard.local, width or shard.model.hidden, shard.size
    op = f"unfused_{shard.model.norm}" if shard.eager and z < 4 else shard.model.norm
    weights = shard.replicated(hidden * (2 if shard.model.norm == "layernorm" else 1))
    return Operator(
        name,
        (vector("layernorm", op, shard.dtype, rows, hidden, 6.0, 2 * z),),
        (
            vector("layernorm", f"{op}_backward", shard.dtype, rows, hidden, 12.0, 5 * z),
            *((add(shard, rows, hidden),) if fork else ()),
        ),
        accumulate(shard, 1, weights),
        parameters=weights,
        replicated=weights,
        saved=z * rows * hidden,
        backward_alive=2 * z * rows * hidden,
    )
