"""Launch files of Megatron, NeMo, Megatron-Bridge, torchtitan and DeepSpeed: written for a placed job, and read back as a job."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from clustersim.config.yaml import Document, Position
from clustersim.convert import megatron_script, megatron_yaml, torchtitan, trainers
from clustersim.convert.layout_text import layout_of
from clustersim.convert.megatron_arguments import script
from clustersim.convert.megatron_script import Imported, ImportRequest
from clustersim.convert.settings import toml
from clustersim.explain.differences import flat
from clustersim.parallel.job import Job
from clustersim.parallel.layout import portions
from clustersim.parallel.load import build


def written(tool: str, job: Job, gpus_per_node: int) -> str:
    """Return the launch file of a tool (name of its command) for a placed job. Raises InputError if it cannot express the job."""
    if tool == "torchtitan":
        return toml(torchtitan.written(job.spec), f"{job.name} for torchtitan v0.2, as clustersim simulated it")
    if tool == "deepspeed":
        return trainers.deepspeed_config(job.spec)
    split, stages = job.parallelism, portions(job.parallelism, job.model)
    ends = split.account_for_embedding, split.account_for_loss
    counts = [stage.blocks + ends[0] * stage.embedding + ends[1] * stage.loss for stage in stages]
    fixed = {0: split.first_layers, split.pp - 1: split.last_layers}
    free = {count for at, count in enumerate(counts) if fixed.get(job.pipeline.rank(at)) is None}
    ranks = split.lanes * job.dp
    each = max(count for count in range(1, gpus_per_node + 1) if ranks % count == 0)
    layout = layout_of(stages) if len(free) > 1 else None  # where Megatron would not divide the layers so itself
    launch = ranks // each, each, layout
    if tool == "megatron":
        return script(job.spec, *launch)
    return f"# {job.name} for {tool}\n" + yaml.safe_dump(megatron_yaml.written(tool, job.spec, *launch), width=120)


def imported(tool: str, path: str, text: str, request: ImportRequest) -> Imported:
    """Return the workload of a tool's launch file or settings in `text`. Raises InputError for an invalid file.

    path: name of the file in messages.
    """
    if tool == "megatron":
        return megatron_script.imported(path, text, request)
    if tool == "torchtitan":
        return torchtitan.imported(path, text, request)
    if tool in ("nemo", "megatron-bridge"):
        return megatron_yaml.imported(tool, path, text, request)
    return trainers.imported(tool, path, text, request)


def read_back(tool: str, text: str, job: Job, path: str = "the file") -> Job:
    """Return the job of a tool's launch file, with the model of `job` if it has none. Raises InputError for an invalid file."""
    request = ImportRequest()
    if tool == "deepspeed":
        request = ImportRequest({}, {"training.seq": job.training.seq}, job.spec.model.model_dump(exclude_none=True))
    workload = imported(tool, path, text, request)
    return build(Document(path, workload.workload, {(): Position(1, 1)}))


DIVISION = {f"parallelism.{key}" for key in ("first_layers", "last_layers", "partition")}
DIVISION |= {f"parallelism.account_for_{key}" for key in ("embedding", "loss")}
"""Keys of the division of layers among stages; a pipeline layout replaces them all."""


def differences(job: Job, back: Job) -> Iterator[tuple[str, object]]:
    """Yield (key, value in `job`) of the keys that differ in another job, as far as a launch file can express them."""
    read = dict(flat(back.spec.model_dump()))
    for key, value in flat(job.spec.model_dump()):
        same = read.get(key) == value or value is None  # None is a default, which a script may contain explicitly
        same |= key in DIVISION and read["parallelism.layout"] is not None
        if not same and key not in ("name", "parallelism.dp", "parallelism.tp_across_nodes", "predictor"):
            yield key, str(value).lower() if isinstance(value, bool) else value
