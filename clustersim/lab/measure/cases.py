"""What is measured, as plain data: kernels (`Case`) in suites by kind, and whole layers or training steps (`Trial`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from clustersim.model.kernel import Kernel, attention, gemm, vector

ACCUMULATE, LOOP, FLASH3 = "fp32 accumulate", "loop", "flash-attention 3"
"""Notes of cases: a wgrad that adds to fp32 main gradients, a product an expert, and the library of attention."""


class Unavailable(Exception):  # noqa: N818  - no error of the user's: the case is skipped and says why
    """This torch, or this GPU, has no such kernel."""


class Case(NamedTuple):
    """One kernel to measure.

    `runner` is the kind of clustersim.lab.measure.runners that runs it; `layout` how a product's operands lie (cuBLAS's
    letters); `note` which implementation it is. `tier` 0 is measured first, 2 last. `sustained` also times ten seconds on end.
    """

    runner: str
    kernel: Kernel
    layout: str = ""
    note: str = ""
    tier: int = 0
    sustained: bool = False


class DecoderShape(NamedTuple):
    """The shape of a decoder: sizes of a whole layer, before it is split over tensor-parallel ranks."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    gated: bool

    @property
    def dim(self) -> int:
        """Return the size of a head."""
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """Return the number of weights, with separate tables for embedding and logits."""
        attention = self.hidden * (2 * self.hidden + 2 * self.kv_heads * self.dim)
        mlp = (3 if self.gated else 2) * self.hidden * self.ffn
        return self.layers * (attention + mlp + 2 * self.hidden) + (2 * self.vocab + 1) * self.hidden


class Trial(NamedTuple):
    """A measurement that is no single kernel.

    `what` is the kind of clustersim.lab.measure.trials that runs it; `mode` eager, compiled or graph (CUDA graph); `variant`
    what else distinguishes it: the recompute setting of a step, a direction of a copy.
    """

    what: str
    model: DecoderShape | None = None
    seq: int = 0
    micro_batch: int = 0
    mode: str = "eager"
    variant: str = ""
    amount: int = 0
    tier: int = 0


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


def both(batch: int, heads: int, kv: int, seq: int, dim: int, causal: bool, note: str, tier: int) -> Iterator[Case]:
    """Yield an attention kernel forward and backward."""
    for op in ("forward", "backward"):
        kernel = attention(op, "bf16", batch, heads, kv, seq, seq, dim, causal)
        yield Case("attention", kernel, note=note, tier=tier)


def attention_cases() -> Iterator[Case]:
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


def product_cases() -> Iterator[Case]:
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


EXPERTS = {
    "mixtral-8x7b": (8, 2, 4096, 14336),
    "mixtral-8x22b": (8, 2, 6144, 16384),
    "deepseek-v3": (256, 8, 7168, 2048),
}
"""Experts, experts a token, hidden size, size of an expert."""


def grouped_cases() -> Iterator[Case]:
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


def vector_cases() -> Iterator[Case]:
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


MOST_FLOP = 2e13
"""FLOP of a case at most: 20 to 40 ms on a GPU of 600 to 1,000 TFLOP/s."""

SUITES: dict[str, Callable[[], Iterable[Case]]] = {
    "gemm": product_cases,
    "attention": attention_cases,
    "vector": vector_cases,
    "grouped": grouped_cases,
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
