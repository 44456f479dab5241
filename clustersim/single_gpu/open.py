"""What a user calls a model → its graph: a config.json, a workload file, or a function that returns a PyTorch module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clustersim.convert import hugging_face
from clustersim.convert.architectures import ARCHITECTURES
from clustersim.errors import InputError, shown
from clustersim.files import exists
from clustersim.model.kernel import Kernel
from clustersim.single_gpu import job, models, modules
from clustersim.single_gpu.fuse import fuse
from clustersim.single_gpu.model import Graph
from clustersim.single_gpu.request import EAGER, SEQUENCE, Request


def load(model: str, request: Request) -> Graph:
    """Return the graph of a model, fused if asked.

    `model`: a config.json or its folder, a workload YAML, or `file.py:function` or `package.module:function`. Raises
    InputError (and its kin) for what cannot be read, built or traced.
    """
    graph = _opened(model, request)
    return fuse(graph) if request.fusion else graph


def _opened(model: str, request: Request) -> Graph:
    if model.endswith((".yaml", ".yml")):
        return _workload(model, request)
    if ":" in model and not model.endswith(".json"):
        return _on_tensor_cores(modules.load(model, request), request.dtype)
    path = Path(model)
    return _config(hugging_face.read(path / "config.json" if exists(path) and path.is_dir() else path), request)


def _config(config: hugging_face.Config, request: Request) -> Graph:
    if config.kind not in ARCHITECTURES:
        raise InputError(
            f"{config.path}: model_type {shown(config.kind)} is not built in ({', '.join(ARCHITECTURES)}); "
            "give a function that returns the module, as file.py:function"
        )
    dtype = request.dtype or config.dtype or "fp32"
    if dtype not in EAGER:
        raise InputError(f"{config.path}: --dtype {dtype} does not run eagerly; write one of {', '.join(EAGER)}")
    positions = config.count("n_positions", "n_ctx", "max_position_embeddings", default=SEQUENCE)
    seq = request.seq or min(positions, SEQUENCE)
    return models.build(config, request.batch or 1, seq, dtype, request.training)


def _on_tensor_cores(graph: Graph, dtype: str | None) -> Graph:
    """Return the graph with its FP32 products in TF32 when that is asked for."""
    if dtype != "tf32":
        return graph
    nodes = (node._replace(kernels=tuple(map(_rounded, node.kernels))) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _rounded(kernel: Kernel) -> Kernel:
    return kernel._replace(dtype="tf32") if kernel.k and kernel.dtype == "fp32" else kernel


def _workload(path: str, request: Request) -> Graph:
    from clustersim.parallel.load import load as read

    asked: dict[str, object | None] = {
        "training.seq": request.seq,
        "training.precision": request.dtype,
        "training.kernels": "eager" if request.fusion else None,
        "model.dropout": None if request.training else False,
    }
    changes = {**job.ALONE, **{key: value for key, value in asked.items() if value is not None}}
    batch = request.batch or read(path, changes).training.micro_batch
    return job.graph(
        read(path, {**changes, "training.micro_batch": batch, "training.global_batch": batch}), request.training
    )
