"""Launches of each kind of kernel: `BUILDERS[kind](case, device)` creates operands and returns the launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from clustersim.lab.measure.cases import ACCUMULATE, COMPILED, LIGER, Case, Unavailable
from clustersim.lab.measure.decoder import rotate
from clustersim.lab.measure.device import Device, compiled
from clustersim.lab.measure.timing import KernelLaunch


def product(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one GEMM. Raises Unavailable."""
    kernel = case.kernel
    if kernel.dtype == "fp8":
        return _scaled(case, device)
    a, b = operands(case, device)
    if case.note == ACCUMULATE:
        return _accumulate(device, a, b)
    out = torch.empty(*a.shape[:-1], b.shape[-1], dtype=a.dtype, device=a.device)
    multiply = torch.bmm if kernel.kind == "bmm" else torch.mm
    plain: KernelLaunch = lambda: multiply(a, b, out=out)  # noqa: E731
    return _tf32(plain) if kernel.dtype == "tf32" else plain


def operands(case: Case, device: Device) -> list[Any]:
    """Return a (m×k) and b (k×n), or batches of them."""
    kernel = case.kernel
    batch = (kernel.batch,) if kernel.kind == "bmm" else ()
    return _matrices(case, device, (*batch, kernel.m, kernel.k), (*batch, kernel.k, kernel.n))


def _matrices(case: Case, device: Device, *shapes: tuple[int, ...]) -> list[Any]:
    """Return a and b of some shapes in the case's layout: a first `t` transposes b, a second one a.

    The letters are cuBLAS's, which sees row-major matrices transposed: tn is a row-major m×k with b row-major n×k.
    """
    turned, dtype = (case.layout == "nt", case.layout == "tn"), case.kernel.dtype
    return [
        device.normal((*batch, columns, rows), dtype).mT if turn else device.normal((*batch, rows, columns), dtype)
        for (*batch, rows, columns), turn in zip(shapes, turned, strict=True)
    ]


def _tf32(launch: KernelLaunch) -> KernelLaunch:
    """Return the launch of a GEMM with fp32 operands that tensor cores round to tf32."""

    def rounded() -> object:
        """Run the GEMM with operands rounded to tf32."""
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return launch()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return rounded


def _accumulate(device: Device, a: Any, b: Any) -> KernelLaunch:
    """Return the launch of a GEMM that is added to an fp32 matrix. Raises Unavailable on a CPU."""
    if not device.real:
        raise Unavailable("torch adds 16-bit products to fp32 on CUDA only")
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float32, device=a.device)
    return lambda: torch.addmm(total, a, b, out_dtype=torch.float32, out=total)


def _scaled(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of an fp8 GEMM with one scale per operand. Raises Unavailable."""
    if not hasattr(torch, "_scaled_mm"):
        raise Unavailable("this torch has no fp8 product")
    if case.layout != "tn":
        raise Unavailable("tensor cores of most GPUs multiply fp8 in layout tn only")
    a, b = operands(case, device)
    one = torch.ones((), dtype=torch.float32, device=device.kind)
    fast = device.real and case.kernel.op == "forward"  # Transformer Engine accumulates fast in forward passes only
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast)


def differentiated(call: Callable[[], Any], inputs: Sequence[Any]) -> KernelLaunch:
    """Return the launch of the backward pass of `call` to its inputs; the forward pass has already run."""
    out = call()
    outputs = out if isinstance(out, tuple) else (out,)
    gradients = [torch.randn_like(one) for one in outputs]
    return lambda: torch.autograd.grad(outputs, inputs, gradients, retain_graph=True)


BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}


def attention(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one attention kernel, by the library in the case's note. Raises Unavailable.

    Operands are (batch, sequence, heads, dim) in memory, the layout after projections.
    """
    kernel, backend = case.kernel, getattr(SDPBackend, BACKENDS[case.note])
    backward, grouped = kernel.op == "backward", kernel.heads != kernel.kv_heads
    queries = (kernel.batch, kernel.m, kernel.heads, kernel.k)
    keys = (kernel.batch, kernel.n, kernel.kv_heads, kernel.k)
    inputs = [device.normal(shape, kernel.dtype, backward) for shape in (queries, keys, keys)]

    def attend() -> Any:
        """Return the output of attention (batch, heads, sequence, dim)."""
        q, k, v = (one.transpose(1, 2) for one in inputs)
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=kernel.causal, enable_gqa=grouped)

    return differentiated(attend, inputs) if backward else attend


