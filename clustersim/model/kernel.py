"""A kernel: one launch on one GPU, with the shapes that decide how long it takes.

Kernels are plain values, so the distinct kernels of a job are collected in a dictionary and predicted in one call.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from clustersim.errors import InputError, suggest
from clustersim.hardware.constants import BYTES

QUERY_BLOCK = 128
"""Number of queries per block of fused attention (FlashAttention-2, section 3.3). A block visits each key that any of its queries
sees."""

KernelKind = Literal[
    "linear", "bmm", "grouped_gemm", "flash_attention", "softmax", "layernorm", "elementwise", "memory"
]


VECTOR = ("softmax", "layernorm", "elementwise", "memory")
"""Kinds that are bound by memory bandwidth: a few operations per byte."""


class Kernel(NamedTuple):
    """One kernel launch.

    A GEMM multiplies `batch` times an m×k by a k×n matrix. A vector kernel works on m rows of n elements. Attention has `batch`
    sequences of m queries and n keys, with heads of width k.
    """

    kind: KernelKind
    """Group that a predictor learns together: GEMMs (`linear`, `bmm`, `grouped_gemm`), `flash_attention`, vector kernels."""
    op: str
    """Operation within the kind: `forward`, `dgrad`, `wgrad` for GEMMs; `gelu`, `add`, `embedding`, … for others."""
    dtype: str
    """Data type of the computation."""
    batch: int
    """Number of products of a GEMM, or sequences of attention."""
    m: int
    """Rows of a GEMM or vector kernel, or queries."""
    n: int
    """Columns of a GEMM or vector kernel, or keys."""
    k: int
    """Length of a GEMM's reduction, or head dimension of attention; 0 for a vector kernel."""
    flop: float
    """FLOP: multiply and add count as two; causal attention counts half."""
    bytes: float
    """Smallest number of bytes that the kernel must read and write."""
    heads: int = 1
    """Query heads of attention."""
    kv_heads: int = 1
    """Key and value heads of attention."""
    causal: bool = False
    """Whether a token sees only earlier tokens."""
    generation: str = ""
    """Generation of fused attention (`flash1`, …); empty: the default of libraries on the GPU. `apart`: grouped GEMMs and casts
    that are launched one by one."""


APART = "apart"
"""Value of `generation` for grouped GEMMs and casts that are launched one by one, as Transformer Engine does with cuBLAS."""


def single_launch(kernel: Kernel) -> tuple[Kernel, int]:
    """Return (kernel of one launch, number of launches in sequence). Only kernels with generation `apart` have several."""
    if kernel.generation != APART:
        return kernel, 1
    n, kind = kernel.batch, "linear" if kernel.kind == "grouped_gemm" else kernel.kind
    return kernel._replace(kind=kind, batch=1, flop=kernel.flop / n, bytes=kernel.bytes / n, generation=""), n


def element(dtype: str) -> float:
    """Return the bytes of one element of a data type such as `bf16`. Raises InputError for an unknown one."""
    if dtype not in BYTES:
        raise InputError(f"unknown data type {dtype!r}; {suggest(dtype, BYTES)}")
    return BYTES[dtype]


def gemm(
    kind: KernelKind,
    op: str,
    dtype: str,
    batch: int,
    m: int,
    n: int,
    k: int,
    accumulate: float = 0,
    output: float = 0,
    operand: float = 0,
) -> Kernel:
    """Return the kernel of `batch` products of m×k by k×n.

    The last three arguments are bytes per element; 0 stands for those of `dtype`. accumulate: of an output that is read and added
    to (wgrad into fp32 main gradients: 4). output: of an output that is only written (fp8 GEMMs write bf16: 2). operand: of both
    operands, including the scales stored next to the values (mxfp8: 1 + 1/32). Raises InputError for an unknown data type.
    """
    size = element(dtype)
    written = 2 * accumulate if accumulate else output or size
    traffic = batch * ((m * k + k * n) * (operand or size) + m * n * written)
    return Kernel(kind, op, dtype, batch, m, n, k, 2.0 * batch * m * n * k, float(traffic))


def with_columns(kernel: Kernel, columns: int) -> Kernel:
    """Return a GEMM cut to `columns` columns: it reads its whole first matrix; FLOP and other bytes are cut in proportion."""
    share = columns / kernel.n
    read = kernel.flop / (2 * kernel.n) * element(kernel.dtype)
    return kernel._replace(n=columns, flop=kernel.flop * share, bytes=read + (kernel.bytes - read) * share)


def vector(kind: KernelKind, op: str, dtype: str, rows: int, columns: int, flop: float, traffic: float) -> Kernel:
    """Return a kernel over rows×columns elements. flop, traffic: FLOP and bytes read and written per element."""
    elements = float(rows) * columns
    return Kernel(kind, op, dtype, 1, rows, columns, 0, flop * elements, traffic * elements)


def attention(
    op: str,
    dtype: str,
    batch: int,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    dim: int,
    causal: bool,
    value_dim: int = 0,
    window: int = 0,
) -> Kernel:
    """Return one fused (flash) attention kernel. op: `forward` or `backward`. queries, keys: tokens per sequence.

    FLOP: 4·b·a·s_q·s_k·d forward, 2.5 times as many backward (FlashAttention-2, section 4: five products instead of two), half if
    causal. Bytes: q, k, v, o once forward; these, their gradients and the statistics backward. `value_dim`: width of the values,
    0 for `dim`; the kernel's `k` is the mean of both widths, rounded up. `window`: largest number of keys that a query sees, 0
    for all; a block of queries then visits the window and one block of keys, which is the kernel's `n`.
    """
    values, mean = value_dim or dim, (dim + (value_dim or dim)) / 2
    share = 0.5 if causal else 1.0
    visited_keys, masked = keys, causal
    if 0 < window < keys:
        part = window / keys
        share = part * (1 - part / 2)
        visited_keys, masked = min(keys, round((window + QUERY_BLOCK) * (1 - part / 2))), False
    flop = 4.0 * batch * heads * queries * keys * mean * share
    q, kv = batch * heads * queries * (dim + values), batch * kv_heads * keys * (dim + values)
    traffic = (1.0 * q + kv) * element(dtype)
    if op == "backward":
        flop, traffic = 2.5 * flop, 2 * traffic
    shape = (batch, queries, visited_keys, -int(-mean // 1))
    return Kernel("flash_attention", op, dtype, *shape, flop, traffic, heads, kv_heads, masked)
