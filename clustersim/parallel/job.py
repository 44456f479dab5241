"""A workload that has passed every check (`Job`), and its placement on a number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from clustersim.config.fields import Spec
from clustersim.config.workload import Model, Parallelism, Training, Workload
from clustersim.config.yaml import Document
from clustersim.convert.megatron import NOTHING, Ignored
from clustersim.errors import ConfigError, InputError
from clustersim.frameworks.table import KeptTensors, load
from clustersim.model.router import ExpertRouter
from clustersim.model.sharding import ShardedModel, loads, padded, padded_vocab, router
from clustersim.parallel.mesh import Mesh
from clustersim.schedules.check import misfit, pipeline
from clustersim.schedules.pipeline import Pipeline

S = TypeVar("S", bound=Spec)
T = TypeVar("T")

MAX_PASSES = 1_000_000
"""Largest number of forward passes of one replica in a simulation of one step."""


@dataclass(frozen=True)
class Job:
    """A validated workload with its source. A job is placed when `place` has resolved its data-parallel degree."""

    spec: Workload
    """Values of all keys."""
    document: Document = field(repr=False, compare=False)
    """Parsed file, for the positions of later errors."""
    ignored: Ignored = NOTHING
    """Keys of the document that have no effect."""
    assumed: tuple[str, ...] = field(default=(), compare=False)
    """Sentences about assumed values, which neither the file nor the command line sets."""

    @property
    def name(self) -> str:
        """Name of the workload."""
        return self.spec.name

    @cached_property
    def model(self) -> Model:
        """Shapes of the model."""
        return self.spec.model

    @cached_property
    def training(self) -> Training:
        """Training section of the workload."""
        return self.spec.training

    @cached_property
    def parallelism(self) -> Parallelism:
        """Parallelism section of the workload."""
        return self.spec.parallelism

    @property
    def shard(self) -> ShardedModel:
        """Shapes on one tensor-parallel rank; on the one with the busiest experts, if loads differ."""
        return self.shard_at(0)

    def shard_at(self, position: int) -> ShardedModel:
        """Return the shapes on one tensor-parallel rank at `position` in its expert-parallel group; 0 has the busiest experts.

        Raise ConfigError for an unknown framework.
        """
        kept = self.keeps
        return ShardedModel(
            self.model,
            padded(self.training),
            self.parallelism,
            position,
            stacked=kept.stacked_attention.value,
            separate_rows=kept.separate_rows.value,
            grouped_products=kept.grouped_products.value,
            recasts=kept.recast_weights.value,
            wide_gradients=kept.wide_gradients.value,
            ring=kept.ring.value,
            redistributes=kept.redistributes.value and self.training.kernels == "eager",
        )

    @property
    def keeps(self) -> KeptTensors:
        """Tensors that the framework keeps besides the model's; none without a framework. Raises ConfigError for an unknown
        framework."""
        framework = self.training.framework
        try:
            return (load(framework).memory if framework else None) or KeptTensors()
        except InputError as error:
            raise self.error("training.framework", str(error)) from error

    @property
    def communication_sms(self) -> int | None:
        """Number of SMs that communication takes from kernels that it overlaps; None: one per NCCL channel."""
        sms = self.parallelism.overlap.sms
        return None if sms == "nccl" else sms

    @property
    def communication_memory(self) -> float | None:
        """Share of the memory bandwidth that communication takes from kernels that it overlaps; None: that of NCCL's traffic."""
        share = self.parallelism.overlap.memory
        return None if share == "nccl" else share

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of all rows that the experts of each ep rank receive, largest first, with sum 1; () if all are equal."""
        return loads(self.parallelism.ep, self.training)[0]

    @property
    def router(self) -> ExpertRouter | None:
        """Model of how tokens choose experts, if the network traffic depends on it; None otherwise."""
        return router(self.model, self.parallelism)

    @property
    def positions(self) -> int:
        """Number of positions of an expert-parallel group whose work differs; 1 if all are equal."""
        return len(self.shares) or 1

    @property
    def vocab(self) -> int:
        """Number of entries of the vocabulary, padding included."""
        return padded_vocab(self.model, self.parallelism.tp)

    @property
    def dp(self) -> int:
        """Data-parallel degree. Raises InputError while it is `auto`, which `place` resolves."""
        if self.parallelism.dp == "auto":
            raise InputError(f"{self.document.path}: parallelism.dp is auto; place the job on a cluster first")
        return self.parallelism.dp

    @cached_property
    def pipeline(self) -> Pipeline:
        """Stages of each pipeline rank, and the copies of the model, as the job's schedule assigns them."""
        return pipeline(self.parallelism.schedule, self.parallelism.pp, self.parallelism.vpp)

    def lanes(self, stages: Sequence[T]) -> list[list[T]]:
        """Return, for each pipeline rank, the values of its stages in the order of its chunks. stages: one value per global
        stage."""
        return [[stages[stage] for stage in self.pipeline.rank_stages(rank)] for rank in range(self.parallelism.pp)]

    @property
    def message_parts(self) -> int:
        """Number of tp ranks that share a message between stages: each sends a part, and the receivers gather all. 1 if each
        sends all."""
        split = self.parallelism
        return split.tp if split.scatter_gather and not split.sequence_parallel else 1

    @property
    def order_of_stages(self) -> str:
        """Name of a schedule that puts the same stages on each rank: the job's if its pipeline is folded, else `1f1b`."""
        return self.parallelism.schedule if self.pipeline.folded else "1f1b"

    def copies(self, expert: bool) -> int:
        """Return the number of ranks with the same dense parameters or, if `expert`, with the same slices of experts."""
        return self.pipeline.copies * (self.replicas_of_experts if expert else self.dp * self.parallelism.cp)

    @property
    def replicas_of_experts(self) -> int:
        """Number of ranks of one pipeline stage with the same slices of experts."""
        p = self.parallelism
        return self.dp * p.cp * p.tp // (p.ep * p.etp)

    def shards(self, expert: bool) -> int:
        """Return the number of ranks over which one copy of the optimizer state is sharded, with zero: 3 also the parameters.

        expert: whether for spread experts instead of dense parameters. 1 with zero: 0.
        """
        p = self.parallelism
        ranks = self.copies(expert) // p.optimizer_instances if p.zero else 1
        return min(p.fsdp.shard or ranks, ranks) if p.zero == 3 else ranks

    @cached_property
    def sharded(self) -> bool:
        """Whether parameters are sharded over data-parallel ranks and gathered for each pass."""
        return self.parallelism.zero == 3 and max(self.copies(False), self.copies(True)) > 1

    @property
    def microbatches(self) -> int:
        """Number of microbatches per replica and step, of a placed job."""
        return self.training.global_batch // (self.dp * self.training.micro_batch)

    @property
    def mesh(self) -> Mesh:
        """Mesh of the ranks of a placed job for the dense part of the model."""
        return Mesh(self.parallelism.tp, self.parallelism.pp, self.dp, self.parallelism.cp)

    @property
    def expert_mesh(self) -> Mesh:
        """Mesh of the ranks of a placed job for the experts. Its tp ranks have slices of an expert; its dp ranks have the same
        slices."""
        p = self.parallelism
        return Mesh(p.etp, p.pp, self.replicas_of_experts, ep=p.ep)

    def error(self, key: str, message: str) -> ConfigError:
        """Return a ConfigError, to be raised by the caller, for the dotted `key`, such as `parallelism.tp`. message: text after
        the key."""
        return self.document.error(tuple(key.split(".")), f"{key}: {message}")

    def changed(self, values: Mapping[str, object]) -> Job:
        """Return the job with some values replaced, without checks. values: by dotted key, such as `parallelism.overlap.p2p`."""
        return replace(self, spec=_changed(self.spec, values))

    def place(self, gpus: int, gpus_per_node: int) -> Job:
        """Return the job with dp resolved for a cluster of `gpus` GPUs.

        `dp: auto` becomes the largest degree with tp·cp·pp·dp <= gpus whose replicas share global_batch in whole microbatches and
        hold all experts. Raises ConfigError if the cluster is too small, dp does not divide the batch, tp spans nodes without
        `tp_across_nodes`, the schedule or shard sizes do not fit, or a step has more than `MAX_PASSES` passes.
        """
        _check_nodes(self, gpus_per_node)
        dp = _largest_dp(self, gpus) if self.parallelism.dp == "auto" else _explicit_dp(self, gpus, self.parallelism.dp)
        parallelism = self.parallelism.model_copy(update={"dp": dp})
        placed = replace(self, spec=self.spec.model_copy(update={"parallelism": parallelism}))
        _check_rounds(placed)
        _check_shard(placed)
        return placed


