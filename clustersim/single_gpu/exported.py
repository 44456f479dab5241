"""The kernels that one call of a PyTorch operator launches on a GPU, by the operator's ATen name.

Bytes are those of PyTorch's CUDA kernels: every operand that a kernel reads or writes, once. They agree with the operators of
NeuSight's traces on A100-40GB, V100, P100 and T4.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.errors import InputError
from clustersim.files import packaged_rows
from clustersim.single_gpu import prices
from clustersim.single_gpu.memory import traced_memory
from clustersim.single_gpu.model import OUTSIDE, Graph, OperatorCall, PassPhase
from clustersim.single_gpu.prices import KernelList, Tensor
from clustersim.single_gpu.traced import trace

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
    op = node.target._schema.name.partition("::")[2]
    read = [(source, shape) for source in node.all_input_nodes for shape in _tensors(source)[:1]]
    inputs = [shape for source in _arguments(node) for shape in _tensors(source)[:1]]
    outputs = _tensors(node)
    if op.removesuffix("_backward") in (_FLASH, _EFFICIENT):
        op, inputs = _attention_call(node, op, inputs)
    reads = tuple((index.get(source.name, OUTSIDE), shape.bytes) for source, shape in read)
    size = math.fsum(shape.bytes for shape in outputs)
    return OperatorCall(_place(node), op, phase, price(op, inputs, outputs), reads, size)


def _arguments(node: Any) -> list[Any]:
    """Return the fx nodes among the arguments of an fx node in order, with repetitions."""
    from torch.fx import Node as FxNode
    from torch.utils import _pytree as tree

    return [leaf for leaf in tree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, FxNode)]


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
