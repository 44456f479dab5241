"""Fused attention: heads of the models on a rank, sequences of 1k to 32k, grouped heads, several implementations."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.lab.measure.case import Case
from clustersim.lab.measure.runners.attention import FLASH3
from clustersim.lab.measure.shapes import SEQ, USUAL
from clustersim.model.kernel import attention


def both(batch: int, heads: int, kv: int, seq: int, dim: int, causal: bool, note: str, tier: int) -> Iterator[Case]:
    """Yield an attention kernel forward and backward."""
    for op in ("forward", "backward"):
        kernel = attention(op, "bf16", batch, heads, kv, seq, seq, dim, causal)
        yield Case("attention", kernel, note=note, tier=tier)


def cases() -> Iterator[Case]:
    """Yield the attention kernels; of two alike the first one counts."""
    for model, tp in USUAL:
        heads, kv = model.heads // tp, max(1, model.kv_heads // tp)
        yield from both(1, heads, kv, SEQ[model], model.dim, True, "flash", 0)
    for seq in (1024, 2048, 4096, 16384, 32768):
        yield from both(max(1, 16384 // seq), 16, 16, seq, 128, True, "flash", 0 if seq <= 4096 else 1)
    yield from _long_attention()
    for note in ("cudnn", FLASH3):
        for batch, heads, kv, seq in ((1, 32, 8, 8192), (4, 16, 16, 4096), (1, 16, 2, 16384)):
            yield from both(batch, heads, kv, seq, 128, True, note, 1)
    for seq in (1024, 2048, 4096, 8192, 16384):
        for heads, kv in ((8, 8), (32, 8), (64, 8), (128, 16)):
            for dim in (64, 128):
                for causal in (True, False):
                    yield from both(max(1, 8192 // seq), heads, kv, seq, dim, causal, "flash", 2)


def _long_attention() -> Iterator[Case]:
    kernel = attention("forward", "bf16", 1, 64, 8, 8192, 8192, 128, True)
    yield Case("attention", kernel, note="flash", tier=0, sustained=True)