SUFFIX = "_backward"


class Function(NamedTuple):
    """A function of `inputs` tensors of rows×columns and `weights` of one row, of type `dtype` or else the kernel's."""

    call: Callable[..., Any]
    inputs: int = 1
    weights: int = 0
    dtype: str = ""


def _rotate_heads(q: Any, k: Any, cosine: Any, sine: Any) -> Any:
    """Return queries and keys (batch, heads, sequence, dim) with rotary positions."""
    wide, thin = cosine.unsqueeze(1), sine.unsqueeze(1)
    return rotate(q, wide, thin), rotate(k, wide, thin)


FUNCTIONS = {
    "layernorm": Function(lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b), 1, 2),
    "rmsnorm": Function(lambda x, w: functional.rms_norm(x, x.shape[-1:], w, 1e-5), 1, 1),
    "softmax": Function(lambda x: x.softmax(-1)),
    "log_softmax": Function(lambda x: x.log_softmax(-1)),
    "gelu": Function(lambda x: functional.gelu(x, approximate="tanh")),
    "geglu": Function(lambda gate, x: functional.gelu(gate, approximate="tanh") * x, 2),
    "silu": Function(functional.silu),
    "swiglu": Function(lambda x, gate: functional.silu(gate) * x, 2),
    "add": Function(lambda x, y: x + y, 2),
    "mul": Function(lambda x, y: x * y, 2),
    "bias_dropout_add": Function(lambda x, y: y + functional.dropout(x, 0.1, training=True), 2),
    "dropout": Function(lambda x: functional.dropout(x, 0.1, training=True)),
    "rope": Function(rotate, 1, 2),
    "to_fp32": Function(lambda x: x.float()),
    "from_fp32": Function(lambda x: x.bfloat16(), dtype="fp32"),
    "copy": Function(lambda x: x.clone()),
    "cross_entropy": Function(lambda x, targets: functional.cross_entropy(x.float(), targets)),
}


def tensors(function: Function, case: Case, device: Device, grad: bool) -> list[Any]:
    """Return the inputs and weights of a function, for a kernel's rows and columns."""
    shape, dtype = (case.kernel.m, case.kernel.n), function.dtype or case.kernel.dtype
    return [device.normal(one, dtype, grad) for one in (*[shape] * function.inputs, *[shape[1:]] * function.weights)]


