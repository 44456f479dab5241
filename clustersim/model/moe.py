"""A mixture of experts: router, permutation of tokens to their experts, grouped products, weighted return.

Each rank holds a tp-th of every expert, or where they are spread over ep a slice of experts / ep, to which the rows of
tokens then travel (`dispatch`). Rows fall evenly on the experts of a rank.
"""

from __future__ import annotations

from clustersim.model.attention import residual_part
from clustersim.model.elementwise import add, copy
from clustersim.model.kernel import Kernel, gemm
from clustersim.model.linear import accumulate, dgrad, input_size, product, wgrad
from clustersim.model.mlp import activation_part, dense
from clustersim.model.operator import Collective, Operator, Steps
from clustersim.model.sharding import Rank


def moe_part(rank: Rank) -> tuple[Operator, ...]:
    """Return the operators of a mixture of experts without its norm."""
    if rank.spread:
        halves = (dispatch(rank), *routed(rank), *dense_experts(rank), combine(rank))
    else:
        halves = (permute(rank), *routed(rank), *shared(rank), unpermute(rank))
    return (router(rank), *halves, residual_part(rank, "mlp_residual"))


def routed(rank: Rank) -> tuple[Operator, ...]:
    """Return both linears of the experts and the activation between them; a rank without rows only holds the weights."""
    ffn = rank.expert_ffn
    inner = 2 * ffn if rank.model.activation == "swiglu" else ffn
    parts = (
        experts(rank, "experts_fc1", rank.model.hidden, inner),
        activation_part(rank, "experts_activation", rank.rows, ffn),
        experts(rank, "experts_fc2", ffn, rank.model.hidden),
    )
    return (
        parts
        if rank.rows
        else tuple(part._replace(forward=(), backward_input=(), backward_weight=()) for part in parts)
    )


def router(rank: Rank) -> Operator:
    """Return the linear over experts, softmax and top-k; the same on every tp rank, it keeps its input and fp32 scores."""
    n, hidden = rank.model.experts or 1, rank.model.hidden
    weights = rank.replicated(n * hidden)
    topk = copy(rank, "softmax_topk", rank.local, n, 12.0, "fp32")
    return Operator(
        "router",
        (*product(rank, hidden, n, rank.local), topk),
        (copy(rank, "softmax_topk_backward", rank.local, n, 12.0, "fp32"), *dgrad(rank, hidden, n, rank.local)),
        wgrad(rank, hidden, n, False, rank.local),
        parameters=weights,
        replicated=weights,
        saved=rank.local * (rank.size * hidden + 4.0 * n),
    )


def permute(rank: Rank) -> Operator:
    """Return the copy of each token to its topk experts; its gradient adds the topk copies up and meets the router's."""
    k, hidden, z = rank.model.topk, rank.model.hidden, rank.size
    whole = (rank.tokens, hidden)
    gather = rank.exchange("all_gather", *whole) if rank.sequence_parallel else ()
    reduce = rank.exchange("reduce_scatter" if rank.sequence_parallel else "all_reduce", *whole)
    forward = copy(rank, "permute", *whole, (1 + k) * z)
    backward = copy(rank, "permute_backward", *whole, (1 + k) * z)
    return Operator("permute", (*gather, forward), (backward, *reduce, add(rank, rank.local, hidden)))


def experts(rank: Rank, name: str, inputs: int, outputs: int) -> Operator:
    """Return one linear of all experts as a grouped product; keeps its permuted input."""
    n = rank.experts
    weights = n * inputs * outputs
    return Operator(
        name,
        (_grouped(rank, "forward", inputs, outputs),),
        (_grouped(rank, "dgrad", outputs, inputs),),
        (_grouped(rank, "wgrad", inputs, outputs), *(accumulate(rank, n * inputs, outputs) if rank.eager else ())),
        parameters=weights,
        saved=input_size(rank) * rank.rows * inputs,
        expert=rank.spread,
    )


