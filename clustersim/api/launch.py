"""Launch files of Megatron-LM, torchtitan and DeepSpeed: written for a placed job, and read back as a job."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.config.yaml import Document, Loc, Position
from clustersim.convert import megatron_script, torchtitan, trainers
from clustersim.convert.layout_text import joined
from clustersim.convert.megatron_arguments import script
from clustersim.convert.settings import toml
from clustersim.explain.differences import flat
from clustersim.parallel.job import Job
from clustersim.parallel.layout import portions
from clustersim.parallel.load import build

START: dict[Loc, Position] = {(): Position(1, 1)}


def job_config(job: Job) -> str:
    """Return the job config of torchtitan for a placed job. Raises InputError if torchtitan does not support it."""
    return toml(torchtitan.written(job.spec), f"{job.name} for torchtitan v0.2, as clustersim simulated it")


def read_job_config(text: str) -> Job:
    """Return the job of a job config that contains all degrees. Raises InputError for an invalid or unsupported file."""
    return build(Document("the job config", torchtitan.imported("the job config", text, None).workload, START))


def read_deepspeed_config(text: str, job: Job) -> Job:
    """Return the job of a DeepSpeed configuration, with the model and the sequences of another job. Raises InputError."""
    model, path = job.spec.model.model_dump(exclude_none=True), "the configuration"
    asked = trainers.TrainerRequest(model, None, {"training.seq": job.training.seq})
    return build(Document(path, trainers.imported("deepspeed", path, text, asked).workload, START))


def launch_script(job: Job, gpus_per_node: int) -> str:
    """Return the Megatron-LM script for a placed job, on as many nodes as its ranks fill. Raises InputError if not supported."""
    split = job.parallelism
    stages = portions(split, job.model)
    counts = [stage.blocks for stage in stages]
    counts[0] += split.account_for_embedding
    counts[-1] += split.account_for_loss
    fixed = {0: split.first_layers, split.pp - 1: split.last_layers}
    free = {count for at, count in enumerate(counts) if fixed.get(job.pipeline.rank(at)) is None}
    ranks = split.lanes * job.dp
    each = max(count for count in range(1, gpus_per_node + 1) if ranks % count == 0)
    return script(job.spec, ranks // each, each, joined(stages) if len(free) > 1 else None)


DIVISION = {f"parallelism.{key}" for key in ("first_layers", "last_layers", "partition")}
DIVISION |= {f"parallelism.account_for_{key}" for key in ("embedding", "loss")}
"""Keys of the division of layers among stages; a pipeline layout replaces them all."""


def differences(job: Job, back: Job) -> Iterator[tuple[str, object]]:
    """Yield (key, value in `job`) of the keys that differ in another job, as far as a launch file can express them."""
    found = dict(flat(back.spec.model_dump()))
    for key, value in flat(job.spec.model_dump()):
        same = found.get(key) == value or value is None  # None is a default, which a script may contain explicitly
        same |= key in DIVISION and found["parallelism.layout"] is not None
        if not same and key not in ("name", "parallelism.dp", "parallelism.tp_across_nodes", "predictor"):
            yield key, str(value).lower() if isinstance(value, bool) else value


def read_back(script: str) -> Job:
    """Return the job that a Megatron-LM script launches. Raises InputError for an invalid or unsupported script."""
    found = megatron_script.imported("the script", script, megatron_script.ImportRequest({}, {}))
    return build(Document("the script", found.workload, START))
