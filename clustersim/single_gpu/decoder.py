"""Models that are told in blocks, from their config.json, as a workload of ours: what a step on a cluster is made of."""

from __future__ import annotations

from clustersim import plugins
from clustersim.config.yaml import Document
from clustersim.convert.hugging_face import Config
from clustersim.convert.hugging_face_workload import ROOM, converted
from clustersim.parallel.load import build as build_job
from clustersim.single_gpu import job
from clustersim.single_gpu.model import Graph


def kinds() -> tuple[str, ...]:
    """Return the values of `model_type` that blocks can say."""
    return tuple(plugins.names(ROOM))


def build(config: Config, batch: int, seq: int, dtype: str, training: bool) -> Graph:
    """Return the graph of a config.json, with eager element-wise kernels and fused (flash) attention.

    Raises InputError for missing keys, ConfigError for shapes that contradict one another.
    """
    model = {**converted(config.path, config.keys)["model"], "vocab_multiple": 1}
    if not training:
        model.pop("mtp_layers", None)  # further tokens are predicted to learn from them
    if model["positions"] != "learned":
        model.pop("max_positions", None)  # any length can be asked of a model without a table of positions
    run = {"global_batch": batch, "micro_batch": batch, "seq": seq, "precision": dtype}
    run |= {"kernels": "eager", "attention": "flash", "gradients": "fp32" if dtype == "fp32" else dtype}
    document = Document(config.path, {"name": config.kind, "model": model, "training": run}, {})
    return job.graph(build_job(document, job.ALONE), training)
