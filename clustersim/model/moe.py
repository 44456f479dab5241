"""A mixture of experts: router, permutation of tokens to their experts, grouped GEMMs, weighted return.

Each rank holds 1/tp of every expert; or, with ep, a slice of experts / ep, to which the tokens' rows are sent (`dispatch`). Rows
are spread evenly over the experts of a rank.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence

from clustersim.model.attention import residual_part
from clustersim.model.elementwise import add, copy
from clustersim.model.kernel import APART, Kernel, gemm
from clustersim.model.linear import accumulate, cast, dgrad, input_size, made, product, recast, wgrad
from clustersim.model.mlp import activation_part, dense
from clustersim.model.operator import Awaited, Collective, Operator, Output, Started, Steps
from clustersim.model.sharding import ShardedModel, gated

ROUTER = "router"
"""Name of the router, whose GEMM is not one of the framework's linear layers."""
FC1, FC2 = "experts_fc1", "experts_fc2"
"""Names of the two linears of the experts."""
COUNTS = "tp_ep"
"""Group of ranks that exchange their numbers of rows per expert."""


def moe_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the operators of a mixture of experts without its norm."""
    if shard.parallelism.overlap.ep == "shared" and shard.ep > 1 and shard.model.shared_experts:
        first, *between, last = dense_experts(shard)
        halves = (under(dispatch(shard), (first, *between)), *routed(shard), under(combine(shard), (last,)))
    elif shard.parallelism.spread:
        halves = (dispatch(shard), *routed(shard), *dense_experts(shard), combine(shard))
    else:
        halves = (permute(shard), *routed(shard), *shared(shard), unpermute(shard))
    return (router(shard), *halves, residual_part(shard, "mlp_residual"))


def routed(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the two linears of the experts and the activation between them; a rank without rows only holds the weights.

    Fused GEMMs clamp, activate, add biases and cast before they write, forward and backward (Transformer Engine,
    pytorch/ops/fused/grouped_mlp.py).
    """
    ffn, hidden = shard.expert_ffn, shard.model.hidden
    inner = [(name, ffn) for name in ("mlpwi_0", "mlpwi_1")[: 2 if gated(shard.model) else 1]]
    parts = (
        experts(shard, FC1, hidden, inner),
        _between(shard, activation_part(shard, "experts_activation", shard.rows, ffn)),
        _biased(shard, experts(shard, FC2, ffn, [("mlpwo", hidden)])),
    )
    if shard.rows:
        return parts
    return tuple(part._replace(forward=(), backward_input=(), backward_weight=()) for part in parts)


def router(shard: ShardedModel) -> Operator:
    """Return the linear over experts, softmax and top-k, replicated on every tp rank. It saves its input and fp32 scores."""
    shard = shard.in_activation_type
    n, hidden = shard.model.experts or 1, shard.model.hidden
    weights = shard.replicated(n * hidden)
    topk = copy(shard, "softmax_topk", shard.local, n, 12.0, "fp32")
    return Operator(
        ROUTER,
        (*product(shard, hidden, n, shard.local), topk),
        (copy(shard, "softmax_topk_backward", shard.local, n, 12.0, "fp32"), *dgrad(shard, hidden, n, shard.local)),
        wgrad(shard, hidden, n, False, shard.local),
        parameters=weights,
        replicated=weights,
        saved=shard.local * (shard.size * hidden + 4.0 * n),
        kept_input=shard.local * shard.size * hidden,
        backward_alive=shard.local * (2 * shard.size * hidden + 8.0 * n) + shard.size * weights,
    )


def permute(shard: ShardedModel) -> Operator:
    """Return the copy of each token to its topk experts. Its backward pass sums the topk gradients and adds the router's."""
    k, hidden, z = shard.visits, shard.model.hidden, shard.size
    whole = (shard.tokens, hidden)
    gather = shard.exchange("all_gather", *whole) if shard.sequence_parallel else ()
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *whole)
    forward = copy(shard, "permute", *whole, (1 + k) * z)
    backward = summed(shard, copy(shard, "permute_backward", *whole, (1 + k) * z), k * shard.tokens)
    ahead, behind = weighed_rows(shard), padded_rows(shard)
    return Operator(
        "permute",
        (*gather, forward, *ahead[0], *behind),
        (*behind, *ahead[1], *backward, *reduce, add(shard, shard.local, hidden)),
        backward_alive=z * (1 + k) * shard.tokens * hidden,
    )


