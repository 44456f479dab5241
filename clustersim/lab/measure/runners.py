"""How each kind of kernel is run: `BUILDERS[kind](case, device)` makes operands and returns the launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from clustersim.lab.measure.cases import ACCUMULATE, FLASH3, LOOP, Case, Unavailable
from clustersim.lab.measure.device import Device, compiled
from clustersim.lab.measure.timing import KernelLaunch


def product(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one product. Raises Unavailable."""
    kernel = case.kernel
    if kernel.kind == "bmm":
        return _batched(case, device)
    if kernel.dtype == "fp8":
        return _scaled(case, device)
    a, b = operands(case, device)
    if case.note == ACCUMULATE:
        return _accumulate(device, a, b)
    return _plain(a, b)


def operands(case: Case, device: Device) -> tuple[Any, Any]:
    """Return a (m×k) and b (k×n), stored as the layout says: `t` of the first letter is b's, of the second a's.

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


BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


def attention(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one attention kernel; a backward one has its forward pass behind it. Raises Unavailable."""
    import torch

    backward = case.kernel.op == "backward"
    q, k, v = attention_operands(case, device, backward)
    attend = _flash3(case) if case.note == FLASH3 else _torch(case)
    if not backward:
        return lambda: attend(q, k, v)
    out = attend(q, k, v)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def attention_operands(case: Case, device: Device, grad: bool) -> tuple[Any, Any, Any]:
    """Return q, k, v as (batch, sequence, heads, dim), as projections leave them."""
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


def _flash3(case: Case) -> Callable[[Any, Any, Any], Any]:
    try:
        from flash_attn_interface import flash_attn_func  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise Unavailable("FlashAttention-3 is not installed") from error

    def attend(q: Any, k: Any, v: Any) -> Any:
        found = flash_attn_func(q, k, v, causal=case.kernel.causal)
        return found[0] if isinstance(found, tuple) else found

    return attend


COMPILED = "compiled"
SUFFIX = "_backward"


class Function(NamedTuple):
    """A function of `inputs` tensors of rows×columns and `weights` of one row, of type `dtype` if not the kernel's."""

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
    """Return the launch of one kernel."""
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


def grouped(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of the products of `batch` experts, whose tokens lie one expert after another.

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
    if case.note == LOOP:
        return _loop(case, a, b, each)
    if not hasattr(torch, "_grouped_mm"):
        raise Unavailable("this torch has no grouped product")
    ends = torch.arange(1, kernel.batch + 1, dtype=torch.int32, device=device.kind) * each
    return lambda: torch._grouped_mm(a, b, offs=ends)


def _weights(case: Case, device: Device) -> Any:
    kernel = case.kernel
    if case.layout == "tn":
        return device.normal((kernel.batch, kernel.n, kernel.k), kernel.dtype).transpose(1, 2)
    return device.normal((kernel.batch, kernel.k, kernel.n), kernel.dtype)


def _loop(case: Case, a: Any, b: Any, each: int) -> KernelLaunch:
    import torch

    if case.kernel.op == "wgrad":
        pairs = list(zip(a.split(each, dim=1), b.split(each), strict=True))
    else:
        pairs = list(zip(a.split(each), b, strict=True))
    return lambda: [torch.mm(one, other) for one, other in pairs]


VOCABULARY = 128_256


def memory(case: Case, device: Device) -> KernelLaunch:
    """Return the launch of one kernel."""
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
    """Return the gather of m rows in random order: tokens sorted by their expert."""
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
}
"""By the runner that a case names."""
