"""Kernels bound by memory, over rows×columns values: norms, activations, softmax, residuals, rotary embedding, casts.

Each is a function of its inputs; a name with `_backward` runs torch's gradient of the function without it. `compiled` in the
note fuses the function into one kernel by torch.compile, as Megatron's fused kernels are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from clustersim.lab.measure.case import Case
from clustersim.lab.measure.device import Device
from clustersim.lab.measure.fuse import compiled
from clustersim.lab.measure.timing import KernelLaunch

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


def build(case: Case, device: Device) -> KernelLaunch:
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
