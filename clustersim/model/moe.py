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
from clustersim.model.linear import accumulate, cast, dgrad, gradient_bytes, input_size, product, recast, wgrad
from clustersim.model.mlp import activation_part, dense
from clustersim.model.operator import Awaited, Collective, Operator, Output, Started, Steps
from clustersim.model.sharding import ShardedModel, gated

ROUTER = "router"
"""Name of the router's operator, whose GEMM is not one of the framework's linear layers."""
FC1, FC2 = "experts_fc1", "experts_fc2"
"""Names of the operators of the two linears of the experts."""
COUNTS = "tp_ep"
"""Family of the groups of ranks that exchange their numbers of rows per expert."""


def moe_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the operators of a mixture of experts with the residual sum, without its norm, in run order."""
    if shard.parallelism.overlap.ep == "shared" and shard.ep > 1 and shard.model.shared_experts:
        first, *between, last = dense_experts(shard)
        halves = (overlap(dispatch(shard), (first, *between)), *routed(shard), overlap(combine(shard), (last,)))
    elif shard.parallelism.spread:
        halves = (dispatch(shard), *routed(shard), *dense_experts(shard), combine(shard))
    else:
        halves = (permute(shard), *routed(shard), *unexchanged_shared(shard), unpermute(shard))
    return (router(shard), *halves, residual_part(shard, "mlp_residual"))


def routed(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the two linears of the routed experts and the activation between them; without steps on a rank without rows.

    Fused GEMMs clamp, activate, add biases and cast before they write, forward and backward (Transformer Engine,
    pytorch/ops/fused/grouped_mlp.py).
    """
    ffn, hidden = shard.expert_ffn, shard.model.hidden
    inner = [(name, ffn) for name in ("mlpwi_0", "mlpwi_1")[: 2 if gated(shard.model) else 1]]
    parts = (
        experts(shard, FC1, hidden, inner),
        _clamped(shard, activation_part(shard, "experts_activation", shard.rows, ffn)),
        _with_biases(shard, experts(shard, FC2, ffn, [("mlpwo", hidden)])),
    )
    if shard.rows:
        return parts
    return tuple(part._replace(forward=(), backward_input=(), backward_weight=()) for part in parts)


def router(shard: ShardedModel) -> Operator:
    """Return the linear over experts, softmax and top-k, replicated on every tp rank, as one operator.

    It saves its input and fp32 scores.
    """
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
        saved_input=shard.local * shard.size * hidden,
        backward_alive=shard.local * (2 * shard.size * hidden + 8.0 * n) + shard.size * weights,
    )


def permute(shard: ShardedModel) -> Operator:
    """Return the copy of each token to its topk experts, if the rank has a part of all experts. Its backward pass sums the topk
    gradients and adds the router's."""
    k, hidden, z = shard.rows_per_token, shard.model.hidden, shard.size
    shape = (shard.tokens, hidden)
    gather = shard.exchange("all_gather", *shape) if shard.sequence_parallel else ()
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *shape)
    forward = copy(shard, "permute", *shape, (1 + k) * z)
    backward = sum_rows(shard, copy(shard, "permute_backward", *shape, (1 + k) * z), k * shard.tokens)
    weights, padding = weigh_inputs(shard), pad_rows(shard)
    return Operator(
        "permute",
        (*gather, forward, *weights[0], *padding),
        (*padding, *weights[1], *backward, *reduce, add(shard, shard.local, hidden)),
        backward_alive=z * (1 + k) * shard.tokens * hidden,
    )


