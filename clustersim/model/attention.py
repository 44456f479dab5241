"""Self-attention: query/key/value linear, norms of heads, rotary positions, the core (flash or unfused), output linear."""

from __future__ import annotations

from clustersim.config.workload import Indexer, LatentAttention
from clustersim.model.context_attention import Core, context_attention, context_buffer_bytes, context_saved_bytes
from clustersim.model.elementwise import copy, dropout, dropout_backward, pointwise, residual
from clustersim.model.kernel import Kernel, attention, gemm, vector
from clustersim.model.linear import accumulate, column, dgrad, gradient_bytes, input_size, product, row, wgrad
from clustersim.model.lora import adapters
from clustersim.model.norm import norm, norm_kernels
from clustersim.model.operator import Operator, Output
from clustersim.model.sharding import ShardedModel, documents

CORE = "attention"
"""Name of the attention core, which selective recomputation repeats."""


_EAGER_VALUES = {"rotation": (2, 1, 2, 2, 3), "rotation_backward": (2, 2, 1, 1, 1, 3, 1, 1, 3)}
"""{operation: values per element that each of its kernels reads and writes} of an eager rotation."""

ROTARY = "rotary"
"""Name of the operator that rotates queries and keys by their positions."""


def attention_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the operators of self-attention with the residual sum, without its norm, in run order."""
    hidden, inner = shard.model.hidden, shard.heads * shard.dim
    pair, queries = 2 * shard.kv_heads * shard.dim, inner * (2 if shard.model.output_gate else 1)
    outputs = queries + pair
    copied = pair if shard.stacked and shard.kv_heads == shard.heads else 0
    saved = shard.size * shard.tokens * (outputs + copied)
    columns = (shard.heads + shard.kv_heads) * shard.dim
    parts = (("query_proj", queries), ("key_proj", pair // 2), ("value_proj", pair // 2))
    bias = shard.model.bias if shard.model.qkv_bias is None else shard.model.qkv_bias
    adapted = adapters(shard, "qkv", hidden, parts)  # adapters read the gathered input
    chunked = not adapted
    return (
        column(
            shard, "qkv", hidden, outputs, bias=bias, saved=saved, parts=parts, separate=shard.separate, chunked=chunked
        ),
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
    """Return the product of attention's output of `columns` columns with the sigmoid of its gate. It saves that output; the qkv
    linear saves the gate."""
    z, shape = shard.size, (shard.tokens, columns)
    forward, backward = (pointwise(shard, op, *shape, values * z) for op, values in (("silu", 3), ("silu_backward", 5)))
    return Operator(
        "output_gate", (forward,), (backward,), saved=z * shape[0] * columns, backward_alive=3 * z * shape[0] * columns
    )


def order_heads(shard: ShardedModel, inner: int, pair: int) -> Operator:
    """Return the copies that put queries, keys and values into sequence order, and keys next to values.

    Forward: all three, then keys and values joined and ordered. Backward: the gradients of keys and values joined, then those of
    all three; with as many key heads as query heads, these are also copied into the order of the linear's output (nanotron,
    models/llama.py, CausalSelfAttention.forward, and autograd's gradients of its views). `inner`:
    number of values of a token's queries. `pair`: of its keys and values.
    """
    reordered = inner + pair if pair == 2 * inner else 0
    forward_steps = (("transpose", inner + pair), ("concatenate", pair), ("transpose", pair))
    backward_steps = (("concatenate", pair), ("concatenate", inner + pair), ("transpose", reordered))
    forward, backward = (
        tuple(copy(shard, op, shard.tokens, columns, 2 * shard.size) for op, columns in chosen if columns)
        for chosen in (forward_steps, backward_steps)
    )
    return Operator("order_heads", forward, backward, backward_alive=2 * shard.size * shard.tokens * (inner + pair))


def residual_part(shard: ShardedModel, name: str) -> Operator:
    """Return bias, dropout and residual sum after a row-parallel linear as one operator, which saves the dropout mask."""
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
    """Return the norms of queries and keys, each over one head, as one operator. It saves its input."""
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
    """Return the rotation of queries and keys, together `columns` values per token, as one operator.

    Fused in place, or eager as in Hugging Face: product, negated half, halves joined, product, sum; backward two products, a
    negated half, and for each half a zero tensor, a copy and a sum (autograd's slices).
    """
    z, rows = shard.size, shard.tokens
    steps = [(name, values) for name in ("rotation", "rotation_backward") for values in _EAGER_VALUES[name]]
    if not shard.eager_rope:
        steps = [("rope", 2), ("rope_backward", 2)]
    kernels = [pointwise(shard, op, rows, columns, values * z) for op, values in steps]
    forward = tuple(kernel for kernel in kernels if not kernel.op.endswith("backward"))
    backward = tuple(kernel for kernel in kernels if kernel.op.endswith("backward"))
    return Operator(ROTARY, forward, backward, backward_alive=2 * z * rows * columns)


def core(shard: ShardedModel, kv_heads: int, dim: int, value_dim: int) -> Operator:
    """Return the attention core, fused or unfused by `training.attention`. kv_heads: key/value heads on this rank. dim: width of
    a query or key head. value_dim: width of a value head."""
    build = unfused if shard.training.attention == "unfused" else flash
    return build(shard, kv_heads, dim, value_dim)


def flash(shard: ShardedModel, kv_heads: int, dim: int, value_dim: int) -> Operator:
    """Return the fused core. It saves only its statistics, 4 bytes per query and head (the next linear saves its output). With
    context parallelism it also saves `context_saved_bytes`. The arguments are those of `core`."""
    saved = 4.0 * shard.heads * shard.tokens
    kv_heads = shard.heads if "repeated" in shard.ring else kv_heads
    heads = Core(shard.heads, kv_heads, dim, value_dim)
    buffers = flash_gradient_bytes(shard, heads)
    columns = shard.heads * value_dim
    if shard.cp > 1:
        saved += context_saved_bytes(shard, heads)
    outputs = (Output("context", columns, saved + shard.size * shard.tokens * columns),)
    if shard.cp > 1:
        forward, backward = context_attention(shard, heads)
        buffers += context_buffer_bytes(shard, heads)
    else:
        b, s = documents(shard.training)
        shape = (b, shard.heads, kv_heads, s, s, dim)
        args = (shard.core_dtype, *shape, shard.model.causal, value_dim, shard.model.window)
        generation = "" if shard.training.attention == "flash" else shard.training.attention
        forward, backward = ((attention(op, *args)._replace(generation=generation),) for op in ("forward", "backward"))
    return Operator(CORE, forward, backward, saved=saved, outputs=outputs, backward_alive=buffers)


def flash_gradient_bytes(shard: ShardedModel, core: Core) -> float:
    """Return the bytes of the fused core's gradients on one rank: of output, queries, keys, values, and fp32 sums for queries.

    Concurrent blocks of keys add to the gradients of the same queries (FlashAttention-2, section 3.2, and cuDNN).
    """
    queries = core.heads * core.dim
    each = core.heads * core.value_dim + queries + core.kv_heads * (core.dim + core.value_dim)
    return float(shard.tokens * (shard.size * each + 4 * queries))


def unfused(
    shard: ShardedModel, kv_heads: int, dim: int, value_dim: int, keyed: ShardedModel | None = None, name: str = CORE
) -> Operator:
    """Return the core as two GEMMs around a softmax. It saves the 5·a·s²·b bytes of Korthikanti et al. in 16 bits.

    A window masks scores but saves no memory. keyed: shapes whose tokens are the keys and whose mask applies; default: `shard`.
    name: name of the operator. Other arguments are those of `core`.
    """
    keyed = keyed or shard
    s, keys, batch = shard.training.seq, keyed.training.seq, shard.training.micro_batch * shard.heads
    elements, z = float(batch) * s * keys, shard.size

    def bmm(op: str, m: int, n: int, k: int) -> Kernel:
        return gemm("bmm", op, shard.core_dtype, batch, m, n, k)

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
    saved = elements * (wide + (z if drop or wide > z else 0) + drop)
    values = (shard.tokens * shard.heads + keyed.tokens * kv_heads) * (dim + value_dim)
    buffers = z * (
        2 * elements + values
    )  # gradients of probabilities and scores, of the output and of queries, keys and values
    # PyTorch's batched products (torch.matmul) need the values of a head contiguous, and their gradients; Megatron's use strides
    order = (copy(shard, "order_heads", shard.tokens, values // shard.tokens, 2 * z),) if shard.eager else ()
    return Operator(name, (*order, *repeat, *forward), (*order, *backward, *merge), saved=saved, backward_alive=buffers)


def _grouped(shard: ShardedModel, kv_heads: int, width: int) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return (copies that repeat key/value heads for the unfused GEMMs, sums that merge their gradients); empty if not needed.
    width: width of a key head plus that of a value head."""
    if kv_heads == shard.heads:
        return (), ()
    columns = kv_heads * width
    traffic = shard.size * (1 + shard.heads / kv_heads)
    names = ("repeat_kv", "repeat_kv_backward")
    repeat, merge = (copy(shard, op, shard.tokens, columns, traffic) for op in names)
    return (repeat,), (merge,)


def softmax(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the kernels of scale, mask, softmax and dropout of rows×columns scores. A fused softmax includes scale and mask.

    Scores with a shape that Megatron's fused kernel does not support are scaled, masked and normalized in fp32
    (forward_torch_softmax).
    """
    if shard.fused_softmax:
        return (_fused(shard, "fused_softmax", rows, columns, 1, 1), *dropout(shard, rows, columns))
    size, dtype = _scores(shard)
    normalize = (vector("softmax", "softmax", dtype, rows, columns, 5.0, 2 * size),)
    before = (pointwise(shard, "scale", rows, columns, 2 * size), copy(shard, "mask", rows, columns, 2 * size))
    separate = (*_cast(shard, "to_fp32", rows, columns), *before, *normalize, *_cast(shard, "from_fp32", rows, columns))
    return (*separate, *dropout(shard, rows, columns))


def softmax_backward(shard: ShardedModel, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the kernels of the gradients of dropout, softmax, mask and scale of rows×columns scores, in run order."""
    if shard.fused_softmax:
        return (*dropout_backward(shard, rows, columns), _fused(shard, "fused_softmax_backward", rows, columns, 2, 1))
    size, dtype = _scores(shard)
    normalize = (vector("softmax", "softmax_backward", dtype, rows, columns, 5.0, 3 * size),)
    # PyTorch multiplies gradient and output in a separate kernel (SoftMax.cu); Megatron's fused softmax does not
    before = (*_cast(shard, "to_fp32", rows, columns), pointwise(shard, "mul", rows, columns, 3 * size))
    mask = (copy(shard, "mask", rows, columns, 2 * size),) if shard.model.causal else ()
    after = (*mask, pointwise(shard, "scale", rows, columns, 2 * size), *_cast(shard, "from_fp32", rows, columns))
    return (*dropout_backward(shard, rows, columns), *before, *normalize, *after)


def _fused(shard: ShardedModel, op: str, rows: int, columns: int, read: int, written: int) -> Kernel:
    """Return the kernel of Megatron's fused softmax of rows×columns scores. read, written: number of tensors of that size.

    A row stays in the registers of a warp. Of a causal row only the visible part is read, but all of it is written
    (megatron/fused_kernels/scaled_upper_triang_masked_softmax.h).
    """
    values = read * (0.5 if shard.model.causal else 1.0) + written
    return vector("softmax", op, shard.dtype, rows, columns, 5.0, values * shard.size)


def _scores(shard: ShardedModel) -> tuple[float, str]:
    """Return (bytes, data type) of a score in the softmax: the activations', or fp32 if Megatron's kernel does not support it."""
    unchanged = shard.eager or shard.fused_softmax or shard.size >= 4
    return (shard.size, shard.dtype) if unchanged else (4.0, "fp32")


def _cast(shard: ShardedModel, op: str, rows: int, columns: int) -> tuple[Kernel, ...]:
    """Return the kernel that casts rows×columns scores to or from fp32; () if the softmax does not run in a wider type."""
    size, z = _scores(shard)[0], shard.size
    return (copy(shard, op, rows, columns, z + size),) if size > z else ()


def latent_attention_part(shard: ShardedModel, latent: LatentAttention) -> tuple[Operator, ...]:
    """Return the operators of latent attention with the residual sum, without the norm of its block, in run order."""
    hidden, heads, kv = shard.model.hidden, shard.heads, latent.kv_lora_rank
    dim, rope = latent.qk_head_dim + latent.qk_pos_emb_head_dim, latent.qk_pos_emb_head_dim
    narrow = latent.q_lora_rank
    parts = (("key_proj", heads * latent.qk_head_dim), ("value_proj", heads * latent.v_head_dim))
    saved = shard.size * shard.tokens * heads * (2 * dim + latent.v_head_dim)
    attention = core(shard, heads, dim, latent.v_head_dim)
    return (
        *((down(shard, "q_down", narrow),) if narrow else ()),
        _shared(shard, down(shard, "kv_down", kv + rope)),
        *((norm(shard, "q_norm", fork=False, width=narrow),) if narrow else ()),
        norm(shard, "kv_norm", fork=False, width=kv),
        column(shard, "q_up", narrow or hidden, heads * dim, bias=False, parts=(("query_proj", heads * dim),)),
        column(shard, "kv_up", kv, sum(columns for _, columns in parts), bias=False, parts=parts),
        *((rotary(shard, (heads + 1) * rope),) if shard.model.positions == "rotary" else ()),
        *((indexer_part(shard, shard.model.indexer, narrow or hidden),) if shard.model.indexer else ()),
        keys(shard, latent),
        attention._replace(saved=attention.saved + saved, saved_input=saved),
        row(shard, "projection", heads * latent.v_head_dim, hidden, bias=shard.model.bias, part="out_proj"),
        *adapters(shard, "projection", heads * latent.v_head_dim, (("out_proj", hidden),)),
        residual_part(shard, "attention_residual"),
    )


def indexer_part(shard: ShardedModel, indexer: Indexer, inputs: int) -> Operator:
    """Return the indexer, which scores all keys for every query and selects `window` of them, replicated on every tp rank.

    Linears compute queries from the latent of `inputs` features, and one key and one weight per head from the block's input.
    Scores are one fused GEMM with ReLU and a sum over heads, from which top-k reads in fp32 (DeepSeek-V3.2, section 2.1,
    equation 1, and inference/model.py, Indexer). Its linears are trained by a separate loss on the detached input, so they
    compute no input gradient.
    """
    b, s = documents(shard.training)
    widths = ((inputs, indexer.heads * indexer.dim), (shard.model.hidden, indexer.dim + indexer.heads))
    linears = [kernel for linear in widths for kernel in product(shard, *linear)]
    share = 0.5 if shard.model.causal else 1.0
    shape = (b, s, s, indexer.heads * indexer.dim)
    scores = gemm("bmm", "indexer_scores", shard.core_dtype, *shape)
    written = b * s * (2.0 * shape[3] * shard.size + 4.0 * s * share)
    scores = scores._replace(flop=share * scores.flop, bytes=written)
    topk = copy(shard, "softmax_topk", b * s, max(round(s * share), 1), 4.0, "fp32")
    weights = shard.replicated(sum(rows * columns for rows, columns in widths) + 2 * indexer.dim)
    saved = shard.size * shard.tokens * sum(columns for _, columns in widths)
    backward = (scores._replace(op="indexer_scores_dgrad", flop=2 * scores.flop, k=2 * scores.k),)
    gradients = tuple(kernel for linear in widths for kernel in wgrad(shard, *linear, False))
    return Operator(
        "indexer",
        (*linears, scores, topk),
        backward,
        gradients,
        parameters=weights,
        replicated=weights,
        saved=saved,
        forward_alive=4.0 * b * s * s * share,
        backward_alive=4.0 * b * s * s * share,
    )


def _shared(shard: ShardedModel, linear: Operator) -> Operator:
    """Return the linear without its saved input, which the linear of the queries saves; narrow GEMMs still save a cast of it."""
    return linear if shard.format else linear._replace(saved=0.0, saved_input=0.0)


def down(shard: ShardedModel, name: str, outputs: int) -> Operator:
    """Return the linear into a latent of `outputs` features, replicated on every tp rank and applied to the rank's own tokens. It
    saves only its input."""
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
        saved_input=input_size(shard) * rows * hidden,
        backward_alive=shard.size * rows * (hidden + outputs) + gradient_bytes(shard, weights),
    )


def keys(shard: ShardedModel, latent: LatentAttention) -> Operator:
    """Return the copies after the linear to keys and values of all heads, which add the shared rotary part to the keys.

    One kernel splits the linear's output and writes keys and values (Megatron's core/fusions/fused_mla_yarn_rope_apply.py,
    rotary_fwd_kv_kernel). With sequence parallelism the rotary part is gathered; its gradient is summed over heads and the other
    ranks' tokens.
    """
    rope, z = latent.qk_pos_emb_head_dim, shard.size
    unshared = latent.qk_head_dim + latent.v_head_dim
    shape, traffic = (shard.tokens, shard.heads * (unshared + rope)), z * (1 + unshared / (unshared + rope))
    sp = shard.sequence_parallel
    gather = shard.exchange("all_gather", shard.tokens, rope) if sp else ()
    reduce = shard.exchange("reduce_scatter" if sp else "all_reduce", shard.tokens, rope)
    return Operator(
        "keys",
        (*gather, copy(shard, "concatenate", *shape, traffic)),
        (copy(shard, "concatenate_backward", *shape, traffic), *reduce),
        backward_alive=traffic * shape[0] * shape[1],
    )
