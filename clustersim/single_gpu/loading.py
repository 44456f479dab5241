"""Loads a model as a graph: a config.json, a workload, or a Python function. Only functions need PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from clustersim.config.yaml import Document
from clustersim.convert import hugging_face
from clustersim.convert.hugging_face import Config
from clustersim.convert.hugging_face_workload import converted
from clustersim.errors import InputError, shown
from clustersim.extras import need
from clustersim.files import exists
from clustersim.hardware.constants import BYTES
from clustersim.hardware.formats import activation_type
from clustersim.model.kernel import APART, Kernel, gemm, single_launch, vector
from clustersim.parallel.load import build as build_job
from clustersim.single_gpu import job
from clustersim.single_gpu.model import EAGER, SEQUENCE, Graph, Request
from clustersim.single_gpu.total import fuse

LOGIT_MODELS = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForPreTraining", "ForConditionalGeneration")
"""Endings of model classes with a logit for each word; other models have a few per sequence, or none."""


def build(config: Config, batch: int, seq: int, dtype: str = "fp32", training: bool = False) -> Graph:
    """Return the graph of a config.json for `batch` sequences of `seq` tokens, with kernels as PyTorch launches them.

    In training it has forward pass, loss, backward pass, and the sum of each weight's gradient into an existing one, without an
    optimizer. Raises InputError for an unknown model_type and for missing keys, and ConfigError for shapes that contradict each
    other.
    """
    workload = converted(Document(config.path, dict(config.keys), {}))
    model = {**workload.data["model"], "vocab_multiple": 1}
    positions = config.count("n_positions", "n_ctx", "max_position_embeddings", default=seq)
    if model.get("positions", "learned") != "learned":
        model.pop("max_positions", None)  # a model without a table of positions supports any length
    elif seq > positions:
        raise InputError(f"{config.path}: --seq {seq} is more than the {positions} positions of the model; lower it")
    if not training:
        model |= {"dropout": False, "mtp_layers": 0}  # further tokens are predicted only in training
    run: dict[str, object] = {"global_batch": batch, "micro_batch": batch, "seq": seq, "precision": dtype}
    run |= {"kernels": "eager", "gradients": "fp32" if dtype == "tf32" else dtype}
    run |= {"attention": "unfused" if config.kind in TRANSFORMERS else "flash"}
    if config.keys.get("expert_capacity") is not None:  # every expert is filled to its capacity
        rows = min(config.count("expert_capacity"), batch * seq) * model["experts"]
        run |= {"capacity_factor": rows / (batch * seq), "pad_to_capacity": True}
    document = Document(config.path, {"name": config.kind, "model": model, "training": run}, workload.positions)
    variant = TRANSFORMERS.get(config.kind, job.unchanged)
    return job.graph(build_job(document, job.ALONE), training, _has_logits(config, training), variant)


def _separate_kernels(op: str, kernel: Kernel) -> Iterator[Kernel]:
    """Yield the kernels of transformers: experts one by one, and separate GEMMs for queries, keys and values."""
    if kernel.kind == "grouped_gemm":
        yield from [single_launch(kernel._replace(generation=APART))[0]] * kernel.batch
    elif op == "qkv" and kernel.kind == "linear":
        m, n, k = kernel.m, kernel.n, kernel.k
        m, n, k = {"forward": (m, n // 3, k), "dgrad": (m, n, k // 3), "wgrad": (m // 3, n, k)}[kernel.op]
        yield from [gemm("linear", kernel.op, kernel.dtype, 1, m, n, k)] * 3
        dtype = activation_type(kernel.dtype)
        yield from [vector("elementwise", "add", dtype, m, n, 1.0, 3 * BYTES[dtype])] * (
            2 if kernel.op == "dgrad" else 0
        )
    else:
        yield kernel


def _opt_kernels(op: str, kernel: Kernel) -> Iterator[Kernel]:
    """Yield the kernels of OPT: as `_separate_kernels`, with a mask of all pairs of tokens that is read with the scores."""
    for launched in _separate_kernels(op, kernel):
        yield launched._replace(bytes=1.5 * launched.bytes) if launched.op == "mask" else launched


TRANSFORMERS: dict[str, job.LibraryKernels] = {
    "bert": _separate_kernels,
    "gpt2": job.unchanged,
    "opt": _opt_kernels,
    "switch_transformers": _separate_kernels,
}
"""{model_type: kernel replacement} of models that run as in transformers 4.31 to 4.35, with attention as two products around a
softmax. All other models have fused attention."""


def _has_logits(config: Config, training: bool) -> bool:
    """Return whether the model ends with logits (True without `architectures`). Raises InputError in training without a loss."""
    name = config.architecture
    if training and name.endswith("Model") and not name.endswith(LOGIT_MODELS):
        raise InputError(
            f"{config.path}: has no loss to train on; name one with a head in architectures, or predict inference"
        )
    return not name or name.endswith(LOGIT_MODELS)


def load_module(model: str, request: Request) -> Graph:
    """Return the graph of the module that a function returns. Raises InputError if loading, calling or tracing it fails."""
    from clustersim.single_gpu import exported

    need("torch", f"{model}: tracing a module")
    import torch

    make = _imported(model)
    try:
        with torch.device("meta"):
            returned = make(**_sizes(make, request))
    except (Exception, SystemExit) as error:
        raise InputError(f"{model}: raised {exported.reason(error)}; it must return (module, inputs)") from error
    module, inputs = _checked(model, returned)
    if request.dtype not in (None, *EAGER):
        raise InputError(f"{model}: --dtype {request.dtype} does not run eagerly; write one of {', '.join(EAGER)}")
    return exported.build(model, module, inputs, request.dtype, request.training)


def _imported(model: str) -> Callable[..., Any]:
    """Return the function `file.py:function` or `package.module:function`. Raises InputError if it cannot be loaded."""
    place, _, name = model.rpartition(":")
    try:
        module = _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        function = getattr(module, name)
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise InputError(
            f"{shown(model)} cannot be loaded ({why}); write file.py:function or package.module:function"
        ) from error
    if not callable(function):
        what = f"{shown(model)} is not a function but {shown(function)}"
        raise InputError(f"{what}; name one that returns (module, inputs)")
    return function  # type: ignore[no-any-return]


def _file(path: Path) -> Any:
    """Return a Python file as a module. It can import files in its own folder, as when Python runs it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def _sizes(make: Callable[..., Any], request: Request) -> dict[str, int]:
    """Return {"batch", "seq"} as far as they are requested. Raises TypeError if the function does not accept one of them."""
    sizes = {name: value for name in ("batch", "seq") if (value := getattr(request, name)) is not None}
    taken = inspect.signature(make).parameters
    if missing := [name for name in sizes if name not in taken]:
        raise TypeError(f"the function takes no {missing[0]}, which --{missing[0]} sets")
    return sizes


