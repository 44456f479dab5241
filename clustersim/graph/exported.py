"""A user's PyTorch module → its graph: traced by torch.fx on the meta device, so without weights, values or a GPU.

`make_fx` records every ATen call that the module and the autograd engine make, with shapes and strides alone. What CUDA
does otherwise than the meta device is put in its place: dropout and fused attention are single calls there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clustersim.errors import InputError
from clustersim.graph.aten import known, price
from clustersim.graph.model import OUTSIDE, Graph, Node, Phase
from clustersim.graph.tensor import Tensor

if TYPE_CHECKING:
    import torch

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
"""Our name of a torch type of the same size."""
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
    """Return the graph of a module on example inputs (positional or by name), moved to the meta device.

    `dtype` turns its floating-point parameters and inputs into that type; None leaves them as they are.
    In training the backward pass starts from a scalar output, from `.loss`, or from a gradient of the first output; each
    parameter's gradient is added to the one that is there. Raises InputError when the module cannot run on shapes alone.
    """
    import torch
    from torch.utils import _pytree as tree

    wanted = getattr(torch, _TORCH[dtype]) if dtype else None
    module = module.to("meta", wanted).train(training)
    inputs = tree.tree_map_only(torch.Tensor, lambda one: _moved(one, wanted), inputs)
    weights = dict(module.named_parameters())
    try:
        traced, forward, reached = _trace(module, weights, inputs, training)
    except Exception as error:
        raise InputError(
            f"{name}: cannot be traced on shapes alone ({reason(error)}); it must not look at values"
        ) from error
    nodes = [*_nodes(traced, forward), *_accumulated(reached)]
    unknown = tuple(dict.fromkeys(node.op for node in nodes if not known(node.op)))
    return Graph(name, tuple(nodes), sum(one.numel() for one in weights.values()), unknown)


def _moved(one: Any, dtype: Any) -> Any:
    """Return an input on the meta device, in the type asked for where it is a floating-point one."""
    return one.to("meta", dtype) if one.is_floating_point() else one.to("meta")


def reason(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}".rstrip(": .")


def _trace(
    module: torch.nn.Module, weights: dict[str, Any], inputs: Any, training: bool
) -> tuple[Any, set[str], dict[str, Any]]:
    """Return the fx graph, the names of its forward nodes, and the parameters that a gradient reaches."""
    import torch
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

    forward: set[str] = set()
    reached: dict[str, Any] = {}

    def run(parameters: dict[str, Any], given: Any) -> Any:
        named = given if isinstance(given, dict) else {}
        with torch.set_grad_enabled(training), _as_on_cuda():
            result = torch.func.functional_call(module, parameters, () if named else given, named)
        mode: Any = get_proxy_mode()
        forward.update(node.name for node in mode.tracer.graph.nodes)
        if not training:
            return result
        found = _gradients(result, parameters)
        reached.update({name: weights[name] for name in found})
        return list(found.values())

    return make_fx(run, tracing_mode="real")(weights, inputs), forward, reached


def _gradients(result: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradient of each parameter that the loss, or else the first output, depends on."""
    import torch
    from torch.utils import _pytree as tree

    loss = getattr(result, "loss", None)
    tensors = [one for one in tree.tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad]
    start = loss if isinstance(loss, torch.Tensor) else next(iter(tensors), None)
    wanted = {name: one for name, one in parameters.items() if one.requires_grad}
    if start is None or not wanted:
        raise ValueError("no output has a gradient")
    found = torch.autograd.grad(start, list(wanted.values()), torch.empty_like(start), allow_unused=True)
    return {name: one for name, one in zip(wanted, found, strict=True) if one is not None}