def experts(shard: ShardedModel, name: str, inputs: int, parts: Sequence[tuple[str, int]]) -> Operator:
    """Return one linear of all experts as a grouped GEMM with output `parts` (name, columns). It saves its permuted input.

    Narrow GEMMs cast the input and the output's gradient for the rows of all experts at once (Transformer Engine,
    pytorch/module/grouped_linear.py); rows sent in fp8 were cast as tokens before the exchange.
    """
    n, outputs = shard.experts, sum(columns for _, columns in parts)
    weights = n * inputs * outputs
    sent = shard.local if shard.parallelism.spread and shard.training.dispatch else shard.rows
    first, last = (sent if name == travels else shard.rows for travels in (FC1, FC2))
    taken_in = name if shard.training.fused_experts else None
    return Operator(
        name,
        (
            *(() if taken_in == FC2 else _casts(shard, first, inputs)),
            *_recast(shard, inputs, outputs),
            _grouped(shard, "forward", inputs, outputs),
        ),
        (
            *(() if taken_in == FC1 else _casts(shard, last, outputs)),
            *_recast(shard, outputs, inputs),
            _grouped(shard, "dgrad", outputs, inputs),
        ),
        (_grouped(shard, "wgrad", inputs, outputs), *_added(shard, n * inputs, outputs)),
        parameters=weights,
        saved=input_size(shard) * shard.rows * inputs,
        outputs=tuple(Output(part, columns, shard.size * shard.rows * columns) for part, columns in parts),
        kept_input=input_size(shard) * shard.rows * inputs,
        backward_alive=shard.size * shard.rows * (inputs + outputs) + made(shard, weights),
        expert=shard.parallelism.spread,
    )


