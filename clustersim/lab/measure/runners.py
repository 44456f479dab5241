"""Launches of each kind of kernel: `BUILDERS[kind](case, device)` creates operands and returns the launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from clustersim.lab.measure.cases import ACCUMULATE, COMPILED, LIGER, Case, Unavailable
from clustersim.lab.measure.device import Device, compiled
from clustersim.lab.measure.timing import KernelLaunch


def product(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one GEMM. Raises Unavailable."""
    kernel = case.kernel
    if kernel.kind == "bmm":
        return _batched(case, device)
    if kernel.dtype == "fp8":
        return _scaled(case, device)
    a, b = operands(case, device)
    if case.note == ACCUMULATE:
        return _accumulate(device, a, b)
    return _tf32(_plain(a, b)) if kernel.dtype == "tf32" else _plain(a, b)


def operands(case: Case, device: Device) -> tuple[Any, Any]:
    """Return a (m×k) and b (k×n), stored in the case's layout: `t` in the first letter transposes b, in the second a.

    The letters are cuBLAS's, which sees row-major matrices transposed: tn is a row-major m×k with b row-major n×k.
    """
    kernel = case.kernel
    m, n, k, dtype = kernel.m, kernel.n, kernel.k, kernel.dtype
    a = device.normal((k, m), dtype).t() if case.layout == "nt" else device.normal((m, k), dtype)
    b = device.normal((n, k), dtype).t() if case.layout == "tn" else device.normal((k, n), dtype)
    return a, b


def _plain(a: Any, b: Any) -> KernelLaunch:
    import torch

    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    return lambda: torch.mm(a, b, out=out)


def _tf32(launch: KernelLaunch) -> KernelLaunch:
    """Return the launch of a GEMM with fp32 operands that tensor cores round to tf32."""
    import torch

    def rounded() -> object:
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return launch()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return rounded


def _accumulate(device: Device, a: Any, b: Any) -> KernelLaunch:
    import torch

    if not device.real:
        raise Unavailable("torch adds 16-bit products to fp32 on CUDA only")
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float32, device=a.device)

    def launch() -> object:
        return torch.addmm(total, a, b, out_dtype=torch.float32, out=total)

    return launch


def _scaled(case: Case, device: Device) -> KernelLaunch:
    import torch

    if not hasattr(torch, "_scaled_mm"):
        raise Unavailable("this torch has no fp8 product")
    if case.layout != "tn":
        raise Unavailable("tensor cores of most GPUs multiply fp8 in layout tn only")
    a, b = operands(case, device)
    one = torch.ones((), dtype=torch.float32, device=device.kind)
    fast = device.real and case.kernel.op == "forward"  # Transformer Engine accumulates fast in forward passes only

    def launch() -> object:
        return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return launch


def _batched(case: Case, device: Device) -> KernelLaunch:
    import torch

    batch, m, n, k = case.kernel.batch, case.kernel.m, case.kernel.n, case.kernel.k
    a = device.normal((batch, m, k), case.kernel.dtype)
    if case.layout == "nt":
        a = device.normal((batch, k, m), case.kernel.dtype).transpose(1, 2)
    b = device.normal((batch, k, n), case.kernel.dtype)
    if case.layout == "tn":
        b = device.normal((batch, n, k), case.kernel.dtype).transpose(1, 2)
    out = torch.empty(batch, m, n, dtype=a.dtype, device=a.device)
    return lambda: torch.bmm(a, b, out=out)


BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}


