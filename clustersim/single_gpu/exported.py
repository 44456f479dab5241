"""A PyTorch module as a graph: the kernels that each call of an operator launches on a GPU, by the operator's ATen name.

Bytes are those of PyTorch's CUDA kernels: every operand that a kernel reads or writes, once. They agree with the operators of
NeuSight's traces on A100-40GB, V100, P100 and T4.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.errors import InputError
from clustersim.files import packaged_rows
from clustersim.single_gpu import prices
from clustersim.single_gpu.memory import traced_memory
from clustersim.single_gpu.model import OUTSIDE, Graph, OperatorCall, PassPhase
from clustersim.single_gpu.prices import KernelList, Tensor

if TYPE_CHECKING:
    import torch

Price = Callable[[str, Sequence[Tensor], Sequence[Tensor]], KernelList]


def _prices() -> dict[str, Price]:
    """Return {ATen name: function that prices a call}, of `operators.csv`: by its rows of `kernels.csv`, or of that name."""
    rows = defaultdict[str, list[dict[str, str]]](list)
    for row in packaged_rows(Path(__file__).with_name("kernels.csv")):
        rows[row["law"]].append(row)
    laws: dict[str, Price] = {law: partial(prices.tabled, tuple(of)) for law, of in rows.items()}
    return {
        op: laws.get(row["kernels"]) or getattr(prices, row["kernels"])
        for row in packaged_rows(Path(__file__).with_name("operators.csv"))
        for op in row["operators"].split()
    }


PRICES = _prices()


def price(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelList:
    """Return the kernels of a call of the ATen operator `op`; () without outputs that have elements.

    An operator without an entry in PRICES moves its inputs and outputs once.
    """
    outputs = [output for output in outputs if output.elements]
    return PRICES.get(price_name(op), prices.memory)(price_name(op), inputs, outputs) if outputs else ()


def price_name(op: str) -> str:
    """Return the name under which an operator is priced: `add_` (in place) as `add`, unless it has its own entry."""
    return op if op in PRICES else op.removesuffix("_")


DTYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int64": "int64",
    "int32": "int32",
    "int16": "fp16",
    "int8": "bool",
    "uint8": "bool",
    "bool": "bool",
}
"""Our name of a PyTorch data type of the same size."""
_TORCH = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_FLASH = "_scaled_dot_product_flash_attention"
_EFFICIENT = "_scaled_dot_product_efficient_attention"


def build(
    name: str,
    module: torch.nn.Module,
    inputs: tuple[Any, ...] | dict[str, Any],
    dtype: str | None = None,
    training: bool = False,
) -> Graph:
    """Return the graph of a module for example inputs (positional or by name), traced on the meta device.

    `dtype` converts floating-point parameters and inputs; None leaves them as they are. In training the backward pass starts
    from a scalar output, from `.loss`, or from a gradient of the first output, and each parameter's gradient is added to an
    existing one. Raises InputError if the module cannot run on shapes alone.
    """
    import torch
    from torch.utils import _pytree as tree

    wanted = getattr(torch, _TORCH[dtype]) if dtype else None
    module = module.to("meta", wanted).train(training)
    inputs = tree.tree_map_only(
        torch.Tensor, lambda value: value.to("meta", wanted if value.is_floating_point() else None), inputs
    )
    weights = dict(module.named_parameters())
    try:
        traced, forward, reached = trace(module, weights, inputs, training)
    except Exception as error:
        raise InputError(
            f"{name}: cannot be traced on shapes alone ({reason(error)}); it must not look at values"
        ) from error
    nodes = [*_nodes(traced, forward), *_accumulated(reached)]
    unknown = tuple(dict.fromkeys(node.op for node in nodes if price_name(node.op) not in PRICES))
    size = math.fsum(weight.numel() * weight.element_size() for weight in weights.values())
    parameters = sum(weight.numel() for weight in weights.values())
    return Graph(name, tuple(nodes), parameters, unknown, traced_memory(nodes, size, training))


def reason(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}".rstrip(": .")


def _nodes(traced: Any, forward: set[str]) -> list[OperatorCall]:
    """Return the ATen calls of an fx graph. `getitem` on a call with several outputs counts as the call itself."""
    import torch

    nodes: list[OperatorCall] = []
    index: dict[str, int] = {}
    for node in traced.graph.nodes:
        if node.op != "call_function":
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            index[node.name] = index.get(node.args[0].name, OUTSIDE) if node.args else OUTSIDE
            continue
        phase: PassPhase = "forward" if node.name in forward else "backward"
        nodes.append(_node(node, phase, index))
        index[node.name] = len(nodes) - 1
    return nodes


def _node(node: Any, phase: PassPhase, index: Mapping[str, int]) -> OperatorCall:
    """Return the operator call of an fx node, with its kernels and the nodes that it reads (`index`: {name: number})."""
    from torch.fx import Node as FxNode
    from torch.utils import _pytree as tree

    op = node.target._schema.name.partition("::")[2]
    read = [(source, shape) for source in node.all_input_nodes for shape in _tensors(source)[:1]]
    arguments = (leaf for leaf in tree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, FxNode))
    inputs = [shape for argument in arguments for shape in _tensors(argument)[:1]]
    outputs = _tensors(node)
    if op.removesuffix("_backward") in (_FLASH, _EFFICIENT):
        op, inputs = _attention_call(node, op, inputs)
    reads = tuple((index.get(source.name, OUTSIDE), shape.bytes) for source, shape in read)
    size = math.fsum(shape.bytes for shape in outputs)
    return OperatorCall(_place(node), op, phase, price(op, inputs, outputs), reads, size)


def _attention_call(node: Any, op: str, inputs: list[Tensor]) -> tuple[str, list[Tensor]]:
    """Return (`attention`, with `_backward` and `_causal` if the call is, its tensors q, k, v)."""
    names = [argument.name for argument in node.target._schema.arguments]
    position = names.index("is_causal")
    causal = node.kwargs.get("is_causal", node.args[position] if len(node.args) > position else False)
    backward = op.endswith("_backward")
    kept = inputs[1:4] if backward else inputs[:3]
    return f"attention{'_backward' if backward else ''}{'_causal' if causal else ''}", kept


def _tensors(node: Any) -> list[Tensor]:
    """Return the shapes of all tensors that a node returns."""
    import torch
    from torch.utils import _pytree as tree

    tensors = [leaf for leaf in tree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    return [_tensor(tensor) for tensor in tensors]


def _tensor(tensor: Any) -> Tensor:
    dtype = DTYPES.get(str(tensor.dtype).removeprefix("torch."), "fp32")
    return Tensor(tuple(tensor.shape), tuple(tensor.stride()), dtype)


def _place(node: Any) -> str:
    """Return the module path of an fx node, "" for a node outside modules."""
    stack = node.meta.get("nn_module_stack")
    return str(next(reversed(stack.values()))[0]) if stack else ""


def _accumulated(weights: Mapping[str, Any]) -> list[OperatorCall]:
    """Return the calls that add each parameter's gradient to the existing one."""
    nodes = []
    for name, weight in weights.items():
        shape = _tensor(weight)
        reads = ((OUTSIDE, shape.bytes),) * 2
        nodes.append(OperatorCall(name, "add", "accumulate", price("add", [shape, shape], [shape]), reads, shape.bytes))
    return nodes


