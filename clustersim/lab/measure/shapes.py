"""Shapes that training runs: models of the field, the linears of one tensor-parallel rank, and sides around tile borders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from clustersim.lab.measure.case import DecoderShape

GPT3 = DecoderShape("gpt3-175b", 96, 12288, 96, 96, 49152, 51200, False)
LLAMA8 = DecoderShape("llama3-8b", 32, 4096, 32, 8, 14336, 128_256, True)
LLAMA70 = DecoderShape("llama3-70b", 80, 8192, 64, 8, 28672, 128_256, True)
LLAMA405 = DecoderShape("llama3-405b", 126, 16384, 128, 8, 53248, 128_256, True)
SEQ = {GPT3: 2048, LLAMA8: 8192, LLAMA70: 8192, LLAMA405: 8192}
USUAL = ((LLAMA8, 1), (LLAMA70, 8), (GPT3, 8), (LLAMA405, 8), (LLAMA70, 4))
"""Models and the tensor-parallel sizes that they are trained with."""

SMALL = (
    DecoderShape("gpt-1.3b", 24, 2048, 16, 16, 8192, 50304, False),
    DecoderShape("gpt-2.7b", 32, 2560, 32, 32, 10240, 50304, False),
    DecoderShape("llama-3.2b", 28, 3072, 24, 8, 8192, 128_256, True),
)
"""Models whose training step fits one GPU of 80 GB and more, with fp32 master weights and Adam."""


class Linear(NamedTuple):
    """One linear layer of a rank: `inputs` to `outputs` features."""

    name: str
    inputs: int
    outputs: int


def linears(model: DecoderShape, tp: int) -> tuple[Linear, ...]:
    """Return the linears of one of `tp` ranks, Megatron's split."""
    narrow = max(1, model.kv_heads // tp) * model.dim
    inner = model.ffn // tp
    return (
        Linear("qkv", model.hidden, model.hidden // tp + 2 * narrow),
        Linear("projection", model.hidden // tp, model.hidden),
        Linear("fc1", model.hidden, (2 if model.gated else 1) * inner),
        Linear("fc2", inner, model.hidden),
        Linear("logits", model.hidden, model.vocab // tp),
    )


def borders() -> Iterator[tuple[int, int, int]]:
    """Yield (m, n, k) around the borders of tiles (64 to 256) and waves (108 to 148 SMs), and thin and short products."""
    for side in (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384):
        yield side, side, side
    for offset in (-128, -64, -8, 8, 64, 128):
        yield 4096 + offset, 4096, 4096
        yield 4096, 4096 + offset, 4096
        yield 4096, 4096, 4096 + offset
    for tiles in (108, 114, 132, 133, 142, 144, 148, 264, 265):
        yield 128 * tiles, 256, 4096
    for reduction in (64, 128, 256, 512, 1024, 2048, 16384, 65536):
        yield 4096, 4096, reduction
    for rows in (16, 64, 128, 192, 320, 640):
        yield rows, 8192, 8192
    for columns in (64, 128, 192, 320, 640):
        yield 8192, columns, 8192
