"""Self-attention: query/key/value linear, norms of heads, rotary positions, the core (flash or unfused), output linear."""

from __future__ import annotations

from clustersim.config.workload import Indexer, LatentAttention
from clustersim.model.context_attention import Core, context_attention, context_buffers, context_kept
from clustersim.model.elementwise import copy, dropout, dropout_backward, pointwise, residual
from clustersim.model.kernel import Kernel, attention, gemm, vector
from clustersim.model.linear import accumulate, column, dgrad, input_size, made, product, row, wgrad
from clustersim.model.lora import adapters
from clustersim.model.norm import norm, norm_kernels
from clustersim.model.operator import Operator, Output
from clustersim.model.sharding import ShardedModel, documents

CORE = "attention"
"""Name of the operator that selective recomputation reruns."""


_EAGER = {"rotation": (2, 1, 2, 2, 3), "rotation_backward": (2, 2, 1, 1, 1, 3, 1, 1, 3)}
"""Values per element that each kernel of an eager rotation reads and writes."""

ROTARY = "rotary"
"""Name of the operator that rotates queries and keys by their positions."""


def attention_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the operators of self-attention without its norm."""
    hidden, inner = shard.model.hidden, shard.heads * shard.dim
    pair, queries = 2 * shard.kv_heads * shard.dim, inner * (2 if shard.model.output_gate else 1)
    outputs = queries + pair
    copied = pair if shard.stacked and shard.kv_heads == shard.heads else 0
    qkv_saved = shard.size * shard.tokens * (outputs + copied)
    columns = (shard.heads + shard.kv_heads) * shard.dim
    parts = (("query_proj", queries), ("key_proj", pair // 2), ("value_proj", pair // 2))
    bias = shard.model.bias if shard.model.qkv_bias is None else shard.model.qkv_bias
    adapted = adapters(shard, "qkv", hidden, parts)  # adapters read the gathered input
    whole = not adapted
    return (
        column(shard, "qkv", hidden, outputs, bias=bias, saved=qkv_saved, parts=parts, apart=shard.apart, chunks=whole),
        *adapted,
        *((order_heads(shard, inner, pair),) if shard.stacked else ()),
        *((head_norms(shard),) if shard.model.qk_norm else ()),
        *((rotary(shard, columns),) if shard.model.positions == "rotary" else ()),
        core(shard, shard.kv_heads, shard.dim, shard.dim),
        *((output_gate(shard, inner),) if shard.model.output_gate else ()),
        row(shard, "projection", inner, hidden, bias=shard.model.bias, part="out_proj"),
        *adapters(shard, "projection", inner, (("out_proj", hidden),)),
        residual_part(shard, "attention_residual"),
    )


def output_gate(shard: ShardedModel, columns: int) -> Operator:
    """Return the product of attention's output with the sigmoid of its gate. It saves that output; the qkv linear saves the
    gate."""
    z, shape = shard.size, (shard.tokens, columns)
    forward, backward = (pointwise(shard, op, *shape, values * z) for op, values in (("silu", 3), ("silu_backward", 5)))
    return Operator(
        "output_gate", (forward,), (backward,), saved=z * shape[0] * columns, backward_alive=3 * z * shape[0] * columns
    )


def order_heads(shard: ShardedModel, inner: int, pair: int) -> Operator:
    """Return the copies that put queries, keys and values into sequence order, and keys next to values.

    Forward: all three, then keys and values joined and ordered. Backward: the gradients of keys and values joined, then those of
    all three; with as many key heads as query heads, these are also copied into the order of the linear's output (nanotron,
    models/llama.py, CausalSelfAttention.forward, and autograd's gradients of its views). `inner`: values of a token's queries,
    `pair`: of its keys and values.
    """
    again = inner + pair if pair == 2 * inner else 0
    steps = (("transpose", inner + pair), ("concatenate", pair), ("transpose", pair))
    back = (("concatenate", pair), ("concatenate", inner + pair), ("transpose", again))
    forward, backward = (
        tuple(copy(shard, op, shard.tokens, columns, 2 * shard.size) for op, columns in some if columns)
        for some in (steps, back)
    )
    return Operator("order_heads", forward, backward, backward_alive=2 * shard.size * shard.tokens * (inner + pair))


def residual_part(shard: ShardedModel, name: str) -> Operator:
    """Return bias, dropout and residual sum after a row-parallel linear. It saves the dropout mask, one byte per value."""
    rows, hidden = shard.local, shard.model.hidden
    late_bias = shard.model.bias and (shard.tp > 1 or not shard.eager)
    return Operator(
        name,
        residual(shard, hidden, late_bias),
        dropout_backward(shard, rows, hidden),
        saved=float(rows * hidden) if shard.model.dropout else 0.0,
        backward_alive=(2 if shard.model.dropout else 1) * shard.size * rows * hidden,
    )


def head_norms(shard: ShardedModel) -> Operator:
    """Return the norms of queries and keys, each over one head. They save their input."""
    z, dim = shard.size, shard.dim
    each, heads = (2 if shard.model.norm == "layernorm" else 1) * dim, (shard.heads, shard.kv_heads)
    rows = [shard.tokens * count for count in heads]
    both = [norm_kernels(shard, count, dim) for count in rows]
    weights = shard.replicated(2 * each)
    return Operator(
        "qk_norm",
        tuple(kernel for forward, _ in both for kernel in forward),
        tuple(kernel for _, backward in both for kernel in backward),
        accumulate(shard, 1, weights),
        parameters=weights,
        replicated=weights,
        saved=z * sum(rows) * dim,
        backward_alive=2 * z * sum(rows) * dim,
    )


def rotary(shard: ShardedModel, columns: int) -> Operator:
    """Return the rotation of queries and keys, together `columns` values per token.

    Fused in place, or eager as in Hugging Face: product, negated half, halves joined, product, sum; backward two products, a
    negated half, and for each half a zero tensor, a copy and a sum (autograd's slices).
    """
    z, rows = shard.size, shard.tokens
    steps = [(name, values) for name in ("rotation", "rotation_backward") for values in _EAGER[name]]
    if not shard.eager_rope:
        steps = [("rope", 2), ("rope_backward", 2)]
    kernels = [pointwise(shard, op, rows, columns, values * z) for op, values in steps]
    forward = tuple(one for one in kernels if not one.op.endswith("backward"))
    backward = tuple(one for one in kernels if one.op.endswith("backward"))
    return Operator(ROTARY, forward, backward, backward_alive=2 * z * rows * columns)


def core(shard: ShardedModel, kv_heads: int, dim: int, value_dim: int) -> Operator:
    """Return the attention core over heads whose queries and keys have width `dim` and whose values have width `value_dim`."""
    one = unfused if shard.training.attention == "unfused" else flash
    return one(shard, kv_heads, dim, value_dim)


def flash(shard: ShardedModel, kv_heads: int, dim: int, value_dim: int) -> Operator:
    """Return the fused core. It saves only its statistics, 4 bytes per query and head (the next linear saves its output)."""
    kept = 4.0 * shard.heads * shard.tokens
    kv_heads = shard.heads if "repeated" in shard.ring else kv_heads
    one = Core(shard.heads, kv_heads, dim, value_dim)
    alive = flash_gradients(shard, one)
    columns = shard.heads * value_dim
    if shard.cp > 1:
        kept += context_kept(shard, one)
    outputs = (Output("context", columns, kept + shard.size * shard.tokens * columns),)
    if shard.cp > 1:
        forward, backward = context_attention(shard, one)
        alive += context_buffers(shard, one)
    else:
        b, s = documents(shard.training)
        args = (shard.product, b, shard.heads, kv_heads, s, s, dim, shard.model.causal, value_dim, shard.model.window)
        named = "" if shard.training.attention == "flash" else shard.training.attention
        forward, backward = ((attention(op, *args)._replace(generation=named),) for op in ("forward", "backward"))
    return Operator(CORE, forward, backward, saved=kept, outputs=outputs, backward_alive=alive)


def flash_gradients(shard: ShardedModel, core: Core) -> float:
    """Return the bytes of the fused core's gradients: of output, queries, keys and values, and fp32 sums for the queries.

    Concurrent blocks of keys add to the gradients of the same queries (FlashAttention-2, section 3.2, and cuDNN).
    """
    queries = core.heads * core.dim
    each = core.heads * core.value_dim + queries + core.kv_heads * (core.dim + core.value_dim)
    return float(shard.tokens * (shard.size * each + 4 * queries))


def unfused(
    shard: ShardedModel, kv_heads: int, dim: int, value_dim: int, other: ShardedModel | None = None, name: str = CORE
) -> Operator:
    """Return the core as two GEMMs around a softmax. It saves the 5·a·s²·b bytes of Korthikanti et al. in 16 bits.

    A window masks scores and saves nothing. `other`: shapes whose tokens are the keys and whose mask applies; default: `shard`.
    """
    keyed = other or shard
    s, keys, batch = shard.training.seq, keyed.training.seq, shard.training.micro_batch * shard.heads
    elements, z = float(batch) * s * keys, shard.size

    def bmm(op: str, m: int, n: int, k: int) -> Kernel:
        return gemm("bmm", op, shard.product, batch, m, n, k)

    forward = (bmm("scores", s, keys, dim), *softmax(keyed, batch * s, keys), bmm("context", s, value_dim, keys))
    backward = (
        bmm("context_dgrad", s, keys, value_dim),
        bmm("context_wgrad", keys, value_dim, s),
        *softmax_backward(keyed, batch * s, keys),
        bmm("scores_dgrad", s, dim, keys),
        bmm("scores_wgrad", keys, dim, s),
    )
    repeat, merge = _grouped(keyed, kv_heads, dim + value_dim)
    wide, drop = _scores(keyed)[0], shard.model.dropout
    kept = elements * (wide + (z if drop or wide > z else 0) + drop)
    values = (shard.tokens * shard.heads + keyed.tokens * kv_heads) * (dim + value_dim)
    alive = z * (
        2 * elements + values
    )  # gradients of probabilities and scores, of the output and of queries, keys and values
    # PyTorch's batched products (torch.matmul) need the values of a head contiguous, and their gradients; Megatron's use strides
    order = (copy(shard, "order_heads", shard.tokens, values // shard.tokens, 2 * z),) if shard.eager else ()
    return Operator(name, (*order, *repeat, *forward), (*order, *backward, *merge), saved=kept, backward_alive=alive)


def _grouped(shard: ShardedModel, kv_heads: int, width: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return the copies that repeat key/value heads for the unfused GEMMs, and the sums that merge their gradients."""
    if kv_heads == shard.heads:
        return (), ()
    columns = kv_heads * width
    traffic = shard.size * (1 + shard.heads / kv_heads)
    names = ("repeat_kv", "repeat_kv_backward")
    repeat, merge = (copy(shard, op, shard.tokens, columns, traffic) for op in names)
    return (repeat,), (merge,)


def softmax(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return scale, mask, softmax and dropout of the scores. A fused softmax includes scale and mask.

    Scores with a shape that Megatron's fused kernel does not support are scaled, masked and normalized in fp32
    (forward_torch_softmax).
    """
    if shard.fused_softmax:
        return (_fused(shard, "fused_softmax", rows, columns, 1, 1), *dropout(shard, rows, columns))
    wide, dtype = _scores(shard)
    one = (vector("softmax", "softmax", dtype, rows, columns, 5.0, 2 * wide),)
    before = (pointwise(shard, "scale", rows, columns, 2 * wide), copy(shard, "mask", rows, columns, 2 * wide))
    apart = (*_cast(shard, "to_fp32", rows, columns), *before, *one, *_cast(shard, "from_fp32", rows, columns))
    return (*apart, *dropout(shard, rows, columns))


def softmax_backward(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the gradients of `softmax` in reverse order."""
    if shard.fused_softmax:
        return (*dropout_backward(shard, rows, columns), _fused(shard, "fused_softmax_backward", rows, columns, 2, 1))
    wide, dtype = _scores(shard)
    one = (vector("softmax", "softmax_backward", dtype, rows, columns, 5.0, 3 * wide),)
    # PyTorch multiplies gradient and output in a separate kernel (SoftMax.cu); Megatron's fused softmax does not
    before = (*_cast(shard, "to_fp32", rows, columns), pointwise(shard, "mul", rows, columns, 3 * wide))
    mask = (copy(shard, "mask", rows, columns, 2 * wide),) if shard.model.causal else ()
    after = (*mask, pointwise(shard, "scale", rows, columns, 2 * wide), *_cast(shard, "from_fp32", rows, columns))
    return (*dropout_backward(shard, rows, columns), *before, *one, *after)


def _fused(shard: ShardedModel, op: str, rows: int, columns: int, read: int, written: int) -> Kernel:
    """Return Megatron's fused softmax, which reads `read` tensors and writes `written`.

    A row stays in the registers of a warp. Of a causal row only the visible part is read, but all of it is written
    (megatron/fused_kernels/scaled_upper_triang_masked_softmax.h).
    """
    values = read * (0.5 if shard.model.causal else 1.0) + written
    return vector("softmax", op, shard.dtype, rows, columns, 5.0, values * shard.size)


def _scores(shard: ShardedModel) -> tuple[float, str]:
    """Return (bytes, data type) of a score in the softmax: the activations', or fp32 if Megatron's kernel does not support it."""
    own = shard.eager or shard.fused_softmax or shard.size >= 4
    return (shard.size, shard.dtype) if own else (4.0, "fp32")


def _cast(shard: ShardedModel, op: str, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the cast of scores to or from fp32; none if they are fp32."""
    wide, z = _scores(shard)[0], shard.size
    return (copy(shard, op, rows, columns, z + wide),) if wide > z else ()


def latent_attention_part(shard: ShardedModel, latent: LatentAttention) -> tuple[Operator, ...]:
    """Return the operators of latent attention without the norm of its block."""
    hidden, heads, kv = shard.model.hidden, shard.heads, latent.kv_lora_rank
    dim, rope = latent.qk_head_dim + latent.qk_pos_emb_head_dim, latent.qk_pos_emb_head_dim
    narrow = latent.q_lora_rank
    both = (("key_proj", heads * latent.qk_head_dim), ("value_proj", heads * latent.v_head_dim))
    kept = shard.size * shard.tokens * heads * (2 * dim + latent.v_head_dim)
    attention = core(shard, heads, dim, latent.v_head_dim)
    return (
        *((down(shard, "q_down", narrow),) if narrow else ()),
        _shared(shard, down(shard, "kv_down", kv + rope)),
        *((norm(shard, "q_norm", fork=False, width=narrow),) if narrow else ()),
        norm(shard, "kv_norm", fork=False, width=kv),
        column(shard, "q_up", narrow or hidden, heads * dim, bias=False, parts=(("query_proj", heads * dim),)),
        column(shard, "kv_up", kv, sum(columns for _, columns in both), bias=False, parts=both),
        *((rotary(shard, (heads + 1) * rope),) if shard.model.positions == "rotary" else ()),
        *((indexer_part(shard, shard.model.indexer, narrow or hidden),) if shard.model.indexer else ()),
        keys(shard, latent),
        attention._replace(saved=attention.saved + kept, kept_input=kept),
        row(shard, "projection", heads * latent.v_head_dim, hidden, bias=shard.model.bias, part="out_proj"),
        *adapters(shard, "projection", heads * latent.v_head_dim, (("out_proj", hidden),)),
        residual_part(shard, "attention_residual"),
    )


def indexer_part(shard: ShardedModel, indexer: Indexer, inputs: int) -> Operator:
    """Return the indexer, which scores all keys for every query and selects `window` of them, equal on every tp rank.

    Linears make queries from the latent, and one key and one weight per head from the block's input. Scores are one fused GEMM
    with ReLU and a sum over heads, from which top-k reads in fp32 (DeepSeek-V3.2, section 2.1, equation 1, and
    inference/model.py, Indexer). Its linears are trained by a separate loss on the detached input, so they compute no input
    gradient.
    """
    b, s = documents(shard.training)
    widths = ((inputs, indexer.heads * indexer.dim), (shard.model.hidden, indexer.dim + indexer.heads))
    linears = [kernel for one in widths for kernel in product(shard, *one)]
    share = 0.5 if shard.model.causal else 1.0
    shape = (b, s, s, indexer.heads * indexer.dim)
    scores = gemm("bmm", "indexer_scores", shard.product, *shape)
    written = b * s * (2.0 * shape[3] * shard.size + 4.0 * s * share)
    scores = scores._replace(flop=share * scores.flop, bytes=written)
    topk = copy(shard, "softmax_topk", b * s, max(round(s * share), 1), 4.0, "fp32")
    weights = shard.replicated(sum(rows * columns for rows, columns in widths) + 2 * indexer.dim)
    kept = shard.size * shard.tokens * sum(columns for _, columns in widths)
    back = (scores._replace(op="indexer_scores_dgrad", flop=2 * scores.flop, k=2 * scores.k),)
    gradients = tuple(kernel for one in widths for kernel in wgrad(shard, *one, False))
    return Operator(
        "indexer",
        (*linears, scores, topk),
        back,
        gradients,
        parameters=weights,
        replicated=weights,
        saved=kept,
        forward_alive=4.0 * b * s * s * share,
        backward_alive=4.0 * b * s * s * share,
    )


def _shared(shard: ShardedModel, linear: Operator) -> Operator:
    """Return a linear whose input is already saved by the linear of the queries; narrow GEMMs save their own cast of it."""
    return linear if shard.format else linear._replace(saved=0.0, kept_input=0.0)


def down(shard: ShardedModel, name: str, outputs: int) -> Operator:
    """Return the linear into a latent, replicated on every tp rank and applied to its own tokens. It saves only its input."""
    hidden, rows = shard.model.hidden, shard.local
    weights = shard.replicated(hidden * outputs)
    return Operator(
        name,
        product(shard, hidden, outputs, rows),
        dgrad(shard, hidden, outputs, rows),
        wgrad(shard, hidden, outputs, False, rows),
        parameters=weights,
        replicated=weights,
        saved=input_size(shard) * rows * hidden,
        kept_input=input_size(shard) * rows * hidden,
        backward_alive=shard.size * rows * (hidden + outputs) + made(shard, weights),
    )


def keys(shard: ShardedModel, latent: LatentAttention) -> Operator:
    """Return the linear to keys and values of all heads, and the copies that add the shared rotary part to the keys.

    One kernel splits them and writes both (Megatron's core/fusions/fused_mla_yarn_rope_apply.py, rotary_fwd_kv_kernel). With
    sequence parallelism the rotary part is gathered; its gradient is summed over heads and the other ranks' tokens.
    """
    rope, z = latent.qk_pos_emb_head_dim, shard.size
    own = latent.qk_head_dim + latent.v_head_dim
    shape, traffic = (shard.tokens, shard.heads * (own + rope)), z * (1 + own / (own + rope))
    sp = shard.sequence_parallel
    gather = shard.exchange("all_gather", shard.tokens, rope) if sp else ()
    reduce = shard.exchange("reduce_scatter" if sp else "all_reduce", shard.tokens, rope)
    return Operator(
        "keys",
        (*gather, copy(shard, "concatenate", *shape, traffic)),
        (copy(shard, "concatenate_backward", *shape, traffic), *reduce),
        backward_alive=traffic * shape[0] * shape[1],
    )