def vector(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one vector kernel."""
    op, backward = case.kernel.op.removesuffix(SUFFIX), case.kernel.op.endswith(SUFFIX)
    call = compiled(FUNCTIONS[op].call, device) if case.note == COMPILED else FUNCTIONS[op].call
    inputs = tensors(FUNCTIONS[op], case, device, backward)
    if backward:
        return differentiated(lambda: call(*inputs), inputs)
    return torch.no_grad()(lambda: call(*inputs))


LIGER_NAMES = {"rmsnorm": "rms_norm", "layernorm": "layer_norm"}
"""{operator: its different name in liger_kernel.transformers.functional}"""


def _liger(op: str) -> Callable[..., Any]:
    """Return liger-kernel's function for an operator. Raises Unavailable."""
    try:
        from liger_kernel.transformers import functional as liger  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise Unavailable("liger-kernel is not installed") from error
    call: Callable[..., Any] | None = getattr(liger, f"liger_{LIGER_NAMES.get(op, op)}", None)
    if call is None:
        raise Unavailable(f"liger-kernel has no {op}")
    return (lambda *inputs: call(*inputs, 1e-5)) if op in LIGER_NAMES else call  # norms take an epsilon


def provided(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of an operator of the library in the case's note. Raises Unavailable.

    A forward pass runs as in training, and saves tensors for the backward pass.
    """
    op, backward = case.kernel.op.removesuffix(SUFFIX), case.kernel.op.endswith(SUFFIX)
    if backward and case.note == LIGER and op == "cross_entropy":
        raise Unavailable("liger-kernel computes the gradient of logits in the forward pass")
    call = _rotate_heads if op == "rope" else FUNCTIONS[op].call
    call = _liger(op) if case.note == LIGER else compiled(call, device) if case.note == COMPILED else call
    inputs, constants = _provided_inputs(op, case, device)
    if backward:
        return differentiated(lambda: call(*inputs, *constants), inputs)
    return lambda: call(*inputs, *constants)


def _provided_inputs(op: str, case: Case, device: Device) -> tuple[list[Any], list[Any]]:
    """Return (tensors with gradients, other tensors) of an operator."""
    rows, columns, dtype = case.kernel.m, case.kernel.n, case.kernel.dtype
    if op == "rope":
        groups = max(1, columns // 640)
        dim = columns // (5 * groups) // 2 * 2
        heads = [device.normal((1, rows, count, dim), dtype) for count in (4 * groups, groups)]
        turns = [device.normal((1, rows, dim), dtype) for _ in range(2)]
        return [one.transpose(1, 2).requires_grad_() for one in heads], turns
    targets = [device.integers(rows, columns)] if op == "cross_entropy" else []
    return tensors(FUNCTIONS[op], case, device, True), targets


def grouped(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of the GEMMs of `batch` experts, whose tokens are contiguous; fp8 ones with a scale per row.

    Raises Unavailable.
    """
    kernel, count, wgrad = case.kernel, case.kernel.batch, case.kernel.op == "wgrad"  # wgrad: k tokens per expert
    each, rows = (kernel.k, kernel.m) if wgrad else (kernel.m, count * kernel.m)
    inner = (count * kernel.k,) if wgrad else (count, kernel.k)
    a, b = _matrices(case, device, (rows, inner[-1]), (*inner, kernel.n))
    if not hasattr(torch, "_grouped_mm"):
        raise Unavailable("this torch has no grouped product")
    ends = torch.arange(1, count + 1, dtype=torch.int32, device=device.kind) * each
    if kernel.dtype != "fp8":
        return lambda: torch._grouped_mm(a, b, offs=ends)
    if not device.real:
        raise Unavailable("torch multiplies groups in fp8 on CUDA only")
    ones = partial(torch.ones, dtype=torch.float32, device=device.kind)
    scales = ones(count * kernel.m), ones(count * kernel.n) if wgrad else ones(count, kernel.n)
    return lambda: torch._scaled_grouped_mm(
        a, b, *scales, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=not wgrad
    )


VOCABULARY = 128_256


def memory(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one memory-bound kernel: of embeddings, of tokens' order, or of the optimizer (m of 1)."""
    m, n, op = case.kernel.m, case.kernel.n, case.kernel.op
    values, entries = device.normal((m, n), case.kernel.dtype), VOCABULARY if device.real else 64
    flat = values.view(-1)
    if op == "embedding":
        table, tokens = device.normal((entries, n), case.kernel.dtype), device.integers(m, entries)
        return lambda: functional.embedding(tokens, table)
    if op == "embedding_backward":
        tokens = device.integers(m, entries)
        return lambda: torch.ops.aten.embedding_dense_backward(values, tokens, entries, -1, False)
    if op == "permute":  # rows in random order, as for tokens sorted by expert
        order = device.integers(m, m)
        return lambda: values.index_select(0, order)
    if op == "unpermute":
        total, order = torch.zeros_like(values), torch.randperm(m, device=device.kind)
        return lambda: total.index_add_(0, order, values)
    if op == "adam":
        weight = device.normal((n,), "fp32", grad=True)
        weight.grad = flat
        return torch.optim.AdamW([weight], lr=1e-4, fused=True, capturable=device.real).step
    launches: dict[str, KernelLaunch] = {
        "gradient_norm": lambda: torch.linalg.vector_norm(flat),
        "gradient_scale": lambda: flat.mul_(1.0),
        "zero_gradients": flat.zero_,
    }
    return launches[op]


BUILDERS: dict[str, Callable[[Case, Device], KernelLaunch]] = {
    "gemm": product,
    "attention": attention,
    "vector": vector,
    "grouped": grouped,
    "memory": memory,
    "provided": provided,
}
"""{runner of a case: function that builds its launch}"""
