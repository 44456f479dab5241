"""Layers that mix tokens through a state and not a score matrix: their weights, and the GEMMs of their chunked scans.

A scan cuts a sequence into chunks. GEMMs mix the tokens inside a chunk, as in attention, and a state of fixed size passes from
chunk to chunk. So FLOP grow linearly with the tokens.
"""

from __future__ import annotations

from typing import NamedTuple

from clustersim.config.workload import DeltaNet, Model, StateSpace


class ChunkProduct(NamedTuple):
    """A GEMM of a scan: an m×k by a k×n matrix, for every chunk and head (or group of heads)."""

    name: str
    """Name of the kernel that runs it."""
    copies: int
    """Number of GEMMs per chunk: heads, or groups of heads."""
    m: int
    """Rows."""
    n: int
    """Columns."""
    k: int
    """Length of the reduction."""


class Scan(NamedTuple):
    """GEMMs of one chunk, forward and backward."""

    chunk: int
    """Number of tokens per chunk."""
    forward: tuple[ChunkProduct, ...]
    """GEMMs of the forward pass."""
    backward: tuple[ChunkProduct, ...]
    """GEMMs of the backward pass: two for each of the forward pass, and recomputed ones."""


def state_space_scan(mamba: StateSpace, heads: int, groups: int) -> Scan:
    """Return the GEMMs of one chunk of Mamba-2's scan, with `heads` heads in `groups` groups on this rank.

    Arrays of a chunk are named as in Dao and Gu 2024 (arXiv 2405.21060), section 6: X of width P, B and C of width N. Kernels and
    recomputation are those of mamba_ssm (ops/triton/ssd_combined.py, _mamba_chunk_scan_combined_fwd and _bwd).
    """
    q, n, p = mamba.chunk, mamba.state, mamba.head_dim
    scores, states = ChunkProduct("bmm_chunk", groups, q, q, n), ChunkProduct("chunk_state", heads, p, n, q)
    forward = (states, scores, ChunkProduct("chunk_scan", heads, q, p, q + n))
    backward = (
        ChunkProduct("chunk_scan_dstates", heads, p, n, q),
        ChunkProduct("chunk_scan_dx", heads, q, p, q + n),
        ChunkProduct("chunk_state_db", heads, q, n, p),
        ChunkProduct("chunk_scan_dc", heads, q, n, p),
        ChunkProduct("chunk_scan_dcb", heads, q, q, p),
        ChunkProduct("bmm_chunk_dc", groups, q, n, q),
        ChunkProduct("bmm_chunk_db", groups, q, n, q),
    )
    return Scan(q, forward, (states, scores, *backward))


def delta_scan(delta: DeltaNet, heads: int) -> Scan:
    """Return the GEMMs of one chunk of the gated delta rule, with `heads` value heads on this rank.

    Yang et al. 2024 (arXiv 2412.06464), section 3.3: the WY form of a chunk (products w and u of the inverse of a triangular
    matrix), the states, and the outputs. Kernels are those of flash-linear-attention (fla/ops/gated_delta_rule/chunk.py); the
    inverse of a triangular matrix of c rows takes c³/3 FLOP.
    """
    c, k, v = delta.chunk, delta.key_dim, delta.value_dim
    triangle, wide = -(-c // 6), (c, k + v, c)
    recomputed = (ChunkProduct("recompute_w_u", heads, *wide), ChunkProduct("chunk_state", heads, c, v, 2 * k))
    scores = ChunkProduct("chunk_scores", heads, c, c, k)
    forward = (
        ChunkProduct("scaled_dot_kkt", heads, c, c, k),
        ChunkProduct("solve_tril", heads, c, c, triangle),
        *recomputed,
        scores,
        ChunkProduct("chunk_output", heads, c, v, k + c),
    )
    backward = (
        ChunkProduct("dv_local", heads, c, v, c),
        ChunkProduct("chunk_state_backward", heads, c, v, 3 * k),
        ChunkProduct("chunk_dscores", heads, c, c, v),
        ChunkProduct("chunk_dqkw", heads, c, k, 3 * v + 2 * c),
        ChunkProduct("wy_backward", heads, *wide),
        ChunkProduct("wy_dscores", heads, c, c, k + v + 2 * c),
        ChunkProduct("kkt_backward", heads, c, k, 2 * c),
    )
    return Scan(c, forward, (*recomputed, scores, *backward))


def scan_products(kind: Model) -> int:
    """Return the multiply-adds per token of the GEMMs in a block's scan, forward; 0 without a scan."""
    scans = [state_space_scan(kind.mamba, kind.mamba.heads, kind.mamba.groups)] if kind.mamba else []
    if "mamba2" not in kind.mixer:
        scans = [delta_scan(kind.delta, kind.delta.heads)] if kind.mixer == "delta" and kind.delta else []
    return sum(gemm.copies * gemm.m * gemm.n * gemm.k // scan.chunk for scan in scans for gemm in scan.forward)


def convolution_channels(kind: Model) -> int:
    """Return the number of channels of a block's causal convolution before tensor parallelism; 0 without one."""
    if "mamba2" in kind.mixer and (mamba := kind.mamba):
        return mamba.heads * mamba.head_dim + 2 * mamba.groups * mamba.state
    if kind.mixer == "delta" and (delta := kind.delta):
        return 2 * (delta.key_heads or delta.heads) * delta.key_dim + delta.heads * delta.value_dim
    return kind.hidden if kind.mixer == "conv" else 0


def small_parameters(kind: Model) -> int:
    """Return the number of parameters of a block's scan outside linears: convolution, decays, biases of steps and its norm.

    Mamba-2's convolution has biases, and each head a decay, a bias of its step and a skip; its norm is as wide as its heads. A
    delta net has a decay and a bias of the step for each head, of the step for each channel with gates by channel.
    """
    channels = convolution_channels(kind)
    if "mamba2" in kind.mixer and (mamba := kind.mamba):
        return channels * (mamba.conv + 1) + 3 * mamba.heads + mamba.heads * mamba.head_dim
    if kind.mixer == "delta" and (delta := kind.delta):
        steps = delta.heads * (delta.key_dim if delta.channel_gates else 1)
        return channels * delta.conv + delta.heads + steps + delta.value_dim
    return channels * (kind.conv or 0)


def scan_linears(kind: Model) -> dict[str, int]:
    """Return {name: number of weights} of the linears of a block's scan or short convolution; {} if it has neither.

    Mamba-2: gate, values, B, C and steps together. Delta net: queries, keys, values, one step per head, decays and output gate,
    the last two through narrow linears if gates are by channel. Short convolution: two gates and values.
    """
    h = kind.hidden
    if "mamba2" in kind.mixer and (mamba := kind.mamba):
        inner = mamba.heads * mamba.head_dim
        return {"in_proj": h * (inner + convolution_channels(kind) + mamba.heads), "out_proj": inner * h}
    if kind.mixer == "delta" and (delta := kind.delta):
        inner, narrow = delta.heads * delta.value_dim, delta.value_dim
        low = narrow * (delta.heads * delta.key_dim + inner) if delta.channel_gates else 0
        gates = 2 * narrow + delta.heads if delta.channel_gates else inner + 2 * delta.heads
        wide = h * (convolution_channels(kind) + gates)
        return {"in_proj": wide, **({"gate_proj": low} if low else {}), "out_proj": inner * h}
    return {"in_proj": 3 * h * h, "out_proj": h * h} if kind.mixer == "conv" else {}