def _added(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the kernels that add experts' weight gradients (rows × columns) to the accumulated ones; none if the GEMM adds."""
    if shard.format is None or not shard.wide_gradients:
        return accumulate(shard, rows, columns) if shard.one_product else ()
    # the sum that the GEMM adds to: cleared in fp32 (4 bytes per value), cast to 16 bits (6) and added there (6)
    return (copy(shard, "accumulate", rows, columns, 16.0),)


def _casts(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the cast of a grouped GEMM's operand, one kernel per expert if each has its own scales.

    It is one kernel only with delayed scaling (Transformer Engine, pytorch/csrc/extensions/cast.cpp, split_quantize).
    """
    found, form, n = cast(shard, rows, columns), shard.format, shard.experts
    if form is None or shard.eager or rows != shard.rows or not (form.scale or form.reads > 1):
        return found
    return tuple(one._replace(batch=n, m=-(-rows // n), generation=APART) for one in found)


def _recast(shard: ShardedModel, inputs: int, outputs: int) -> tuple[Kernel, ...]:
    """Return the casts of all experts' weights, one by one, if each pass casts them; a kernel that transposes reads them twice
    (torchao 01374eb, prototype/moe_training: triton_fp8_rowwise_3d_transpose_rhs)."""
    return tuple(one._replace(batch=shard.experts, generation=APART) for one in recast(shard, inputs, outputs, 2))


def _between(shard: ShardedModel, activation: Operator) -> Operator:
    """Return the activation of experts: without kernels if the GEMMs include it, otherwise after the clamp of its inputs.

    Megatron clamps before its fused kernel: each half of the input is clamped, and the halves are joined, with values of z bytes
    4z and 4z per output (megatron/core/fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl). Backward, autograd compares
    (z + 1) with one limit for the gate and two for the other half, joins those (3), selects (2z + 1) twice, and joins the halves
    (4z). The activation's input is saved in addition to the GEMM's output.
    """
    if shard.training.fused_experts:
        return activation._replace(forward=(), backward_input=())
    if shard.model.activation_clamp is None or shard.eager:
        return activation
    z, shape = shard.size, (shard.rows, shard.expert_ffn)
    forward = copy(shard, "clamp", *shape, 8.0 * z)
    backward = copy(shard, "clamp_backward", *shape, 11.0 * z + 8)
    return activation._replace(
        forward=(forward, *activation.forward),
        backward_input=(*activation.backward_input, backward),
        saved=activation.saved + 2.0 * z * shard.rows * shard.expert_ffn,
    )


def _biased(shard: ShardedModel, last: Operator) -> Operator:
    """Return the last linear of the experts with its biases, which Megatron adds expert by expert, weighted by the router.

    Weights of tokens are fp32, and so is the sum (megatron/core/transformer/moe/experts.py, _apply_bias: t + b * p, then cat).
    Bytes per value forward: 4 (b p) + 2 + 4 + 4 (sum) + 8 (cat) + 6 (to bf16). Backward: 6 (to fp32), 6 (gradient of t), 12 each
    for the gradients of b and p (product and sum), 4 (cat).
    """
    if not shard.model.bias or shard.eager or shard.training.fused_experts:
        return last
    z, shape = shard.size, (shard.rows, shard.model.hidden)
    forward = copy(shard, "expert_bias", *shape, 20.0 + 4 * z)
    backward = copy(shard, "expert_bias_backward", *shape, 32.0 + 4 * z)
    return last._replace(forward=(*last.forward, forward), backward_input=(backward, *last.backward_input))


def _grouped(shard: ShardedModel, op: str, inputs: int, outputs: int) -> Kernel:
    """Return a grouped GEMM with exact FLOP and bytes even if the experts do not divide the rows."""
    n, rows = shard.experts, shard.rows
    each = -(-rows // n)
    into = 0.0 if shard.one_product or not shard.adds_gradients else shard.gradient
    exact = 2.0 * rows * inputs * outputs
    z, written = input_size(shard), shard.size
    if op == "wgrad":
        kernel = gemm("grouped_gemm", op, shard.matrix, n, outputs, inputs, each, into, output=written)
        traffic = rows * (inputs + outputs) * z + n * inputs * outputs * (2 * into or written)
    else:
        kernel = gemm("grouped_gemm", op, shard.matrix, n, each, outputs, inputs, output=written)
        traffic = rows * inputs * z + n * inputs * outputs * z + rows * outputs * written
    # pytorch/module/grouped_linear.py: one cuBLAS GEMM per expert, on four streams
    return kernel._replace(flop=exact, bytes=float(traffic), generation="" if shard.one_product else APART)


def shared(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the shared experts without exchanges: their output joins the routed experts' before the reduction."""
    return tuple(
        part._replace(
            forward=tuple(step for step in part.forward if isinstance(step, Kernel)),
            backward_input=tuple(step for step in part.backward_input if isinstance(step, Kernel)),
        )
        for part in dense_experts(shard)
    )


def unpermute(shard: ShardedModel) -> Operator:
    """Return the weighted sum of the topk expert outputs and the tp reduction."""
    k, hidden, z = shard.visits, shard.model.hidden, shard.size
    whole = (shard.tokens, hidden)
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *whole)
    gather = shard.exchange("all_gather", *whole) if shard.sequence_parallel else ()
    joined = (add(shard, *whole),) if shard.model.shared_experts else ()
    weights, back = weighed_outputs(shard, k * shard.tokens)
    return Operator(
        "unpermute",
        (
            *padded_rows(shard),
            *weights,
            *summed(shard, copy(shard, "unpermute", *whole, (1 + k) * z), k * shard.tokens),
            *joined,
            *reduce,
        ),
        (*gather, copy(shard, "unpermute_backward", *whole, unpermuted(shard) * z), *back, *padded_rows(shard)),
        saved=weighed(shard, shard.tokens),
        forward_alive=z * (1 + k) * shard.tokens * hidden + sum(z * one.m * one.n for one in weights),
        backward_alive=z * (1 + k) * shard.tokens * hidden,
    )


def summed(shard: ShardedModel, fused: Kernel, rows: float, tokens: float | None = None) -> tuple[Kernel, ...]:
    """Return the kernels that sum rows of experts into tokens: `fused`, or a cleared tensor and atomic additions.

    Megatron without --moe-permute-fusion calls scatter_add_, and index_select, whose gradient is index_add_
    (core/transformer/moe/moe_utils.py; PyTorch's derivatives.yaml). Indexing, as in Hugging Face's models, sorts in its gradient,
    which took hardly longer than one fused kernel (docs/measured-h200.md). `tokens`: number of tokens, if `fused` has other rows.
    """
    if not shard.scatters_rows or (shard.eager and fused.op == "permute_backward"):
        return (fused,)
    z, hidden = shard.size, shard.model.hidden
    cleared = copy(shard, "clear", fused.m if tokens is None else round(tokens), hidden, z)
    return (cleared, copy(shard, "scatter_rows", round(rows), hidden, 3 * z))


def weighed_outputs(shard: ShardedModel, rows: float) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return the kernels that multiply rows of outputs by their weights, forward and backward, if these are separate kernels.

    The gradient of the rows reads and writes a value, the product for that of the weights reads two and writes one, and its sum
    reads one.
    """
    if not shard.weighs_rows:
        return (), ()
    shape, z = (round(rows), shard.model.hidden), shard.size
    return (copy(shard, "weigh_rows", *shape, 2 * z),), (copy(shard, "weigh_rows_backward", *shape, 6 * z),)


def unpermuted(shard: ShardedModel) -> float:
    """Return the values that the gradient of the experts' sum reads and writes, per value of a token.

    Each row is written, and read where the kernel also makes the gradient of its weight.
    """
    return 1 + (1 if shard.scatters_rows else 2) * shard.visits


def weighed_rows(shard: ShardedModel) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return the kernels that multiply rows by their router weights, forward and backward, if these are separate kernels.

    They are in fp32 (torchtitan, models/common/moe.py, score_before_experts). A value is read and written; backward, gradient and
    row are read, and both gradients written.
    """
    if not shard.separate_rows:
        return (), ()
    shape, z = (shard.local, shard.model.hidden), shard.visits * shard.size
    return (copy(shard, "weigh_rows", *shape, 2 * z),), (copy(shard, "weigh_rows_backward", *shape, 3 * z),)


def padded_rows(shard: ShardedModel) -> tuple[Kernel, ...]:
    """Return the copies of rows to padded places, where each expert's rows begin at a multiple that GEMMs need, or back.

    torchtitan, models/common/moe.py, indices_padding_wrapper; with experts on several ranks, one kernel also sorts.
    """
    if not shard.separate_rows or shard.parallelism.spread:
        return ()
    return (copy(shard, "pad_rows", shard.rows, shard.model.hidden, 2 * shard.size),)


def weighed(shard: ShardedModel, tokens: int) -> float:
    """Return the bytes of the experts' outputs that are saved for weighting; 0 if weights are applied in the activation.

    Megatron applies them there since 2025 (core/transformer/moe/experts.py, weighted_bias_swiglu_impl).
    """
    return shard.size * shard.visits * tokens * shard.model.hidden if shard.eager or shard.weighs_rows else 0.0


# The way of tokens to experts on other ranks and back, as in Megatron's all-to-all dispatcher. Forward: all ranks exchange their
# numbers of rows per expert; each copies its tokens to their topk experts, exchanges the rows over ep, gathers the rows that the
# other slices of its experts received, and sorts them by expert. After the experts the same backwards, and a weighted sum.
# Gradients of the combine travel like a dispatch, those of the dispatch like a combine. Source:
# megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher. DeepEP reads tokens in place, sends each once to
# a rank, and sums on the way back: rows are copied from the tokens that arrived, and summed before they leave (fused_a2a.py and
# MoEFlexTokenDispatcher there).


def dispatch(shard: ShardedModel) -> Operator:
    """Return the dispatch of rows. Its backward pass sums the topk gradients and adds those of router and shared experts."""
    shape, meetings = (shard.local, shard.model.hidden), 2 if shard.model.shared_experts else 1
    return Operator(
        "dispatch",
        (*counts(shard), *weighed_rows(shard)[0], *_out(shard, "permute", 1 + shard.visits)),
        (
            *_back(shard, "permute_backward", 1 + shard.visits),
            *weighed_rows(shard)[1],
            *(add(shard, *shape),) * meetings,
        ),
        outputs=(Output("dispatch", shape[1], shard.size * shard.rows * shape[1]),),
        forward_alive=travelling(shard),
        backward_alive=travelling(shard),
    )


def _out(shard: ShardedModel, name: str, moved: float, weights: Steps = ()) -> Steps:
    """Return the steps of a dispatch, with the gradients of the `weights` after the copy of tokens to their rows.

    moved: values that this copy reads and writes, per value of a token.
    """
    shape = shard.local, shard.model.hidden
    send, gather = shard.across("dispatch"), shard.sliced("all_gather")
    if shard.arrived is not None:
        return (*send, *gather, _rows_of(shard, name), *weights)
    return (copy(shard, name, *shape, moved * shard.size), *weights, *send, *gather, *sort(shard))


def _back(shard: ShardedModel, name: str, moved: float, weights: Steps = ()) -> Steps:
    """Return the steps of a combine, at whose end rows are weighed (`weights`) and summed by token. `moved` is as in `_out`."""
    shape = shard.local, shard.model.hidden
    gather, send = shard.sliced("reduce_scatter"), shard.across("combine")
    if shard.arrived is not None:
        return (*weights, *summed(shard, _rows_of(shard, name), shard.rows, shard.arrived), *gather, *send)
    last = copy(shard, name, *shape, moved * shard.size)
    return (*sort(shard), *gather, *send, *weights, *summed(shard, last, shard.visits * shape[0]))


def _rows_of(shard: ShardedModel, name: str) -> Kernel:
    """Return the copy between tokens that arrived and the rows of their experts."""
    each = 1 + (shard.arrived or 0.0) / shard.rows if shard.rows else 1.0
    return copy(shard, name, shard.rows, shard.model.hidden, each * shard.size)


def travelling(shard: ShardedModel) -> float:
    """Return the bytes of the rows that a rank sends plus those that it receives."""
    sent = shard.local * shard.visits if shard.arrived is None else shard.arrived
    return shard.size * shard.model.hidden * (sent + shard.rows)


def combine(shard: ShardedModel) -> Operator:
    """Return the combine of rows and the weighted sum of the topk outputs of each token.

    Rows sent and received by the dispatch stay allocated until the layer ends (moe_layer.py, forward holds them), in addition to
    those of the combine.
    """
    k, shape, z = shard.visits, (shard.local, shard.model.hidden), shard.size
    joined = (add(shard, *shape),) if shard.model.shared_experts else ()
    weights, back = weighed_outputs(shard, k * shape[0] if shard.arrived is None else shard.rows)
    return Operator(
        "combine",
        (*_back(shard, "unpermute", 1 + k, weights), *joined),
        _out(shard, "unpermute_backward", unpermuted(shard), back),
        outputs=(Output("combine", shape[1], z * shape[0] * k * shape[1]),),
        saved=weighed(shard, shape[0]),
        forward_alive=2 * travelling(shard) + sum(z * one.m * one.n for one in weights),
        backward_alive=travelling(shard) + z * shape[0] * shape[1],
    )


def under(exchange: Operator, parts: tuple[Operator, ...]) -> Operator:
    """Return an exchange over ep that overlaps other operators: all of them forward, their input gradients backward.

    As for shared experts in Megatron (core/transformer/moe/shared_experts.py); weight gradients come after.
    """
    forward = tuple(step for part in parts for step in part.forward)
    backward = tuple(step for part in reversed(parts) for step in part.backward_input)
    return exchange._replace(
        forward=_beside(exchange.forward, forward),
        backward_input=_beside(exchange.backward_input, backward),
        backward_weight=tuple(step for part in reversed(parts) for step in part.backward_weight),
        parameters=sum(part.parameters for part in parts),
        replicated=sum(part.replicated for part in parts),
        saved=exchange.saved + sum(part.saved for part in parts),
        backward_alive=exchange.backward_alive + max((part.backward_alive for part in parts), default=0.0),
        outputs=(),
        kept_input=sum(part.kept_input for part in parts),
    )


def _beside(steps: Steps, others: Steps) -> Steps:
    """Return steps whose exchange over ep overlaps the steps `others`."""
    [place] = (i for i, step in enumerate(steps) if isinstance(step, Collective) and step.group == "ep")
    call = typing.cast(Collective, steps[place])
    return (*steps[:place], Started(call), *others, Awaited(call.group), *steps[place + 1 :])


def counts(shard: ShardedModel) -> Steps:
    """Return the all-gather of rows per expert, 8 bytes each, over the ranks that share all experts; nothing for one rank."""
    ranks = shard.ep * shard.parallelism.etp
    return (Collective(COUNTS, "all_gather", 8.0 * (shard.model.experts or 1) * ranks),) if ranks > 1 else ()


def sort(shard: ShardedModel) -> Steps:
    """Return the copy of the received rows into the order of their experts, or back; nothing for a single expert."""
    if shard.experts == 1 or not shard.rows:
        return ()
    return (copy(shard, "sort_rows", shard.rows, shard.model.hidden, 2 * shard.size),)


def dense_experts(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the shared experts as one dense MLP that each ep rank runs on its own tokens.

    The router saves their input; narrow GEMMs save a separate cast of it.
    """
    if not shard.model.shared_experts:
        return ()
    first, *others = dense(shard, "shared_", shard.shared_ffn)
    if shard.format is None:
        first = first._replace(saved=first.saved - first.kept_input, kept_input=0.0)
    return (first, *others)
