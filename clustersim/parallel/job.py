"""A workload that has passed every check, and its placement on a number of GPUs."""

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
"""Largest number of forward passes of one replica in a simulation."""


@dataclass(frozen=True)
class Job:
    """A validated workload, its source document (for later errors), and the keys of the document that were ignored."""

    spec: Workload
    document: Document = field(repr=False, compare=False)
    ignored: Ignored = NOTHING
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
        """Shapes on one tensor-parallel rank; if ranks differ in load of experts, on the busiest one."""
        return self.shard_at(0)

    def shard_at(self, position: int) -> ShardedModel:
        """Return the shapes on the rank at `position` in its expert-parallel group."""
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
        """Tensors that the framework keeps besides the model's; none without one. Raises ConfigError for an unknown framework."""
        named = self.training.framework
        try:
            return (load(named).memory if named else None) or KeptTensors()
        except InputError as error:
            raise self.error("training.framework", str(error)) from error

    @property
    def sms_beside(self) -> int | None:
        """SMs that communication on separate streams takes from passes; None: one per NCCL channel."""
        own = self.parallelism.overlap.sms
        return None if own == "nccl" else own

    @property
    def memory_beside(self) -> float | None:
        """Share of the memory bandwidth that communication on separate streams takes; None: computed from NCCL's traffic."""
        own = self.parallelism.overlap.memory
        return None if own == "nccl" else own

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of all rows that the experts of each ep rank receive; () if all are equal."""
        return loads(self.parallelism.ep, self.training)[0]

    @property
    def router(self) -> ExpertRouter | None:
        """Model of how tokens choose experts, if the network traffic depends on it; None otherwise."""
        return router(self.model, self.parallelism)

    @property
    def positions(self) -> int:
        """Number of positions of an expert-parallel group whose work differs."""
        return len(self.shares) or 1

    @property
    def vocab(self) -> int:
        """Size of the vocabulary, padding included."""
        return padded_vocab(self.model, self.parallelism.tp)

    @property
    def dp(self) -> int:
        """Data-parallel degree. Raises InputError while it is `auto`, which `place` resolves."""
        if self.parallelism.dp == "auto":
            raise InputError(f"{self.document.path}: parallelism.dp is auto; place the job on a cluster first")
        return self.parallelism.dp

    @cached_property
    def pipeline(self) -> Pipeline:
        """Pipeline layout of the job's schedule."""
        return pipeline(self.parallelism.schedule, self.parallelism.pp, self.parallelism.vpp)

    def lanes(self, stages: Sequence[T]) -> list[list[T]]:
        """Return the values of each pipeline rank's stages. `stages` has one value per global stage."""
        return [[stages[stage] for stage in self.pipeline.own(rank)] for rank in range(self.parallelism.pp)]

    @property
    def message_parts(self) -> int:
        """Number of tp ranks that share a message between stages: each sends its part, and the receivers gather the parts."""
        split = self.parallelism
        return split.tp if split.scatter_gather and not split.sequence_parallel else 1

    @property
    def order_of_stages(self) -> str:
        """Name of a schedule with the same stages on each rank: the job's own if it is folded, else 1f1b."""
        return self.parallelism.schedule if self.pipeline.folded else "1f1b"

    def copies(self, expert: bool) -> int:
        """Return the number of ranks that hold the same dense parameters, or with `expert` the same slices of experts."""
        return self.pipeline.copies * (self.replicas_of_experts if expert else self.dp * self.parallelism.cp)

    @property
    def replicas_of_experts(self) -> int:
        """Number of ranks at one place of a pipeline that hold the same slices of experts."""
        p = self.parallelism
        return self.dp * p.cp * p.tp // (p.ep * p.etp)

    def shards(self, expert: bool) -> int:
        """Return the number of ranks over which a copy of the optimizer state is sharded, with zero: 3 also the parameters."""
        p = self.parallelism
        whole = self.copies(expert) // p.optimizer_instances if p.zero else 1
        return min(p.fsdp.shard or whole, whole) if p.zero == 3 else whole

    @cached_property
    def sharded(self) -> bool:
        """Whether parameters are sharded over data-parallel ranks and gathered for each pass."""
        return self.parallelism.zero == 3 and max(self.copies(False), self.copies(True)) > 1

    @property
    def microbatches(self) -> int:
        """Number of microbatches per replica and step."""
        return self.training.global_batch // (self.dp * self.training.micro_batch)

    @property
    def mesh(self) -> Mesh:
        """Mesh of the ranks of a placed job for the dense part of the model."""
        return Mesh(self.parallelism.tp, self.parallelism.pp, self.dp, self.parallelism.cp)

    @property
    def expert_mesh(self) -> Mesh:
        """Mesh of the same ranks for the experts; its tp ranks hold slices of an expert."""
        p = self.parallelism
        return Mesh(p.etp, p.pp, self.replicas_of_experts, ep=p.ep)

    def error(self, key: str, message: str) -> ConfigError:
        """Return a ConfigError at a dotted key such as `parallelism.tp`."""
        return self.document.error(tuple(key.split(".")), f"{key}: {message}")

    def changed(self, values: Mapping[str, object]) -> Job:
        """Return the job with other values by dotted key, such as `parallelism.overlap.p2p`, unchecked."""
        return replace(self, spec=_changed(self.spec, values))

    def place(self, gpus: int, gpus_per_node: int) -> Job:
        """Return the job with dp resolved for `gpus` GPUs.

        `dp: auto` is the largest degree with tp·pp·dp <= gpus whose replicas share global_batch in whole microbatches and hold
        all experts. Raises ConfigError if the cluster is too small, dp does not divide the batch, or tp would span nodes without
        `tp_across_nodes`.
        """
        _check_nodes(self, gpus_per_node)
        dp = _auto(self, gpus) if self.parallelism.dp == "auto" else _explicit(self, gpus, self.parallelism.dp)
        parallelism = self.parallelism.model_copy(update={"dp": dp})
        placed = replace(self, spec=self.spec.model_copy(update={"parallelism": parallelism}))
        _check_rounds(placed)
        _check_shard(placed)
        return placed