def _checked(model: str, returned: Any) -> tuple[Any, Any]:
    """Return (module, inputs as a tuple or mapping) of what a user's function returned. Raises InputError for anything else."""
    import torch

    module, inputs = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"{model}: returned {type(returned).__name__}; return (module, inputs), a torch.nn.Module and its inputs"
        )
    if inputs is None:
        raise InputError(
            f"{model}: returned a module without inputs; return (module, inputs), inputs being a tuple or dict of tensors"
        )
    return module, inputs if isinstance(inputs, (tuple, dict)) else (inputs,)


def load(model: str, request: Request) -> Graph:
    """Return the graph of a model, with kernels fused if requested.

    `model` is a config.json or its folder, a workload YAML, `file.py:function` or `package.module:function`. Raises InputError
    (or a subclass) if it cannot be read, built or traced.
    """
    graph = _opened(model, request)
    return fuse(graph) if request.fusion else graph


def _opened(model: str, request: Request) -> Graph:
    """Return the graph of a model file, config.json or function. Raises InputError if it cannot be read."""
    if model.endswith((".yaml", ".yml")):
        return _workload(model, request)
    if ":" in model and not model.endswith(".json"):
        graph = load_module(model, request)
        if request.dtype != "tf32":
            return graph
        nodes = (node._replace(kernels=tuple(map(_on_tensor_cores, node.kernels))) for node in graph.nodes)
        return replace(graph, nodes=tuple(nodes))
    path = Path(model)
    return _config(hugging_face.read(path / "config.json" if exists(path) and path.is_dir() else path), request)


def _config(config: hugging_face.Config, request: Request) -> Graph:
    """Return the graph of a config.json. Raises InputError for a data type that does not run eagerly."""
    dtype = request.dtype or config.dtype or "fp32"
    if dtype not in EAGER:
        raise InputError(f"{config.path}: --dtype {dtype} does not run eagerly; write one of {', '.join(EAGER)}")
    positions = config.count("n_positions", "n_ctx", "max_position_embeddings", default=SEQUENCE)
    return build(config, request.batch or 1, request.seq or min(positions, SEQUENCE), dtype, request.training)


def _on_tensor_cores(kernel: Kernel) -> Kernel:
    """Return an FP32 GEMM as one in TF32, and any other kernel unchanged."""
    return kernel._replace(dtype="tf32") if kernel.k and kernel.dtype == "fp32" else kernel


def _workload(path: str, request: Request) -> Graph:
    """Return the graph of one pass of a workload file on a single GPU."""
    from clustersim.parallel.load import load as read

    requested: dict[str, object | None] = {
        "training.seq": request.seq,
        "training.precision": request.dtype,
        "training.kernels": "eager" if request.fusion else None,
        "model.dropout": None if request.training else False,
    }
    changes = {**job.ALONE, **{key: value for key, value in requested.items() if value is not None}}
    batch = request.batch or read(path, changes).training.micro_batch
    return job.graph(
        read(path, {**changes, "training.micro_batch": batch, "training.global_batch": batch}), request.training
    )