def experts(shard: ShardedModel, name: str, inputs: int, parts: Sequence[tuple[str, int]]) -> Operator:
    """Return one linear of all experts of the rank as a grouped GEMM. It saves its permuted input.

    name: `FC1` or `FC2`. parts: (name, columns) of each part of the output that recomputation can save.

    Narrow GEMMs cast the input and the output's gradient for the rows of all experts at once (Transformer Engine,
    pytorch/module/grouped_linear.py); rows sent in fp8 were cast as tokens before the exchange.
    """
    n, outputs = shard.experts, sum(columns for _, columns in parts)
    weights = n * inputs * outputs
    sent = shard.local if shard.parallelism.spread and shard.training.dispatch else shard.rows
    first, last = (sent if name == travels else shard.rows for travels in (FC1, FC2))
    fused_into = name if shard.training.fused_experts else None
    return Operator(
        name,
        (
            *(() if fused_into == FC2 else _casts(shard, first, inputs)),
            *_recast(shard, inputs, outputs),
            _grouped(shard, "forward", inputs, outputs),
        ),
        (
            *(() if fused_into == FC1 else _casts(shard, last, outputs)),
            *_recast(shard, outputs, inputs),
            _grouped(shard, "dgrad", outputs, inputs),
        ),
        (_grouped(shard, "wgrad", inputs, outputs), *_accumulations(shard, n * inputs, outputs)),
        parameters=weights,
        saved=input_size(shard) * shard.rows * inputs,
        outputs=tuple(Output(part, columns, shard.size * shard.rows * columns) for part, columns in parts),
        saved_input=input_size(shard) * shard.rows * inputs,
        backward_alive=shard.size * shard.rows * (inputs + outputs) + gradient_bytes(shard, weights),
        expert=shard.parallelism.spread,
    )