def _changed(spec: S, values: Mapping[str, object]) -> S:
    """Return a spec (model, training or parallelism) with other values by dotted key."""
    own: dict[str, object] = {}
    inner: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        section, _, rest = key.partition(".")
        if rest:
            inner.setdefault(section, {})[rest] = value
        else:
            own[key] = value
    return spec.model_copy(update=own | {name: _changed(getattr(spec, name), some) for name, some in inner.items()})


def _check_nodes(job: Job, gpus_per_node: int) -> None:
    tp = job.parallelism.tp
    if job.parallelism.tp_across_nodes or (tp <= gpus_per_node and gpus_per_node % tp == 0):
        return
    fitting = [d for d in divisors(gpus_per_node) if job.model.heads % d == 0]
    raise job.error(
        "parallelism.tp",
        f"groups of {tp} would span nodes of {gpus_per_node} GPUs; "
        f"use {listed(fitting)}, or set parallelism.tp_across_nodes: true",
    )


def _auto(job: Job, gpus: int) -> int:
    lanes, share = job.parallelism.lanes, job.training.global_batch // job.training.micro_batch
    least = least_dp(job.parallelism, job.parallelism.ep)
    if lanes * least > gpus:
        raise _too_small(job, gpus, f" × dp {least} for ep {job.parallelism.ep}" if least > 1 else "")
    if share % least:
        raise job.error(
            "parallelism.ep",
            f"{job.parallelism.ep} needs a dp of {least} or a multiple, which cannot divide the {share} microbatches of a step; "
            f"use {listed(degrees(job, share))}",
        )
    return max(dp for dp in divisors(share) if dp * lanes <= gpus and dp % least == 0)


def least_dp(p: Parallelism, ep: int) -> int:
    """Return the smallest possible dp, of which all others are multiples: tp·cp·dp ranks must hold whole experts over ep."""
    return ep * p.etp // math.gcd(ep * p.etp, p.tp * p.cp)


def degrees(job: Job, dp: int) -> list[int]:
    """Return the values of ep that divide the experts and are possible with `dp`."""
    return [ep for ep in divisors(job.model.experts or 1) if dp % least_dp(job.parallelism, ep) == 0]


def _explicit(job: Job, gpus: int, dp: int) -> int:
    share = job.training.global_batch // job.training.micro_batch
    if dp * job.parallelism.lanes > gpus:
        raise _too_small(job, gpus, f" × dp {dp}")
    if share % dp:
        raise job.error(
            "parallelism.dp",
            f"{dp} does not divide the {share} microbatches of a step (global_batch {job.training.global_batch} / "
            f"micro_batch {job.training.micro_batch}); use {listed(divisors(share))}",
        )
    return dp


def _too_small(job: Job, gpus: int, replicas: str) -> ConfigError:
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
    p = job.parallelism
    passes = job.microbatches * p.pp * p.vpp
    if passes > MAX_PASSES:
        raise job.error(
            "training.global_batch",
            f"{job.training.global_batch} makes {job.microbatches} microbatches on {p.pp * p.vpp} stages, too many to play "
            f"({MAX_PASSES} passes); lower it or raise micro_batch",
        )
    why = misfit(p.schedule, p.pp, job.microbatches, p.vpp) if p.vpp > 1 and not job.pipeline.folded else None
    if why:
        raise job.error("parallelism.vpp", f"{why}, or change training.global_batch (dp is {job.dp})")


def _check_shard(job: Job) -> None:
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
    """Return the divisors of a number in ascending order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def listed(numbers: list[int]) -> str:
    """Return the first twelve numbers as text for a message, with an ellipsis if there are more."""
    return ", ".join(str(n) for n in numbers[:12]) + (", …" if len(numbers) > 12 else "")
