"""LayerNorm and RMSNorm, with the sum of gradients where the residual branch forks off."""

from __future__ import annotations

from clustersim.model.elementwise import add
from clustersim.model.kernel import vector
from clustersim.model.linear import accumulate
from clustersim.model.operator import Operator
from clustersim.model.sharding import Rank


def norm(rank: Rank, name: str, *, fork: bool = True) -> Operator:
    """Return a norm over the hidden dimension of the rank's own tokens.

    Forward reads and writes the values once; backward reads the input and the gradient twice and writes one result
    (PyTorch's two passes: input gradient, then weight gradient). `fork`: the input also feeds a residual, so two gradients
    are added. Keeps its input.
    """
    rows, hidden, z = rank.local, rank.model.hidden, rank.size
    op = f"unfused_{rank.model.norm}" if rank.eager and z < 4 else rank.model.norm
    weights = rank.replicated(hidden * (2 if rank.model.norm == "layernorm" else 1))
    return Operator(
        name,
        (vector("layernorm", op, rank.dtype, rows, hidden, 6.0, 2 * z),),
        (
            vector("layernorm", f"{op}_backward", rank.dtype, rows, hidden, 12.0, 5 * z),
            *((add(rank, rows, hidden),) if fork else ()),
        ),
        accumulate(rank, 1, weights),
        parameters=weights,
        replicated=weights,
        saved=z * rows * hidden,
    )
