"""The kernels that `clustersim predictor profile` measures, as plain data: a suite is a list of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from clustersim.profiling.case import Case
from clustersim.profiling.runners.attention import FLASH3
from clustersim.profiling.runners.gemm import ACCUMULATE
from clustersim.profiling.runners.grouped import LOOP
from clustersim.profiling.shapes import GPT3, LLAMA8, LLAMA70, LLAMA405, SEQ, USUAL, borders, linears
from clustersim.workload.kernel import Kernel, attention, gemm, vector

MOST_FLOP = 2e13
"""FLOP of a case at most: 20 to 40 ms on a GPU of 600 to 1,000 TFLOP/s."""
LAYOUT = {"forward": "tn", "dgrad": "nn", "wgrad": "nt"}


def products(rows: int, inputs: int, outputs: int, dtype: str, tier: int) -> Iterator[Case]:
    """Yield a linear layer's three products in their layouts; fp8 ones are all tn, their operands transposed before."""
    shapes = {"forward": (rows, outputs, inputs), "dgrad": (rows, inputs, outputs), "wgrad": (outputs, inputs, rows)}
    for op, (m, n, k) in shapes.items():
        kernel = gemm("linear", op, dtype, 1, m, n, k, output=2)
        yield Case("gemm", kernel, "tn" if dtype == "fp8" else LAYOUT[op], tier=tier)


def accumulating(rows: int, inputs: int, outputs: int, tier: int) -> Case:
    """Return a weight gradient that is added to fp32 main gradients."""
    return Case("gemm", gemm("linear", "wgrad", "bf16", 1, outputs, inputs, rows, 4), "nt", ACCUMULATE, tier)


def gemms() -> Iterator[Case]:
    """Yield matrix products: linears of the models, tile borders, fp8 and fp16, batched ones, and sustained ones."""
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


def both(batch: int, heads: int, kv: int, seq: int, dim: int, causal: bool, note: str, tier: int) -> Iterator[Case]:
    """Yield an attention kernel forward and backward."""
    for op in ("forward", "backward"):
        kernel = attention(op, "bf16", batch, heads, kv, seq, seq, dim, causal)
        yield Case("attention", kernel, note=note, tier=tier)


def attentions() -> Iterator[Case]:
    """Yield fused attention: heads of the models on a rank, sequences of 1k to 32k, dimensions 64 and 128, grouped heads."""
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


def vectors() -> Iterator[Case]:
    """Yield kernels bound by memory: norms, activations, softmax, residuals, casts, lookups, optimizer."""
    for tier, rows, columns in ((0, 8192, 8192), (0, 2048, 12288), (1, 8192, 4096), (1, 16384, 16384), (2, 1024, 4096)):
        for kernel in _vectors("layernorm", NORMS, rows, columns, "bf16"):
            yield Case("vector", kernel, tier=tier, note="")
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


EXPERTS = {
    "mixtral-8x7b": (8, 2, 4096, 14336),
    "mixtral-8x22b": (8, 2, 6144, 16384),
    "deepseek-v3": (256, 8, 7168, 2048),
}
"""Experts, experts a token, hidden size, size of an expert."""


def grouped() -> Iterator[Case]:
    """Yield the grouped products of mixtures of experts on a rank that holds an ep-th of the experts."""
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


SUITES: dict[str, Callable[[], Iterable[Case]]] = {
    "gemm": gemms,
    "attention": attentions,
    "vector": vectors,
    "grouped": grouped,
}


def cases(names: Iterable[str]) -> list[Case]:
    """Return the distinct cases of some suites, those of the lowest tier first, none of more than 2e13 FLOP."""
    found: dict[tuple[object, ...], Case] = {}
    for name in names:
        for case in SUITES[name]() if name in SUITES else ():
            key = (case.kernel, case.layout, case.note)
            before = found.get(key)
            if before is None:
                found[key] = case
            else:
                found[key] = before._replace(
                    sustained=before.sustained or case.sustained, tier=min(before.tier, case.tier)
                )
    return sorted((c for c in found.values() if c.kernel.flop <= MOST_FLOP), key=lambda c: c.tier)
