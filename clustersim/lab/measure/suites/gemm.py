"""Matrix products: linears of the models, borders of tiles and waves, fp8 and fp16, batched and sustained ones."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.lab.measure.case import Case
from clustersim.lab.measure.runners.gemm import ACCUMULATE
from clustersim.lab.measure.shapes import GPT3, LLAMA8, LLAMA70, LLAMA405, SEQ, USUAL, borders, linears
from clustersim.model.kernel import gemm

LAYOUT = {"forward": "tn", "dgrad": "nn", "wgrad": "nt"}
"""How the operands of a linear layer's three products lie."""


def products(rows: int, inputs: int, outputs: int, dtype: str, tier: int) -> Iterator[Case]:
    """Yield a linear layer's three products in their layouts; fp8 ones are all tn, their operands transposed before."""
    shapes = {"forward": (rows, outputs, inputs), "dgrad": (rows, inputs, outputs), "wgrad": (outputs, inputs, rows)}
    for op, (m, n, k) in shapes.items():
        kernel = gemm("linear", op, dtype, 1, m, n, k, output=2)
        yield Case("gemm", kernel, "tn" if dtype == "fp8" else LAYOUT[op], tier=tier)


def accumulating(rows: int, inputs: int, outputs: int, tier: int) -> Case:
    """Return a weight gradient that is added to fp32 main gradients."""
    return Case("gemm", gemm("linear", "wgrad", "bf16", 1, outputs, inputs, rows, 4), "nt", ACCUMULATE, tier)


def cases() -> Iterator[Case]:
    """Yield the products; of two alike the first one counts."""
    for model, tp in USUAL:
        for linear in linears(model, tp):
            yield from products(SEQ[model], linear.inputs, linear.outputs, "bf16", 0)
    yield from sustained()
    for model, tp in USUAL:
        for linear in linears(model, tp):
            yield accumulating(SEQ[model], linear.inputs, linear.outputs, 0 if model is LLAMA8 else 1)
            yield from products(SEQ[model], linear.inputs, linear.outputs, "fp8", 0 if model is LLAMA70 else 1)
    for m, n, k in borders():
        yield Case("gemm", gemm("linear", "forward", "bf16", 1, m, n, k), "tn", tier=1)
    for model in (LLAMA8, GPT3, LLAMA70, LLAMA405):
        for tp in (1, 2, 4, 8):
            for micro_batch in (1, 2, 4):
                for linear in linears(model, tp):
                    yield from products(micro_batch * SEQ[model], linear.inputs, linear.outputs, "bf16", 2)
    for linear in linears(GPT3, 8):
        yield from products(SEQ[GPT3], linear.inputs, linear.outputs, "fp16", 2)
    yield from batched()


def sustained() -> Iterator[Case]:
    """Yield the products that are also run for ten seconds on end: large, memory-bound, fp8."""
    for m, n, k in ((8192, 8192, 8192), (8192, 57344, 8192), (2048, 6144, 12288)):
        yield Case("gemm", gemm("linear", "forward", "bf16", 1, m, n, k), "tn", tier=0, sustained=True)
    yield Case("gemm", gemm("linear", "wgrad", "bf16", 1, 8192, 8192, 8192), "nt", tier=0, sustained=True)
    yield Case("gemm", gemm("linear", "forward", "fp8", 1, 8192, 8192, 8192, output=2), "tn", sustained=True)


def batched() -> Iterator[Case]:
    """Yield the batched products of unfused attention."""
    for batch, seq, dim in ((12, 2048, 128), (96, 2048, 128), (48, 2048, 64), (16, 4096, 128), (64, 1024, 64)):
        for op, shape, layout in (("scores", (seq, seq, dim), "tn"), ("context", (seq, dim, seq), "nn")):
            yield Case("gemm", gemm("bmm", op, "bf16", batch, *shape), layout, tier=1)
        yield Case("gemm", gemm("bmm", "scores_wgrad", "bf16", batch, seq, dim, seq), "nt", tier=1)