@contextmanager
def _as_on_cuda() -> Iterator[None]:
    """Let dropout and attention be the calls that they are on a GPU, and no layer take the CPU's fast path.

    A mode sees the calls of a user's module, the names in torch.nn.functional those that its own functions make.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    room = torch.nn.functional
    swapped: dict[Any, Callable[..., Any]] = {room.dropout: _dropout, room.scaled_dot_product_attention: _attention}
    own = {func.__name__: func for func in swapped}

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return swapped.get(func, func)(*args, **(kwargs or {}))

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for name, func in own.items():
            setattr(room, name, swapped[func])
        with Mode():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for name, func in own.items():
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
    """Return what CUDA runs: FlashAttention in 16 bits without a mask, else the memory-efficient kernel."""
    import torch

    if query.dim() == 3:
        mask = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask[None]
        q, k, v = query[None], key[None], value[None]
        return _attention(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    aten = torch.ops.aten
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    if attn_mask is not None:
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
    efficient = aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, attn_mask, query.requires_grad, dropout_p, is_causal, scale=scale)[0]


def _nodes(traced: Any, forward: set[str]) -> list[Node]:
    """Return the ATen calls of an fx graph; `getitem` of a call with several outputs is the call itself."""
    import torch

    nodes: list[Node] = []
    index: dict[str, int] = {}
    for one in traced.graph.nodes:
        if one.op != "call_function":
            continue
        if not isinstance(one.target, torch._ops.OpOverload):
            index[one.name] = index.get(one.args[0].name, OUTSIDE) if one.args else OUTSIDE
            continue
        phase: Phase = "forward" if one.name in forward else "backward"
        nodes.append(_node(one, phase, index))
        index[one.name] = len(nodes) - 1
    return nodes


def _node(one: Any, phase: Phase, index: Mapping[str, int]) -> Node:
    op = one.target._schema.name.partition("::")[2]
    given = [(source, shape) for source in one.all_input_nodes for shape in _tensors(source)[:1]]
    inputs = [shape for source in _arguments(one) for shape in _tensors(source)[:1]]
    outputs = _tensors(one)
    if op.removesuffix("_backward") in (_FLASH, _EFFICIENT):
        op, inputs = _attention_call(one, op, inputs)
    reads = tuple((index.get(source.name, OUTSIDE), shape.bytes) for source, shape in given)
    size = sum(shape.bytes for shape in outputs)
    return Node(_place(one), op, phase, price(op, inputs, outputs), reads, size)


def _arguments(one: Any) -> list[Any]:
    """Return the nodes among the arguments in order, those that come twice twice."""
    from torch.fx import Node as FxNode
    from torch.utils import _pytree as tree

    return [leaf for leaf in tree.tree_leaves((one.args, one.kwargs)) if isinstance(leaf, FxNode)]


def _attention_call(one: Any, op: str, inputs: list[Tensor]) -> tuple[str, list[Tensor]]:
    names = [argument.name for argument in one.target._schema.arguments]
    position = names.index("is_causal")
    causal = one.kwargs.get("is_causal", one.args[position] if len(one.args) > position else False)
    backward = op.endswith("_backward")
    kept = inputs[1:4] if backward else inputs[:3]
    return f"attention{'_backward' if backward else ''}{'_causal' if causal else ''}", kept


def _tensors(one: Any) -> list[Tensor]:
    """Return the shapes of a node's outputs that are there."""
    import torch
    from torch.utils import _pytree as tree

    found = [leaf for leaf in tree.tree_leaves(one.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    return [_tensor(one) for one in found]


def _tensor(one: Any) -> Tensor:
    return Tensor(tuple(one.shape), tuple(one.stride()), DTYPES.get(str(one.dtype).removeprefix("torch."), "fp32"))


def _place(one: Any) -> str:
    stack = one.meta.get("nn_module_stack")
    return str(next(reversed(stack.values()))[0]) if stack else ""


def _accumulated(weights: Mapping[str, Any]) -> list[Node]:
    """Return the sum of each parameter's gradient into the one that is there."""
    nodes = []
    for name, one in weights.items():
        shape = _tensor(one)
        reads = ((OUTSIDE, shape.bytes),) * 2
        nodes.append(Node(name, "add", "accumulate", price("add", [shape, shape], [shape]), reads, shape.bytes))
    return nodes