def _grouped(rank: Rank, op: str, inputs: int, outputs: int) -> Kernel:
    """Return a grouped product with exact FLOP and bytes also where the experts do not divide the rows."""
    n, rows = rank.experts, rank.rows
    each = -(-rows // n)
    into = 0.0 if rank.eager else rank.gradient
    exact = 2.0 * rows * inputs * outputs
    z, written = input_size(rank), rank.size
    if op == "wgrad":
        kernel = gemm("grouped_gemm", op, rank.matrix, n, outputs, inputs, each, into, output=written)
        traffic = rows * (inputs + outputs) * z + n * inputs * outputs * (2 * into or written)
    else:
        kernel = gemm("grouped_gemm", op, rank.matrix, n, each, outputs, inputs, output=written)
        traffic = rows * inputs * z + n * inputs * outputs * z + rows * outputs * written
    return kernel._replace(flop=exact, bytes=float(traffic))


def shared(rank: Rank) -> tuple[Operator, ...]:
    """Return the experts that every token visits, without exchanges: they join the routed ones before the reduction."""
    return tuple(
        part._replace(
            forward=tuple(step for step in part.forward if isinstance(step, Kernel)),
            backward_input=tuple(step for step in part.backward_input if isinstance(step, Kernel)),
        )
        for part in dense_experts(rank)
    )


def unpermute(rank: Rank) -> Operator:
    """Return the weighted sum of the topk expert outputs and the tp reduction; keeps the outputs that it weighs."""
    k, hidden, z = rank.model.topk, rank.model.hidden, rank.size
    whole = (rank.tokens, hidden)
    reduce = rank.exchange("reduce_scatter" if rank.sequence_parallel else "all_reduce", *whole)
    gather = rank.exchange("all_gather", *whole) if rank.sequence_parallel else ()
    joined = (add(rank, *whole),) if rank.model.shared_experts else ()
    return Operator(
        "unpermute",
        (copy(rank, "unpermute", *whole, (1 + k) * z), *joined, *reduce),
        (*gather, copy(rank, "unpermute_backward", *whole, (1 + 2 * k) * z)),
        saved=z * rank.tokens * k * hidden,
    )


# The way of tokens to experts on other ranks and back, as Megatron's all-to-all dispatcher goes it.
#
# Forward: all ranks tell each other how many rows they have for each expert; each copies its tokens to their topk experts,
# exchanges the rows over ep, gathers what the other slices of its experts received, and sorts it by expert. After the experts the
# same backwards, and a weighted sum. The gradients of the return travel out to the experts, those of the way out come back.
# Source: megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.


def dispatch(rank: Rank) -> Operator:
    """Return the way out; its gradient adds the topk copies up and meets those of router and shared experts."""
    shape, traffic = (rank.local, rank.model.hidden), (1 + rank.model.topk) * rank.size
    meetings = 2 if rank.model.shared_experts else 1
    return Operator(
        "dispatch",
        (
            counts(rank),
            copy(rank, "permute", *shape, traffic),
            *rank.across("dispatch"),
            *rank.sliced("all_gather"),
            *sort(rank),
        ),
        (
            *sort(rank),
            *rank.sliced("reduce_scatter"),
            *rank.across("combine"),
            copy(rank, "permute_backward", *shape, traffic),
            *(add(rank, *shape),) * meetings,
        ),
    )


def combine(rank: Rank) -> Operator:
    """Return the way back and the weighted sum of the topk outputs of each token; keeps the outputs that it weighs."""
    k, shape, z = rank.model.topk, (rank.local, rank.model.hidden), rank.size
    joined = (add(rank, *shape),) if rank.model.shared_experts else ()
    back = (*sort(rank), *rank.sliced("reduce_scatter"), *rank.across("combine"))
    return Operator(
        "combine",
        (*back, copy(rank, "unpermute", *shape, (1 + k) * z), *joined),
        (
            copy(rank, "unpermute_backward", *shape, (1 + 2 * k) * z),
            *rank.across("dispatch"),
            *rank.sliced("all_gather"),
            *sort(rank),
        ),
        saved=z * k * shape[0] * shape[1],
    )


def counts(rank: Rank) -> Collective:
    """Return the gathering of everyone's rows by expert, 8 bytes each, over the ranks that share all experts."""
    return Collective("tp_ep", "all_gather", 8.0 * (rank.model.experts or 1) * rank.ep * rank.parallelism.etp)


def sort(rank: Rank) -> Steps:
    """Return the copy of the received rows into the order of their experts, or back; one expert needs none."""
    if rank.experts == 1 or not rank.rows:
        return ()
    return (copy(rank, "sort_rows", rank.rows, rank.model.hidden, 2 * rank.size),)


def dense_experts(rank: Rank) -> tuple[Operator, ...]:
    """Return the experts that every token visits, as one dense MLP that each ep rank runs on its own tokens."""
    count = rank.model.shared_experts
    return dense(rank, "shared_", rank.ffn * count) if count else ()
