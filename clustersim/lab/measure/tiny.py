"""The same cases with small sizes: every one runs on a CPU in milliseconds, to test that it runs at all."""

from __future__ import annotations

from collections.abc import Iterable

from clustersim.lab.measure.case import Case, DecoderShape, Trial
from clustersim.model.kernel import Kernel, attention, gemm


def distinct(work: Iterable[Case | Trial]) -> list[Case | Trial]:
    """Return cases and trials made small, each once."""
    found: dict[object, Case | Trial] = {}
    for one in work:
        small = case(one) if isinstance(one, Case) else trial(one)
        found.setdefault(small._replace(tier=0), small)
    return list(found.values())


def case(one: Case) -> Case:
    """Return a case with sides of at most 32 and a few heads; FLOP and bytes follow."""
    kernel = one.kernel
    if kernel.kind == "flash_attention":
        kv = 1 if kernel.kv_heads < kernel.heads else 2
        small = attention(kernel.op, kernel.dtype, 1, 2, kv, 16, 16, 16, kernel.causal)
    elif kernel.kind in ("linear", "bmm", "grouped_gemm"):
        batch = min(kernel.batch, 2)
        m, n, k = (_side(side) for side in (kernel.m, kernel.n, kernel.k))
        small = gemm(kernel.kind, kernel.op, kernel.dtype, batch, m, n, k, output=2)
    else:
        small = _vector(kernel)
    return one._replace(kernel=small)


def _side(size: int) -> int:
    return max(16, min(size, 32) // 16 * 16)


def _vector(kernel: Kernel) -> Kernel:
    m, n = min(kernel.m, 8), min(kernel.n, 64)
    share = m * n / (kernel.m * kernel.n)
    return kernel._replace(m=m, n=n, flop=kernel.flop * share, bytes=kernel.bytes * share)


def trial(one: Trial) -> Trial:
    """Return a trial with a decoder of two narrow layers and short sequences."""
    model = one.model and DecoderShape(one.model.name, 2, 32, 2, 1 if one.model.gated else 2, 64, 64, one.model.gated)
    amount = min(one.amount, 64)
    return one._replace(model=model, seq=min(one.seq, 16), micro_batch=min(one.micro_batch, 2), amount=amount)
