"""Token-mixing part of a block: attention, a state space, a gated delta net or a short convolution."""

from __future__ import annotations

from clustersim.config.workload import DeltaNet, StateSpace
from clustersim.model.attention import attention_part, latent_attention_part, residual_part
from clustersim.model.elementwise import add, copy, pointwise
from clustersim.model.kernel import Kernel, gemm
from clustersim.model.linear import accumulate, column, row
from clustersim.model.norm import norm_kernels
from clustersim.model.operator import Operator
from clustersim.model.scans import ChunkProduct, Scan, delta_scan, state_space_scan
from clustersim.model.sharding import ShardedModel

FP32 = 4
"""Bytes per value of states, steps and decays, which scans keep in fp32."""


def mixer_part(shard: ShardedModel) -> tuple[Operator, ...]:
    """Return the operators of a block's mixer (`model.mixer`) without its norm, in run order, with the residual sum. The outputs
    of two parallel mixers are added."""
    model = shard.model
    if model.mixer == "delta" and model.delta:
        return delta_part(shard, model.delta)
    if model.mixer == "conv" and model.conv:
        return convolution_part(shard, model.conv)
    if model.mixer == "mamba2" and model.mamba:
        return (*state_space_part(shard, model.mamba), residual_part(shard, "attention_residual"))
    attention = attention_part(shard) if model.mla is None else latent_attention_part(shard, model.mla)
    if "mamba2" not in model.mixer or model.mamba is None:
        return attention
    *first, last = state_space_part(shard, model.mamba)
    total = add(shard, shard.local, model.hidden)
    last_with_sum = last._replace(forward=(*last.forward, total))
    entry = first[0]._replace(backward_input=(*first[0].backward_input, total))
    return (entry, *first[1:], last_with_sum, *attention)


def state_space_part(shard: ShardedModel, mamba: StateSpace) -> tuple[Operator, ...]:
    """Return Mamba-2's operators without the residual sum: linear, convolution and scan, gated norm, linear.

    Heads are split over the tp ranks.
    The convolution is recomputed backward, and the scan saves only its output (mamba_ssm, MambaSplitConv1dScanCombinedFn).
    """
    hidden, z, rows = shard.model.hidden, shard.size, shard.tokens
    heads, groups = mamba.heads // shard.tp, max(mamba.groups // shard.tp, 1)
    inner, state = heads * mamba.head_dim, heads * mamba.head_dim * mamba.state
    channels = inner + 2 * groups * mamba.state
    outputs = inner + channels + heads
    convolution = copy(shard, "causal_conv1d", rows, channels, 2 * z)
    steps = copy(shard, "chunk_cumsum", rows, heads, z + 2 * FP32)
    passing = copy(shard, "state_passing", chunk_count(shard, mamba.chunk), state, 2 * FP32)
    scan = Operator(
        "scan",
        (convolution, steps, *scan_gemms(shard, plan := state_space_scan(mamba, heads, groups)), passing),
        (
            convolution,
            steps,
            passing,
            *scan_gemms(shard, plan, backward=True),
            passing._replace(op="state_passing_backward", bytes=1.5 * passing.bytes),
            copy(shard, "causal_conv1d_backward", rows, channels, 3 * z),
        ),
        parameters=channels * (mamba.conv + 1) + 3 * heads,
        saved=FP32 * rows * heads,
        forward_alive=z * rows * channels + FP32 * chunk_count(shard, mamba.chunk) * state,
        backward_alive=3 * z * rows * channels + 2 * FP32 * chunk_count(shard, mamba.chunk) * state,
    )
    return (
        column(shard, "in_proj", hidden, outputs, bias=False, saved=z * rows * outputs, parts=(("in_proj", outputs),)),
        scan,
        gated_norm(shard, inner, inner, 0),
        row(shard, "out_proj", inner, hidden, bias=False, part="out_proj"),
    )