def _changed(spec: S, values: Mapping[str, object]) -> S:
    """Return a spec, such as a workload or its section, with the values of dotted keys replaced. Values are not validated."""
    direct: dict[str, object] = {}
    inner: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        section, _, rest = key.partition(".")
        if rest:
            inner.setdefault(section, {})[rest] = value
        else:
            direct[key] = value
    return spec.model_copy(
        update=direct | {section: _changed(getattr(spec, section), changes) for section, changes in inner.items()}
    )


def _check_nodes(job: Job, gpus_per_node: int) -> None:
    """Raise ConfigError if tensor-parallel groups would span nodes without `tp_across_nodes`."""
    tp = job.parallelism.tp
    if job.parallelism.tp_across_nodes or (tp <= gpus_per_node and gpus_per_node % tp == 0):
        return
    fitting = [d for d in divisors(gpus_per_node) if job.model.heads % d == 0]
    raise job.error(
        "parallelism.tp",
        f"groups of {tp} would span nodes of {gpus_per_node} GPUs; "
        f"use {listed(fitting)}, or set parallelism.tp_across_nodes: true",
    )


def _largest_dp(job: Job, gpus: int) -> int:
    """Return the data-parallel degree for `dp: auto` on `gpus` GPUs. Raises ConfigError if there is none."""
    lanes, microbatches = job.parallelism.lanes, job.training.global_batch // job.training.micro_batch
    unit = least_dp(job.parallelism, job.parallelism.ep)
    if lanes * unit > gpus:
        raise _too_small(job, gpus, f" × dp {unit} for ep {job.parallelism.ep}" if unit > 1 else "")
    if microbatches % unit:
        raise job.error(
            "parallelism.ep",
            f"{job.parallelism.ep} needs a dp of {unit} or a multiple, which cannot divide the {microbatches} microbatches "
            f"of a step; use {listed(degrees(job, microbatches))}",
        )
    return max(dp for dp in divisors(microbatches) if dp * lanes <= gpus and dp % unit == 0)


