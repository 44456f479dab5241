"""Grouped products of mixtures of experts, on a rank that holds an ep-th of the experts."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.lab.measure.case import Case
from clustersim.lab.measure.runners.grouped import LOOP
from clustersim.lab.measure.suites.gemm import LAYOUT
from clustersim.model.kernel import gemm

EXPERTS = {
    "mixtral-8x7b": (8, 2, 4096, 14336),
    "mixtral-8x22b": (8, 2, 6144, 16384),
    "deepseek-v3": (256, 8, 7168, 2048),
}
"""Experts, experts a token, hidden size, size of an expert."""


def cases() -> Iterator[Case]:
    """Yield forward, dgrad and wgrad of both linears of the experts, routing balanced."""
    for tier, name, ep, tokens in (
        *((0, "mixtral-8x7b", ep, 8192) for ep in (1, 8)),
        *((0, "deepseek-v3", ep, 8192) for ep in (8, 32)),
        *((1, name, ep, tokens) for name in EXPERTS for ep in (4, 16) for tokens in (4096, 16384)),
    ):
        experts, topk, hidden, ffn = EXPERTS[name]
        if experts % ep == 0:
            yield from _experts(experts // ep, tokens * topk // experts * ep, hidden, ffn, tier)


def _experts(count: int, rows: int, hidden: int, ffn: int, tier: int) -> Iterator[Case]:
    for inputs, outputs in ((hidden, 2 * ffn), (ffn, hidden)):
        shapes = {
            "forward": (rows, outputs, inputs),
            "dgrad": (rows, inputs, outputs),
            "wgrad": (outputs, inputs, rows),
        }
        for op, (m, n, k) in shapes.items():
            kernel = gemm("grouped_gemm", op, "bf16", count, m, n, k)
            yield Case("grouped", kernel, LAYOUT[op], tier=tier)
            if op == "forward":
                yield Case("grouped", kernel, LAYOUT[op], LOOP, tier=2)