def delta_part(shard: ShardedModel, delta: DeltaNet) -> tuple[Operator, ...]:
    """Return the operators of a gated delta net with the residual sum; heads are split over the tp ranks.

    The scan saves queries, keys and values after the convolution, one chunk-wide row per token and head, and steps and decays in
    fp32 (fla/ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction). Gates by channel come from narrow linears whose first
    half is replicated on every tp rank.
    """
    hidden, z, rows = shard.model.hidden, shard.size, shard.tokens
    heads, keyed = delta.heads // shard.tp, max((delta.key_heads or delta.heads) // shard.tp, 1)
    inner, state = heads * delta.value_dim, heads * delta.value_dim * delta.key_dim
    channels = 2 * keyed * delta.key_dim + inner
    narrow = delta.value_dim if delta.channel_gates else 0
    outputs = channels + (2 * narrow + heads if narrow else inner + 2 * heads)
    decays = heads * (delta.key_dim if delta.channel_gates else 1)
    saved = rows * (z * (heads * (2 * delta.key_dim + delta.chunk) + inner + channels) + 2 * FP32 * decays)
    states = FP32 * chunk_count(shard, delta.chunk) * state
    plan = delta_scan(delta, heads)
    scan = Operator(
        "scan",
        (
            copy(shard, "causal_conv1d", rows, channels, 2 * z),
            copy(shard, "chunk_cumsum", rows, decays, 2 * FP32),
            *scan_gemms(shard, plan),
        ),
        (
            *scan_gemms(shard, plan, backward=True),
            copy(shard, "chunk_cumsum", rows, decays, 2 * FP32),
            copy(shard, "causal_conv1d_backward", rows, channels, 3 * z),
        ),
        parameters=channels * delta.conv + heads + decays,
        saved=saved,
        forward_alive=states,
        backward_alive=2 * states + 2 * z * rows * channels,
    )
    gates = ("gate_proj", narrow, heads * delta.key_dim + inner)
    gate = column(shard, *gates, bias=False, saved=z * rows * gates[2], parts=(gates[::2],)) if narrow else None
    in_linear = column(
        shard, "in_proj", hidden, outputs, bias=False, saved=z * rows * outputs, parts=(("in_proj", outputs),)
    )
    return (
        in_linear._replace(replicated=2 * hidden * narrow),
        *((gate,) if gate else ()),
        scan,
        gated_norm(shard, inner, delta.value_dim, shard.replicated(delta.value_dim)),
        row(shard, "out_proj", inner, hidden, bias=False, part="out_proj"),
        residual_part(shard, "attention_residual"),
    )


def convolution_part(shard: ShardedModel, taps: int) -> tuple[Operator, ...]:
    """Return the operators of LFM2's short convolution with the residual sum.

    Values times one gate, sum over `taps` tokens per channel, times another gate. Source: transformers,
    models/lfm2/modeling_lfm2.py, Lfm2ShortConv.
    """
    hidden, z, rows = shard.model.hidden, shard.size, shard.tokens
    inner = hidden // shard.tp
    mul, mul_backward = (pointwise(shard, "mul", rows, inner, values * z) for values in (3, 5))
    convolution = Operator(
        "short_conv",
        (mul, copy(shard, "causal_conv1d", rows, inner, 2 * z), mul),
        (mul_backward, copy(shard, "causal_conv1d_backward", rows, inner, 3 * z), mul_backward),
        parameters=inner * taps,
        saved=2 * z * rows * inner,
        backward_alive=3 * z * rows * inner,
    )
    outputs = 3 * inner
    return (
        column(shard, "in_proj", hidden, outputs, bias=False, saved=z * rows * outputs, parts=(("in_proj", outputs),)),
        convolution,
        row(shard, "out_proj", inner, hidden, bias=False, part="out_proj"),
        residual_part(shard, "attention_residual"),
    )


def chunk_count(shard: ShardedModel, chunk: int) -> int:
    """Return the number of chunks of `chunk` tokens of one microbatch; the last chunk of a sequence may be short."""
    return shard.training.micro_batch * -(-shard.context // chunk)


def scan_gemms(shard: ShardedModel, scan: Scan, backward: bool = False) -> tuple[Kernel, ...]:
    """Return the batched GEMMs of the forward pass (or `backward` pass) of a scan, over all chunks of one microbatch."""
    count = chunk_count(shard, scan.chunk)
    products: tuple[ChunkProduct, ...] = scan.backward if backward else scan.forward
    dtype = shard.core_dtype
    return tuple(gemm("bmm", item.name, dtype, count * item.copies, item.m, item.n, item.k) for item in products)


def gated_norm(shard: ShardedModel, columns: int, width: int, replicated: int) -> Operator:
    """Return the norm of a scan's output over `width` values, times an activated gate, in one kernel. It saves its input.

    columns: values per token on this rank. `replicated`: number of weights if heads share them, so that every tp rank has them;
    0: one per column. Source: mamba_ssm, ops/triton/layernorm_gated.py, and fla, modules/fused_norm_gate.py.
    """
    z, rows = shard.size, shard.tokens * columns // width
    (*forward, last), (first, *backward) = norm_kernels(shard, rows, width)
    gate = float(z) * rows * width
    weights = replicated or columns
    return Operator(
        "gated_norm",
        (*forward, last._replace(bytes=last.bytes + gate)),
        (first._replace(bytes=first.bytes + 2 * gate), *backward),
        accumulate(shard, 1, weights),
        parameters=weights,
        replicated=replicated,
        saved=gate,
        backward_alive=3 * gate,
    )