def least_dp(p: Parallelism, ep: int) -> int:
    """Return the smallest dp that is possible with `ep`; all others are its multiples. tp·cp·dp ranks must be a multiple of
    ep·etp."""
    return ep * p.etp // math.gcd(ep * p.etp, p.tp * p.cp)


def degrees(job: Job, dp: int) -> list[int]:
    """Return the values of ep that divide the experts and are possible with `dp`, in ascending order."""
    return [ep for ep in divisors(job.model.experts or 1) if dp % least_dp(job.parallelism, ep) == 0]


def _explicit_dp(job: Job, gpus: int, dp: int) -> int:
    """Return `dp`. Raises ConfigError if it needs more than `gpus` GPUs, or does not divide the microbatches of a step."""
    microbatches = job.training.global_batch // job.training.micro_batch
    if dp * job.parallelism.lanes > gpus:
        raise _too_small(job, gpus, f" × dp {dp}")
    if microbatches % dp:
        raise job.error(
            "parallelism.dp",
            f"{dp} does not divide the {microbatches} microbatches of a step (global_batch {job.training.global_batch} / "
            f"micro_batch {job.training.micro_batch}); use {listed(divisors(microbatches))}",
        )
    return dp


def _too_small(job: Job, gpus: int, replicas: str) -> ConfigError:
    """Return the error for a cluster of too few GPUs. replicas: factor of dp in its text, such as ` × dp 8`; may be empty."""
    p = job.parallelism
    needed = p.lanes * (p.dp if isinstance(p.dp, int) else least_dp(p, p.ep))
    degree, cp = "pp" if p.pp > 1 else "tp", f" × cp {p.cp}" if p.cp > 1 else ""
    if replicas:
        degree = "ep" if p.dp == "auto" else "dp"
    return job.error(
        f"parallelism.{degree}",
        f"the cluster is too small: tp {p.tp}{cp} × pp {p.pp}{replicas} needs {needed} GPUs, there are {gpus}; "
        "lower a degree or take a larger cluster",
    )


def _check_rounds(job: Job) -> None:
    """Raise ConfigError if a placed job has too many passes, or a number of microbatches that its interleaving excludes."""
    p = job.parallelism
    passes = job.microbatches * p.pp * p.vpp
    if passes > MAX_PASSES:
        raise job.error(
            "training.global_batch",
            f"{job.training.global_batch} makes {job.microbatches} microbatches on {p.pp * p.vpp} stages, too many to simulate "
            f"({MAX_PASSES} passes); lower it or raise micro_batch",
        )
    why = misfit(p.schedule, p.pp, job.microbatches, p.vpp) if p.vpp > 1 and not job.pipeline.folded else None
    if why:
        raise job.error("parallelism.vpp", f"{why}, or change training.global_batch (dp is {job.dp})")


def _check_shard(job: Job) -> None:
    """Raise ConfigError if the ranks with the same parameters do not divide into optimizer instances or FSDP shards."""
    shard, instances = job.parallelism.fsdp.shard, job.parallelism.optimizer_instances
    for expert in (False, True) if job.parallelism.spread else (False,):
        copies = job.copies(expert)
        ranks = f"{copies} ranks that hold the same {'experts' if expert else 'parameters'}"
        if copies % instances:
            raise job.error(
                "parallelism.optimizer_instances",
                f"{instances} does not divide the {ranks}; use {listed(divisors(copies))}",
            )
        if shard is None or copies % (shard if not expert else min(shard, copies)) == 0:
            continue
        what = f"is more than the {ranks}" if shard > copies else f"does not divide the {ranks}"
        raise job.error("parallelism.fsdp.shard", f"{shard} {what}; use {listed(divisors(copies)[1:])}")


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number in ascending order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def listed(numbers: list[int]) -> str:
    """Return numbers as text for a message, separated by commas; after the first twelve comes an ellipsis."""
    return ", ".join(str(n) for n in numbers[:12]) + (", …" if len(numbers) > 12 else "")
