"""A kernel: one launch on one GPU, with the shapes that decide how long it takes.

Kernels are plain values, so the distinct ones of a job can be collected in a dictionary and predicted in one call.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from clustersim.errors import InputError, suggest
from clustersim.hardware.constants import BYTES

QUERY_BLOCK = 128
"""Queries that a block of fused attention takes together (FlashAttention-2, section 3.3): it visits the keys of all of them."""

KernelKind = Literal[
    "linear", "bmm", "grouped_gemm", "flash_attention", "softmax", "layernorm", "elementwise", "memory"
]


VECTOR = ("softmax", "layernorm", "elementwise", "memory")
"""The kinds that memory's bandwidth bounds: a few operations for each byte."""


class Kernel(NamedTuple):
    """One kernel launch.

    A product multiplies `batch` times an m×k by a k×n matrix; a vector kernel works on m rows of n elements; attention has
    `batch` sequences of m queries and n keys, with heads of width k.
    """

    kind: KernelKind
    """What a predictor learns together: products (`linear`, `bmm`, `grouped_gemm`), `flash_attention`, vector kernels."""
    op: str
    """The finer name inside its kind: `forward`, `dgrad`, `wgrad` for GEMMs; `gelu`, `add`, `embedding`, … for the others."""
    dtype: str
    """The data type that it computes in."""
    batch: int
    """Products of a GEMM, sequences of attention."""
    m: int
    """Rows: of a product, of a vector kernel, or queries."""
    n: int
    """Columns: of a product, of a vector kernel, or keys."""
    k: int
    """The reduction of a product, the head dimension of attention; 0 of a vector kernel."""
    flop: float
    """Multiply and add count as two; causal attention counts half."""
    bytes: float
    """What it must read and write at least."""
    heads: int = 1
    """Query heads of attention."""
    kv_heads: int = 1
    """Its key and value heads."""
    causal: bool = False
    """A token sees those before it."""
    generation: str = ""
    """Of fused attention (`flash1`, …); empty: that which libraries run on the GPU. `apart`: grouped products and casts that
    are launched one by one."""


APART = "apart"
"""The generation of grouped products and casts that are launched one by one, as Transformer Engine does it with cuBLAS."""


def one_of(kernel: Kernel) -> tuple[Kernel, int]:
    """Return the kernel that is launched, and how often, one after the other."""
    if kernel.generation != APART:
        return kernel, 1
    n, kind = kernel.batch, "linear" if kernel.kind == "grouped_gemm" else kernel.kind
    return kernel._replace(kind=kind, batch=1, flop=kernel.flop / n, bytes=kernel.bytes / n, generation=""), n


def element(dtype: str) -> float:
    """Return the bytes of one element. Raises InputError for an unknown data type."""
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
    """Return `batch` products of m×k by k×n.

    `accumulate`: bytes an element of an output that is added to, not written (wgrad into fp32 main gradients: 4).
    `output`: bytes an element of the output where they differ from those of `dtype` (fp8 products leave bf16: 2).
    `operand`: the same of both factors, where scales lie beside the values (mxfp8: 1 + 1/32).
    """
    size = element(dtype)
    written = 2 * accumulate if accumulate else output or size
    traffic = batch * ((m * k + k * n) * (operand or size) + m * n * written)
    return Kernel(kind, op, dtype, batch, m, n, k, 2.0 * batch * m * n * k, float(traffic))


def narrowed(kernel: Kernel, columns: int) -> Kernel:
    """Return a product cut to `columns` columns: it reads all of its first matrix and this share of the rest."""
    share = columns / kernel.n
    read = kernel.flop / (2 * kernel.n) * element(kernel.dtype)
    return kernel._replace(n=columns, flop=kernel.flop * share, bytes=read + (kernel.bytes - read) * share)


def vector(kind: KernelKind, op: str, dtype: str, rows: int, columns: int, flop: float, traffic: float) -> Kernel:
    """Return a kernel over rows×columns elements with `flop` operations and `traffic` bytes an element."""
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
    """Return one fused (flash) attention kernel, `op` forward or backward.

    FLOP: 4·b·a·s_q·s_k·d forward, 2.5 times that backward (FlashAttention-2, section 4: five products for two), half of
    it when causal. Bytes: q, k, v, o once forward; those, their gradients and the statistics backward. `value_dim`: width of the
    values where they differ from queries and keys; the kernel then has the mean of both as `k`. `window`: keys that a query sees
    at most, 0 for all; a block of queries then visits the window and one block of keys, which is the kernel's `n`.
    """
    values, mean = value_dim or dim, (dim + (value_dim or dim)) / 2
    share = 0.5 if causal else 1.0
    seen, masked = keys, causal
    if 0 < window < keys:
        part = window / keys
        share = part * (1 - part / 2)
        seen, masked = min(keys, round((window + QUERY_BLOCK) * (1 - part / 2))), False
    flop = 4.0 * batch * heads * queries * keys * mean * share
    q, kv = batch * heads * queries * (dim + values), batch * kv_heads * keys * (dim + values)
    traffic = (1.0 * q + kv) * element(dtype)
    if op == "backward":
        flop, traffic = 2.5 * flop, 2 * traffic
    shape = (batch, queries, seen, -int(-mean // 1))
    return Kernel("flash_attention", op, dtype, *shape, flop, traffic, heads, kv_heads, masked)