def _accumulations(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the kernels that add experts' weight gradients (rows × columns) to the accumulated ones; () if the GEMM adds."""
    if shard.format is None or not shard.wide_gradients:
        return accumulate(shard, rows, columns) if shard.single_grouped_kernel else ()
    # the sum that the GEMM adds to: cleared in fp32 (4 bytes per value), cast to 16 bits (6) and added there (6)
    return (copy(shard, "accumulate", rows, columns, 16.0),)


def _casts(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the cast of a grouped GEMM's rows×columns operand, one kernel per expert if each has its own scales.

    It is one kernel only with delayed scaling (Transformer Engine, pytorch/csrc/extensions/cast.cpp, split_quantize).
    """
    casts, form, n = cast(shard, rows, columns), shard.format, shard.experts
    if form is None or shard.eager or rows != shard.rows or not (form.scale or form.reads > 1):
        return casts
    return tuple(kernel._replace(batch=n, m=-(-rows // n), generation=APART) for kernel in casts)


def _recast(shard: ShardedModel, inputs: int, outputs: int) -> tuple[Kernel, ...]:
    """Return the casts of all experts' weights, one by one, if each pass casts them, otherwise (). A kernel that transposes reads
    them twice (torchao 01374eb, prototype/moe_training: triton_fp8_rowwise_3d_transpose_rhs)."""
    return tuple(kernel._replace(batch=shard.experts, generation=APART) for kernel in recast(shard, inputs, outputs, 2))


def _clamped(shard: ShardedModel, activation: Operator) -> Operator:
    """Return the activation of experts with the clamp of its inputs, if the model has one; no kernels if the GEMMs include it.

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


def _with_biases(shard: ShardedModel, last: Operator) -> Operator:
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
    """Return a grouped GEMM with exact FLOP and bytes even if the experts do not divide the rows. op: `forward`, `dgrad` or
    `wgrad`. inputs, outputs: columns of its input and output; of the linear for `wgrad`."""
    n, rows = shard.experts, shard.rows
    each = -(-rows // n)
    accumulated = 0.0 if shard.single_grouped_kernel or not shard.adds_gradients else shard.gradient
    exact = 2.0 * rows * inputs * outputs
    z, written = input_size(shard), shard.size
    if op == "wgrad":
        kernel = gemm("grouped_gemm", op, shard.linear_dtype, n, outputs, inputs, each, accumulated, output=written)
        traffic = rows * (inputs + outputs) * z + n * inputs * outputs * (2 * accumulated or written)
    else:
        kernel = gemm("grouped_gemm", op, shard.linear_dtype, n, each, outputs, inputs, output=written)
        traffic = rows * inputs * z + n * inputs * outputs * z + rows * outputs * written
    # pytorch/module/grouped_linear.py: one cuBLAS GEMM per expert, on four streams
    return kernel._replace(flop=exact, bytes=float(traffic), generation="" if shard.single_grouped_kernel else APART)


def unexchanged_shared(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the shared experts without tp collectives: their output joins the routed experts' before the reduction."""
    return tuple(
        part._replace(
            forward=tuple(step for step in part.forward if isinstance(step, Kernel)),
            backward_input=tuple(step for step in part.backward_input if isinstance(step, Kernel)),
        )
        for part in dense_experts(shard)
    )


def unpermute(shard: ShardedModel) -> Operator:
    """Return the weighted sum of the topk expert outputs and the tp reduction, if the rank has a part of all experts."""
    k, hidden, z = shard.rows_per_token, shard.model.hidden, shard.size
    shape = (shard.tokens, hidden)
    reduce = shard.exchange("reduce_scatter" if shard.sequence_parallel else "all_reduce", *shape)
    gather = shard.exchange("all_gather", *shape) if shard.sequence_parallel else ()
    shared_sum = (add(shard, *shape),) if shard.model.shared_experts else ()
    weights, weights_back = weigh_outputs(shard, k * shard.tokens)
    return Operator(
        "unpermute",
        (
            *pad_rows(shard),
            *weights,
            *sum_rows(shard, copy(shard, "unpermute", *shape, (1 + k) * z), k * shard.tokens),
            *shared_sum,
            *reduce,
        ),
        (
            *gather,
            copy(shard, "unpermute_backward", *shape, unpermute_values(shard) * z),
            *weights_back,
            *pad_rows(shard),
        ),
        saved=saved_output_bytes(shard, shard.tokens),
        forward_alive=z * (1 + k) * shard.tokens * hidden + sum(z * kernel.m * kernel.n for kernel in weights),
        backward_alive=z * (1 + k) * shard.tokens * hidden,
    )


def sum_rows(shard: ShardedModel, fused: Kernel, rows: float, tokens: float | None = None) -> tuple[Kernel, ...]:
    """Return the kernels that sum `rows` rows of experts into tokens: `fused`, or a cleared tensor and atomic additions.

    Megatron without --moe-permute-fusion calls scatter_add_, and index_select, whose gradient is index_add_
    (core/transformer/moe/moe_utils.py; PyTorch's derivatives.yaml). Indexing, as in Hugging Face's models, sorts in its gradient,
    which took hardly longer than one fused kernel (docs/measured-h200.md). `tokens`: number of tokens; None: the rows of `fused`.
    """
    if not shard.scatters_rows or (shard.eager and fused.op == "permute_backward"):
        return (fused,)
    z, hidden = shard.size, shard.model.hidden
    cleared = copy(shard, "clear", fused.m if tokens is None else round(tokens), hidden, z)
    return (cleared, copy(shard, "scatter_rows", round(rows), hidden, 3 * z))


def weigh_outputs(shard: ShardedModel, rows: float) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return (forward, backward) kernels that multiply `rows` rows of outputs by their weights; empty if other kernels do it.

    The gradient of the rows reads and writes a value, the product for that of the weights reads two and writes one, and its sum
    reads one.
    """
    if not shard.weighs_rows:
        return (), ()
    shape, z = (round(rows), shard.model.hidden), shard.size
    return (copy(shard, "weigh_rows", *shape, 2 * z),), (copy(shard, "weigh_rows_backward", *shape, 6 * z),)


def unpermute_values(shard: ShardedModel) -> float:
    """Return the number of values that the gradient of the experts' sum reads and writes, per value of a token.

    Each row is written, and read where the kernel also makes the gradient of its weight.
    """
    return 1 + (1 if shard.scatters_rows else 2) * shard.rows_per_token


def weigh_inputs(shard: ShardedModel) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return (forward, backward) kernels that multiply rows by their weights before the experts; empty unless `separate_rows`.

    They are in fp32 (torchtitan, models/common/moe.py, score_before_experts). A value is read and written; backward, gradient and
    row are read, and both gradients written.
    """
    if not shard.separate_rows:
        return (), ()
    shape, z = (shard.local, shard.model.hidden), shard.rows_per_token * shard.size
    return (copy(shard, "weigh_rows", *shape, 2 * z),), (copy(shard, "weigh_rows_backward", *shape, 3 * z),)


def pad_rows(shard: ShardedModel) -> tuple[Kernel, ...]:
    """Return the copy of rows to padded places, where each expert's rows begin at a multiple that GEMMs need, or back; () if none
    pads.

    torchtitan, models/common/moe.py, indices_padding_wrapper; with experts on several ranks, one kernel also sorts.
    """
    if not shard.separate_rows or shard.parallelism.spread:
        return ()
    return (copy(shard, "pad_rows", shard.rows, shard.model.hidden, 2 * shard.size),)


def saved_output_bytes(shard: ShardedModel, tokens: int) -> float:
    """Return the bytes of the experts' outputs for `tokens` tokens that are saved for weighting; 0 if the activation weighs.

    Megatron's activation applies the weights since 2025 (core/transformer/moe/experts.py, weighted_bias_swiglu_impl).
    """
    return shard.size * shard.rows_per_token * tokens * shard.model.hidden if shard.eager or shard.weighs_rows else 0.0


# The way of tokens to experts on other ranks and back, as in Megatron's all-to-all dispatcher. Forward: all ranks exchange their
# numbers of rows per expert; each copies its tokens to their topk experts, exchanges the rows over ep, gathers the rows that the
# other slices of its experts received, and sorts them by expert. After the experts the same backwards, and a weighted sum.
# Gradients of the combine travel like a dispatch, those of the dispatch like a combine. Source:
# megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher. DeepEP reads tokens in place, sends each once to
# a rank, and sums on the way back: rows are copied from the tokens that arrived, and summed before they leave (fused_a2a.py and
# MoEFlexTokenDispatcher there).


def dispatch(shard: ShardedModel) -> Operator:
    """Return the dispatch of rows. Its backward pass sums the topk gradients and adds those of router and shared experts."""
    shape, gradient_sums = (shard.local, shard.model.hidden), 2 if shard.model.shared_experts else 1
    return Operator(
        "dispatch",
        (*count_exchange(shard), *weigh_inputs(shard)[0], *_dispatch_steps(shard, "permute", 1 + shard.rows_per_token)),
        (
            *_combine_steps(shard, "permute_backward", 1 + shard.rows_per_token),
            *weigh_inputs(shard)[1],
            *(add(shard, *shape),) * gradient_sums,
        ),
        outputs=(Output("dispatch", shape[1], shard.size * shard.rows * shape[1]),),
        forward_alive=exchanged_bytes(shard),
        backward_alive=exchanged_bytes(shard),
    )


def _dispatch_steps(shard: ShardedModel, name: str, moved: float, weights: Steps = ()) -> Steps:
    """Return the steps of a dispatch. weights: steps after the copy of tokens to their rows. name: operation of this copy. moved:
    number of values that it reads and writes, per value of a token."""
    shape = shard.local, shard.model.hidden
    send, gather = shard.expert_exchange("dispatch"), shard.slice_exchange("all_gather")
    if shard.received_tokens is not None:
        return (*send, *gather, _row_copy(shard, name), *weights)
    return (copy(shard, name, *shape, moved * shard.size), *weights, *send, *gather, *sort_rows(shard))


def _combine_steps(shard: ShardedModel, name: str, moved: float, weights: Steps = ()) -> Steps:
    """Return the steps of a combine. weights: steps before the sum of rows by token. name: operation of this sum. moved: number
    of values that it reads and writes, per value of a token."""
    shape = shard.local, shard.model.hidden
    gather, send = shard.slice_exchange("reduce_scatter"), shard.expert_exchange("combine")
    if shard.received_tokens is not None:
        return (*weights, *sum_rows(shard, _row_copy(shard, name), shard.rows, shard.received_tokens), *gather, *send)
    last = copy(shard, name, *shape, moved * shard.size)
    return (*sort_rows(shard), *gather, *send, *weights, *sum_rows(shard, last, shard.rows_per_token * shape[0]))


def _row_copy(shard: ShardedModel, name: str) -> Kernel:
    """Return the copy, of operation `name`, from received tokens to the rows of their experts or back."""
    each = 1 + (shard.received_tokens or 0.0) / shard.rows if shard.rows else 1.0
    return copy(shard, name, shard.rows, shard.model.hidden, each * shard.size)


def exchanged_bytes(shard: ShardedModel) -> float:
    """Return the bytes of the rows that a rank sends in a dispatch plus those that it receives."""
    sent = shard.local * shard.rows_per_token if shard.received_tokens is None else shard.received_tokens
    return shard.size * shard.model.hidden * (sent + shard.rows)


def combine(shard: ShardedModel) -> Operator:
    """Return the combine of rows and the weighted sum of the topk outputs of each token.

    Rows sent and received by the dispatch stay allocated until the layer ends (moe_layer.py, forward holds them), in addition to
    those of the combine.
    """
    k, shape, z = shard.rows_per_token, (shard.local, shard.model.hidden), shard.size
    shared_sum = (add(shard, *shape),) if shard.model.shared_experts else ()
    weights, weights_back = weigh_outputs(shard, k * shape[0] if shard.received_tokens is None else shard.rows)
    return Operator(
        "combine",
        (*_combine_steps(shard, "unpermute", 1 + k, weights), *shared_sum),
        _dispatch_steps(shard, "unpermute_backward", unpermute_values(shard), weights_back),
        outputs=(Output("combine", shape[1], z * shape[0] * k * shape[1]),),
        saved=saved_output_bytes(shard, shape[0]),
        forward_alive=2 * exchanged_bytes(shard) + sum(z * kernel.m * kernel.n for kernel in weights),
        backward_alive=exchanged_bytes(shard) + z * shape[0] * shape[1],
    )


def overlap(exchange: Operator, parts: tuple[Operator, ...]) -> Operator:
    """Return `exchange` (a dispatch or combine) merged with the operators `parts`, whose steps its ep collective overlaps.

    Forward it overlaps all their steps, backward their input gradients.

    As for shared experts in Megatron (core/transformer/moe/shared_experts.py); weight gradients come after.
    """
    forward = tuple(step for part in parts for step in part.forward)
    backward = tuple(step for part in reversed(parts) for step in part.backward_input)
    return exchange._replace(
        forward=_overlap_step(exchange.forward, forward),
        backward_input=_overlap_step(exchange.backward_input, backward),
        backward_weight=tuple(step for part in reversed(parts) for step in part.backward_weight),
        parameters=sum(part.parameters for part in parts),
        replicated=sum(part.replicated for part in parts),
        saved=exchange.saved + sum(part.saved for part in parts),
        backward_alive=exchange.backward_alive + max((part.backward_alive for part in parts), default=0.0),
        outputs=(),
        saved_input=sum(part.saved_input for part in parts),
    )


def _overlap_step(steps: Steps, others: Steps) -> Steps:
    """Return `steps` with the steps `others` between start and end of their only collective over ep."""
    [index] = (i for i, step in enumerate(steps) if isinstance(step, Collective) and step.group == "ep")
    call = typing.cast(Collective, steps[index])
    return (*steps[:index], Started(call), *others, Awaited(call.group), *steps[index + 1 :])


def count_exchange(shard: ShardedModel) -> Steps:
    """Return (all-gather of rows per expert, 8 bytes each,) over the ranks that share all experts; () for one rank."""
    ranks = shard.ep * shard.parallelism.etp
    return (Collective(COUNTS, "all_gather", 8.0 * (shard.model.experts or 1) * ranks),) if ranks > 1 else ()


def sort_rows(shard: ShardedModel) -> Steps:
    """Return (copy of the received rows into the order of their experts, or back,); () for one expert or no rows."""
    if shard.experts == 1 or not shard.rows:
        return ()
    return (copy(shard, "sort_rows", shard.rows, shard.model.hidden, 2 * shard.size),)


def dense_experts(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the shared experts as one dense MLP that each ep rank runs on its own tokens; () without shared experts.

    The router saves their input; narrow GEMMs save a separate cast of it.
    """
    if not shard.model.shared_experts:
        return ()
    first, *others = dense(shard, "shared_", shard.shared_ffn)
    if shard.format is None:
        first = first._replace(saved=first.saved - first.saved_input, saved_input=0.0)
    return (first, *others)
