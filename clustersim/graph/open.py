"""What a user calls a model → its graph: a config.json, a workload file, or a function that returns a PyTorch module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clustersim.errors import InputError, shown
from clustersim.graph import architecture, decoder, job, models
from clustersim.graph.model import Graph
from clustersim.workload.kernel import Kernel

SEQUENCE = 2048
"""Tokens of a sequence where none is asked for and the model takes as many."""
EAGER = ("fp32", "tf32", "fp16", "bf16")
"""Data types that PyTorch runs eagerly; TF32 is FP32 in memory, its products run on tensor cores."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a model: None leaves it to the model. `batch` and `seq` count sequences and tokens of each."""

    training: bool = False
    batch: int | None = None
    seq: int | None = None
    dtype: str | None = None
    fusion: bool = False


def load(model: str, request: Request) -> Graph:
    """Return the graph of a model, before any fusion.

    `model`: a config.json or its folder, a workload YAML, or `file.py:function` or `package.module:function`. Raises
    InputError (and its kin) for what cannot be read, built or traced.
    """
    if model.endswith((".yaml", ".yml")):
        return _workload(model, request)
    if ":" in model and not model.endswith(".json"):
        return _function(model, request)
    path = Path(model)
    return _config(architecture.read(path / "config.json" if path.is_dir() else path), request)


def _config(config: architecture.Config, request: Request) -> Graph:
    known = (*models.BUILDERS, *decoder.KINDS)
    if config.kind not in known:
        raise InputError(
            f"{config.path}: model_type {shown(config.kind)} is not built in ({', '.join(known)}); "
            "give a function that returns the module, as file.py:function"
        )
    positions = config.count("n_positions", "n_ctx", "max_position_embeddings", default=2**30)
    seq = request.seq or min(positions, SEQUENCE)
    if seq > positions and config.kind in models.BUILDERS:
        raise InputError(f"{config.path}: --seq {seq} is more than the {positions} positions of the model; lower it")
    dtype = request.dtype or "fp32"
    if dtype not in EAGER:
        raise InputError(f"{config.path}: --dtype {dtype} does not run eagerly; write one of {', '.join(EAGER)}")
    if config.kind in decoder.KINDS:
        return decoder.build(config, request.batch or 1, seq, dtype, request.training)
    stored = "fp32" if dtype == "tf32" else dtype
    return _on_tensor_cores(models.build(config, request.batch or 1, seq, stored, request.training), dtype)


def _on_tensor_cores(graph: Graph, dtype: str | None) -> Graph:
    """Return the graph with its FP32 products in TF32 when that is asked for."""
    if dtype != "tf32":
        return graph
    nodes = (node._replace(kernels=tuple(map(_rounded, node.kernels))) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _rounded(kernel: Kernel) -> Kernel:
    return kernel._replace(dtype="tf32") if kernel.k and kernel.dtype == "fp32" else kernel


def _workload(path: str, request: Request) -> Graph:
    from clustersim.workload.load import load as read

    asked: dict[str, object | None] = {
        "training.seq": request.seq,
        "training.precision": request.dtype,
        "training.kernels": "fused" if request.fusion else None,
    }
    changes = {**job.ALONE, **{key: value for key, value in asked.items() if value is not None}}
    batch = request.batch or read(path, changes).training.micro_batch
    return job.graph(
        read(path, {**changes, "training.micro_batch": batch, "training.global_batch": batch}), request.training
    )


def _function(model: str, request: Request) -> Graph:
    from clustersim.graph import exported

    make = _found(model)
    try:
        import torch
    except ImportError as error:
        raise InputError(f"{model}: needs PyTorch to be traced, which is not installed; install torch") from error
    try:
        with torch.device("meta"):
            made = make(**_asked(make, request))
    except (Exception, SystemExit) as error:
        raise InputError(f"{model}: raised {exported.reason(error)}; it must return (module, inputs)") from error
    module, inputs = _checked(model, made)
    if request.dtype not in (None, *EAGER):
        raise InputError(f"{model}: --dtype {request.dtype} does not run eagerly; write one of {', '.join(EAGER)}")
    return _on_tensor_cores(exported.build(model, module, inputs, request.dtype, request.training), request.dtype)


def _found(model: str) -> Callable[..., Any]:
    place, _, name = model.rpartition(":")
    try:
        module = _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        found = getattr(module, name)
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise InputError(
            f"{shown(model)} cannot be loaded ({why}); write file.py:function or package.module:function"
        ) from error
    if not callable(found):
        raise InputError(f"{shown(model)} is no function but {shown(found)}; name one that returns (module, inputs)")
    return found  # type: ignore[no-any-return]


def _file(path: Path) -> Any:
    """Return the module of a file; what lies beside it can be imported, as when Python runs it."""
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


def _asked(make: Callable[..., Any], request: Request) -> dict[str, int]:
    """Return batch and seq where they were given. Raises InputError through the caller when the function takes none."""
    given = {name: value for name in ("batch", "seq") if (value := getattr(request, name)) is not None}
    taken = inspect.signature(make).parameters
    if missing := [name for name in given if name not in taken]:
        raise TypeError(f"the function takes no {missing[0]}, which --{missing[0]} sets")
    return given


def _checked(model: str, made: Any) -> tuple[Any, Any]:
    import torch

    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"{model}: returned {type(made).__name__}; return (module, inputs), a torch.nn.Module and its inputs"
        )
    if inputs is None:
        raise InputError(
            f"{model}: returned a module without inputs; return (module, inputs), inputs being a tuple or dict of tensors"
        )
    return module, inputs if isinstance(inputs, (tuple, dict)) else (inputs,)
