"""The feed-forward half of a block: column-parallel linear, activation, row-parallel linear, residual."""

from __future__ import annotations

from clustersim.model.attention import residual_part
from clustersim.model.elementwise import activation, activation_backward, activation_saved
from clustersim.model.linear import column, row
from clustersim.model.operator import Operator
from clustersim.model.sharding import Rank


def mlp_part(rank: Rank) -> tuple[Operator, ...]:
    """Return the operators of a dense MLP without its norm."""
    return (*dense(rank, "", rank.ffn), residual_part(rank, "mlp_residual"))


def dense(rank: Rank, prefix: str, ffn: int) -> tuple[Operator, ...]:
    """Return both linears and the activation between them, `ffn` features wide on this rank."""
    hidden, bias = rank.model.hidden, rank.model.bias
    inner = 2 * ffn if rank.model.activation == "swiglu" else ffn
    return (
        column(rank, f"{prefix}fc1", hidden, inner, bias=bias),
        activation_part(rank, f"{prefix}activation", rank.tokens, ffn),
        row(rank, f"{prefix}fc2", ffn, hidden, bias=bias),
    )


def activation_part(rank: Rank, name: str, rows: int, columns: int) -> Operator:
    """Return the activation as an operator."""
    return Operator(
        name,
        activation(rank, rows, columns),
        activation_backward(rank, rows, columns),
        saved=activation_saved(rank, rows, columns),
    )
