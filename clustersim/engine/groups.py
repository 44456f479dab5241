"""The communication groups of a job on its mesh, as families of the fabric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from clustersim.collectives.model import Group, phases
from clustersim.engine.traffic import Family
from clustersim.errors import InputError
from clustersim.topology.model import Ints, Topology
from clustersim.workload.job import Job
from clustersim.workload.mesh import Mesh

FORWARD, BACKWARD = "p2p-forward", "p2p-backward"


class Use(NamedTuple):
    """A family and the collectives that the job runs in it."""

    family: Family
    ops: tuple[str, ...]


def families(job: Job, topology: Topology, exchanges: Sequence[str]) -> tuple[Use, ...]:
    """Return the families of a placed job; `exchanges` are the collectives that its layers run inside tp groups.

    Eras: the gradient norm needs the reduced gradients of a whole replica, and those need the backward passes of every
    replica; the parameters are gathered after every norm,
    unless that is put off to the next forward passes. So the three never meet on a link.
    """
    split, training, mesh = job.parallelism, job.training, job.mesh
    names = split.algorithms
    reduction = ("reduce_scatter", "all_gather") if split.zero else ("all_reduce",)
    clips = training.clip_gradients and training.optimizer != "none" and mesh.tp * mesh.pp > 1
    late = 2 if clips and not split.overlap.param_gather else 0
    uses = [
        Use(_family("tp", mesh.groups("tp"), names.tp, topology), tuple(exchanges)),
        Use(_family("dp", mesh.groups("dp"), names.dp, topology, {"all_gather": late}), reduction),
        *(Use(Family(name, pairs, (2,), ""), ("send",)) for name, pairs in _neighbours(mesh, split.vpp)),
    ]
    if job.model.tied_embeddings and mesh.pp > 1:
        uses.append(Use(_family("embedding", mesh.embedding(), names.embedding, topology), ("all_reduce",)))
    if clips:
        uses.append(Use(_family("model", _models(mesh), names.model, topology, {"all_reduce": 1}), ("all_reduce",)))
    uses = [use for use in uses if use.family.ranks.shape[0] and use.family.ranks.shape[1] > 1]
    for use in uses:
        _check(job, use)
    return tuple(uses)


def _check(job: Job, use: Use) -> None:
    """Raise ConfigError at the place of an algorithm that cannot do what its groups need."""
    name, ranks, fanouts, algorithm, _ = use.family
    if name in (FORWARD, BACKWARD):
        return
    for op in use.ops:
        try:
            phases(algorithm, op, Group(ranks.shape[1], fanouts))
        except InputError as error:
            raise job.error(f"parallelism.algorithms.{name}", str(error)) from error


def _models(mesh: Mesh) -> Ints:
    """Return the ranks of each replica of the model, which share one gradient norm."""
    return np.moveaxis(mesh.ranks, 1, 0).reshape(mesh.dp, -1)


def _neighbours(mesh: Mesh, chunks: int) -> list[tuple[str, Ints]]:
    """Return the (source, destination) pairs of neighbouring pipeline ranks; the last meets the first with chunks > 1."""
    if mesh.pp == 1:
        return []
    stages = mesh.ranks.reshape(mesh.pp, -1)
    following = np.roll(stages, -1, axis=0)
    last = mesh.pp if chunks > 1 else mesh.pp - 1
    forward = np.stack([stages[:last].ravel(), following[:last].ravel()], axis=1)
    return [(FORWARD, forward), (BACKWARD, forward[:, ::-1].copy())]


def _family(
    name: str, ranks: Ints, algorithm: str, topology: Topology, eras: Mapping[str, int] = MappingProxyType({})
) -> Family:
    return Family(name, ranks, levels(ranks, topology), algorithm, eras)


def levels(ranks: Ints, topology: Topology) -> tuple[int, ...]:
    """Return the fan-outs of a group from the node upwards, such as (8,) or (4, 96, 2): positions by node, leaf, pod.

    What does not divide evenly becomes one outer level.
    """
    n = ranks.shape[1]
    node = ranks[0] // topology.gpus_per_node
    inside = int((node == node[0]).sum())
    result, left = [], n
    for fanout in (inside, *topology.fanouts):
        step = math.gcd(fanout, left)
        if step != min(fanout, left):
            break
        result.append(step)
        left //= step
    return tuple(f for f in (*result, left) if f > 1) or (n,)


def group_of(family: Family, ranks: int, position: int | None = None) -> Ints:
    """Return the group of each rank in a family (-1: none); `position` asks for the groups where it stands there."""
    result = np.full(ranks, -1, np.int64)
    columns = family.ranks if position is None else family.ranks[:, [position]]
    result[columns.ravel()] = np.repeat(np.arange(len(columns)), columns.shape[1])
    return result
