"""Kernels bound by memory: norms, activations, softmax, residuals, casts, lookups, optimizer.

Tables say FLOP and bytes an element in bf16 (the optimizer: fp32), as clustersim/parallel counts them.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.lab.measure.case import Case
from clustersim.model.kernel import Kernel, vector


def _vectors(kind: str, ops: dict[str, tuple[float, float]], rows: int, columns: int, dtype: str) -> Iterator[Kernel]:
    for op, (flop, traffic) in ops.items():
        yield vector(kind, op, dtype, rows, columns, flop, traffic)  # type: ignore[arg-type]


NORMS = {
    op + way: (6.0 * (1 + bool(way)), t)
    for op in ("layernorm", "rmsnorm")
    for way, t in (("", 4.0), ("_backward", 10.0))
}
POINTWISE = {
    "add": (1.0, 6.0),
    "mul": (1.0, 6.0),
    "gelu": (1.0, 4.0),
    "gelu_backward": (1.0, 6.0),
    "silu": (1.0, 4.0),
    "silu_backward": (1.0, 6.0),
}
FUSED = {"swiglu": (1.0, 6.0), "swiglu_backward": (1.0, 10.0), "bias_dropout_add": (1.0, 7.0), "rope": (1.0, 4.0)}
COPIES = {"dropout": (0.0, 5.0), "to_fp32": (0.0, 6.0), "from_fp32": (0.0, 6.0), "copy": (0.0, 4.0)}
LOOKUPS = {"embedding": (0.0, 4.0), "permute": (0.0, 4.0), "unpermute": (0.0, 8.0)}


def cases() -> Iterator[Case]:
    """Yield the kernels at the widths of models of the field."""
    for tier, rows, columns in ((0, 8192, 8192), (0, 2048, 12288), (1, 8192, 4096), (1, 16384, 16384), (2, 1024, 4096)):
        for kernel in _vectors("layernorm", NORMS, rows, columns, "bf16"):
            yield Case("vector", kernel, tier=tier)
        for kernel in _vectors("elementwise", POINTWISE, rows, columns, "bf16"):
            yield Case("vector", kernel, tier=tier)
        for kernel in _vectors("elementwise", FUSED, rows, columns, "bf16"):
            yield Case("vector", kernel, note="compiled", tier=1 + (tier > 0))
        for kernel in _vectors("memory", COPIES, rows, columns, "bf16"):
            yield Case("vector", kernel, tier=tier)
        for kernel in _vectors("memory", LOOKUPS, rows, columns, "bf16"):
            yield Case("memory", kernel, tier=tier)
    yield from softmaxes()
    yield from updates()


def softmaxes() -> Iterator[Case]:
    """Yield the softmax of scores and the log-softmax of logits over 32k to 256k entries."""
    for rows, columns in ((16 * 2048, 2048), (32 * 4096, 4096), (8192, 128)):
        for kernel in _vectors(
            "softmax", {"softmax": (5.0, 4.0), "softmax_backward": (5.0, 6.0)}, rows, columns, "bf16"
        ):
            yield Case("vector", kernel, tier=1)
    for entries in (32_000, 50_304, 128_256, 256_000):
        ops = {"log_softmax": (5.0, 8.0), "log_softmax_backward": (5.0, 12.0)}
        for kernel in _vectors("softmax", ops, 4096, entries, "fp32"):
            yield Case("vector", kernel, tier=0 if entries == 128_256 else 1)


def updates() -> Iterator[Case]:
    """Yield the kernels of an update: fused Adam, gradient norm and scale, cleared gradients, the lookup's gradient."""
    sizes = {
        "adam": (0.0, 28.0),
        "gradient_norm": (0.0, 4.0),
        "gradient_scale": (0.0, 8.0),
        "zero_gradients": (0.0, 4.0),
    }
    for tier, parameters in ((0, 500_000_000), (1, 100_000_000), (1, 1_000_000_000)):
        for kernel in _vectors("memory", sizes, 1, parameters, "fp32"):
            yield Case("memory", kernel, tier=tier)
    for rows, columns in ((8192, 4096), (8192, 8192)):
        dense = vector("memory", "embedding_backward", "bf16", rows, columns, 0.0, 6.0)
        yield Case("memory", dense._replace(bytes=dense.bytes + 2.0 * 128_256 * columns), tier=1)