# A module as an fx graph, traced on the meta device. Dropout and fused attention are single calls on CUDA but not on the meta
# device, so they are replaced.


def trace(
    module: torch.nn.Module, weights: dict[str, Any], inputs: Any, training: bool
) -> tuple[Any, set[str], dict[str, Any]]:
    """Return (fx graph, names of its forward nodes, {name: parameter} that a gradient reaches). weights: {name: parameter}."""
    import torch
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

    forward: set[str] = set()
    reached: dict[str, Any] = {}

    def run(parameters: dict[str, Any], arguments: Any) -> Any:
        named = arguments if isinstance(arguments, dict) else {}
        with torch.set_grad_enabled(training), _as_on_cuda():
            result = torch.func.functional_call(module, parameters, () if named else arguments, named)
        mode: Any = get_proxy_mode()
        forward.update(node.name for node in mode.tracer.graph.nodes)
        if not training:
            return result
        gradients = _gradients(result, parameters)
        reached.update({name: weights[name] for name in gradients})
        return list(gradients.values())

    return make_fx(run, tracing_mode="real")(weights, inputs), forward, reached


def _gradients(result: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return {name: gradient} of the parameters that the loss, or else the first output, depends on."""
    import torch
    from torch.utils import _pytree as tree

    loss = getattr(result, "loss", None)
    tensors = [
        tensor for tensor in tree.tree_leaves(result) if isinstance(tensor, torch.Tensor) and tensor.requires_grad
    ]
    start = loss if isinstance(loss, torch.Tensor) else next(iter(tensors), None)
    wanted = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if start is None or not wanted:
        raise ValueError("no output has a gradient")
    gradients = torch.autograd.grad(start, list(wanted.values()), torch.empty_like(start), allow_unused=True)
    return {name: gradient for name, gradient in zip(wanted, gradients, strict=True) if gradient is not None}


@contextmanager
def _as_on_cuda() -> Iterator[None]:
    """Replace dropout and attention by the calls that CUDA makes, and disable the CPU's fast path, while the context is open.

    A TorchFunctionMode catches calls of the user's module; patched names in torch.nn.functional catch those of PyTorch's own
    functions.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    room = torch.nn.functional
    swapped: dict[Any, Callable[..., Any]] = {room.dropout: _dropout, room.scaled_dot_product_attention: _attention}
    original = {func.__name__: func for func in swapped}

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return swapped.get(func, func)(*args, **(kwargs or {}))

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for name, func in original.items():
            setattr(room, name, swapped[func])
        with Mode():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for name, func in original.items():
            setattr(room, name, func)


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    import torch

    return torch.native_dropout(x, p, True)[0] if training and p > 0 else x


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return the result of CUDA's kernel: FlashAttention for 16 bits without a mask, else the memory-efficient kernel."""
    import torch

    if query.dim() == 3:
        mask = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask[None]
        q, k, v = query[None], key[None], value[None]
        return _attention(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    aten = torch.ops.aten
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        key, value = (tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3) for tensor in (key, value))
    if attn_mask is not None:
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
    efficient = aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, attn_mask, query.requires_grad, dropout_p, is_causal, scale=scale)[0]