def attention(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one attention kernel. A backward kernel's forward pass has already run. Raises Unavailable."""
    import torch

    backward = case.kernel.op == "backward"
    q, k, v = attention_operands(case, device, backward)
    attend = _torch(case)
    if not backward:
        return lambda: attend(q, k, v)
    out = attend(q, k, v)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def attention_operands(case: Case, device: Device, grad: bool) -> tuple[Any, Any, Any]:
    """Return q, k, v as (batch, sequence, heads, dim), the layout after projections."""
    kernel = case.kernel
    queries = (kernel.batch, kernel.m, kernel.heads, kernel.k)
    keys = (kernel.batch, kernel.n, kernel.kv_heads, kernel.k)
    return tuple(device.normal(shape, kernel.dtype, grad) for shape in (queries, keys, keys))


def _torch(case: Case) -> Callable[[Any, Any, Any], Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backend, kernel = getattr(SDPBackend, BACKENDS[case.note]), case.kernel
    grouped = kernel.heads != kernel.kv_heads

    def attend(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=kernel.causal, enable_gqa=grouped
            )

    return attend


SUFFIX = "_backward"


class Function(NamedTuple):
    """A function of `inputs` tensors of rows×columns and `weights` of one row, of type `dtype` or else the kernel's."""

    call: Callable[..., Any]
    inputs: int = 1
    weights: int = 0
    dtype: str = ""


def _functional() -> Any:
    from torch.nn import functional

    return functional


def _dropout_add(x: Any, residual: Any) -> Any:
    return residual + _functional().dropout(x, 0.1, training=True)


def _rotate(x: Any, cosine: Any, sine: Any) -> Any:
    import torch

    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


FUNCTIONS = {
    "layernorm": Function(lambda x, w, b: _functional().layer_norm(x, x.shape[-1:], w, b), 1, 2),
    "rmsnorm": Function(lambda x, w: _functional().rms_norm(x, x.shape[-1:], w, 1e-5), 1, 1),
    "softmax": Function(lambda x: x.softmax(-1)),
    "log_softmax": Function(lambda x: x.log_softmax(-1)),
    "gelu": Function(lambda x: _functional().gelu(x, approximate="tanh")),
    "silu": Function(lambda x: _functional().silu(x)),
    "swiglu": Function(lambda x, gate: _functional().silu(gate) * x, 2),
    "add": Function(lambda x, y: x + y, 2),
    "mul": Function(lambda x, y: x * y, 2),
    "bias_dropout_add": Function(_dropout_add, 2),
    "dropout": Function(lambda x: _functional().dropout(x, 0.1, training=True)),
    "rope": Function(_rotate, 1, 2),
    "to_fp32": Function(lambda x: x.float()),
    "from_fp32": Function(lambda x: x.bfloat16(), dtype="fp32"),
    "copy": Function(lambda x: x.clone()),
}


def vector(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one vector kernel."""
    import torch

    op = case.kernel.op
    function = FUNCTIONS[op.removesuffix(SUFFIX)]
    backward = op.endswith(SUFFIX)
    call = compiled(function.call, device) if case.note == COMPILED else function.call
    shape, dtype = (case.kernel.m, case.kernel.n), function.dtype or case.kernel.dtype
    rows = [device.normal(shape, dtype, backward) for _ in range(function.inputs)]
    inputs = (*rows, *(device.normal(shape[1:], dtype, backward) for _ in range(function.weights)))
    if not backward:
        return _without_graph(call, inputs)
    out = call(*inputs)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _without_graph(call: Callable[..., Any], inputs: tuple[Any, ...]) -> KernelLaunch:
    import torch

    def launch() -> object:
        with torch.no_grad():
            return call(*inputs)

    return launch


def _cross_entropy(logits: Any, targets: Any) -> Any:
    return _functional().cross_entropy(logits.float(), targets)


def _rotate_both(q: Any, k: Any, cosine: Any, sine: Any) -> Any:
    wide, thin = cosine.unsqueeze(1), sine.unsqueeze(1)
    return _rotate(q, wide, thin), _rotate(k, wide, thin)


LIGER_NAMES = {"rmsnorm": "rms_norm", "layernorm": "layer_norm"}
"""{operator: its different name in liger_kernel.transformers.functional}"""


def _liger(op: str) -> Callable[..., Any]:
    try:
        from liger_kernel.transformers import functional  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise Unavailable("liger-kernel is not installed") from error
    call = getattr(functional, f"liger_{LIGER_NAMES.get(op, op)}", None)
    if call is None:
        raise Unavailable(f"liger-kernel has no {op}")
    given: Callable[..., Any] = call
    epsilon = {"rmsnorm", "layernorm"}
    return (lambda *inputs: given(*inputs, 1e-5)) if op in epsilon else given


def _geglu(gate: Any, value: Any) -> Any:
    return _functional().gelu(gate, approximate="tanh") * value


EAGER: dict[str, Callable[..., Any]] = {"cross_entropy": _cross_entropy, "rope": _rotate_both, "geglu": _geglu}


def provided(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of an operator of the library in the case's note. Raises Unavailable.

    A forward pass runs as in training, and saves tensors for the backward pass.
    """
    import torch

    op, backward = case.kernel.op.removesuffix(SUFFIX), case.kernel.op.endswith(SUFFIX)
    if backward and case.note == LIGER and op == "cross_entropy":
        raise Unavailable("liger-kernel computes the gradient of logits in the forward pass")
    call = _liger(op) if case.note == LIGER else EAGER[op] if op in EAGER else FUNCTIONS[op].call
    call = compiled(call, device) if case.note == COMPILED else call
    wanted, constants = _provided_inputs(op, case, device)
    if not backward:
        return lambda: call(*wanted, *constants)
    out = call(*wanted, *constants)
    outputs = out if isinstance(out, tuple) else (out,)
    gradients = [torch.randn_like(one) for one in outputs]
    return lambda: torch.autograd.grad(outputs, wanted, gradients, retain_graph=True)


def _provided_inputs(op: str, case: Case, device: Device) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return (tensors with gradients, other tensors)."""
    rows, columns, dtype = case.kernel.m, case.kernel.n, case.kernel.dtype
    if op == "rope":
        groups = max(1, columns // 640)
        dim = columns // (5 * groups) // 2 * 2
        heads = (device.normal((1, rows, count, dim), dtype) for count in (4 * groups, groups))
        turns = (device.normal((1, rows, dim), dtype) for _ in range(2))
        return tuple(one.transpose(1, 2).requires_grad_() for one in heads), tuple(turns)
    if op == "cross_entropy":
        return (device.normal((rows, columns), dtype, True),), (device.integers(rows, columns),)
    inputs, weights = {"rmsnorm": (1, 1), "layernorm": (1, 2), "softmax": (1, 0), "gelu": (1, 0)}.get(op, (2, 0))
    shapes = [(rows, columns)] * inputs + [(columns,)] * weights
    return tuple(device.normal(shape, dtype, True) for shape in shapes), ()


def grouped(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of the GEMMs of `batch` experts, whose tokens are contiguous.

    Raises Unavailable.
    """
    import torch

    kernel = case.kernel
    if kernel.op == "wgrad":  # m outputs, n inputs, k tokens an expert
        tokens = kernel.batch * kernel.k
        a = device.normal((tokens, kernel.m), kernel.dtype).t()
        b = device.normal((tokens, kernel.n), kernel.dtype)
        each = kernel.k
    else:
        a = device.normal((kernel.batch * kernel.m, kernel.k), kernel.dtype)
        b = _weights(case, device)
        each = kernel.m
    if not hasattr(torch, "_grouped_mm"):
        raise Unavailable("this torch has no grouped product")
    ends = torch.arange(1, kernel.batch + 1, dtype=torch.int32, device=device.kind) * each
    return lambda: torch._grouped_mm(a, b, offs=ends)


def _weights(case: Case, device: Device) -> Any:
    kernel = case.kernel
    if case.layout == "tn":
        return device.normal((kernel.batch, kernel.n, kernel.k), kernel.dtype).transpose(1, 2)
    return device.normal((kernel.batch, kernel.k, kernel.n), kernel.dtype)


VOCABULARY = 128_256


def memory(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one memory-bound kernel."""
    return MAKERS[case.kernel.op](case, device)


def _embedding(case: Case, device: Device) -> KernelLaunch:
    from torch.nn.functional import embedding

    entries = VOCABULARY if device.real else 64
    table = device.normal((entries, case.kernel.n), case.kernel.dtype)
    tokens = device.integers(case.kernel.m, entries)
    return lambda: embedding(tokens, table)


def _embedding_backward(case: Case, device: Device) -> KernelLaunch:
    import torch

    entries = VOCABULARY if device.real else 64
    gradient = device.normal((case.kernel.m, case.kernel.n), case.kernel.dtype)
    tokens = device.integers(case.kernel.m, entries)
    return lambda: torch.ops.aten.embedding_dense_backward(gradient, tokens, entries, -1, False)


def _permute(case: Case, device: Device) -> KernelLaunch:
    """Return the gather of m rows in random order, as for tokens sorted by expert."""
    rows = device.normal((case.kernel.m, case.kernel.n), case.kernel.dtype)
    order = device.integers(case.kernel.m, case.kernel.m)
    return lambda: rows.index_select(0, order)


def _unpermute(case: Case, device: Device) -> KernelLaunch:
    import torch

    rows = device.normal((case.kernel.m, case.kernel.n), case.kernel.dtype)
    total = torch.zeros_like(rows)
    order = torch.randperm(case.kernel.m, device=device.kind)
    return lambda: total.index_add_(0, order, rows)


def _adam(case: Case, device: Device) -> KernelLaunch:
    import torch

    weight = device.normal((case.kernel.n,), "fp32", grad=True)
    weight.grad = device.normal((case.kernel.n,), "fp32")
    optimizer = torch.optim.AdamW([weight], lr=1e-4, fused=True, capturable=device.real)
    return optimizer.step


def _norm(case: Case, device: Device) -> KernelLaunch:
    import torch

    gradient = device.normal((case.kernel.n,), case.kernel.dtype)
    return lambda: torch.linalg.vector_norm(gradient)


def _scale(case: Case, device: Device) -> KernelLaunch:
    gradient = device.normal((case.kernel.n,), case.kernel.dtype)
    return lambda: gradient.mul_(1.0)


def _fill(case: Case, device: Device) -> KernelLaunch:
    values = device.normal((case.kernel.n,), case.kernel.dtype)
    clear: KernelLaunch = values.zero_
    return clear


MAKERS: dict[str, Callable[[Case, Device], KernelLaunch]] = {
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "permute": _permute,
    "unpermute": _unpermute,
    "adam": _adam,
    "gradient_norm": _norm,
    "gradient_scale": _scale,
    "zero_gradients": _fill,
}


BUILDERS: dict[str, Callable[[Case, Device], KernelLaunch]] = {
    "gemm": product,
    "attention": attention,
    "vector": vector,
    "grouped": grouped,
    "memory": memory,
    "provided": provided,
}
"""{runner of a case: function that builds its launch}"""
