"""The communication groups of a job on its mesh, as families of the fabric."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, distinct
from clustersim.collectives.levels import fanouts, levels
from clustersim.collectives.plan import NCCL
from clustersim.collectives.switched import fitted
from clustersim.engine.script import BACKWARD, FORWARD
from clustersim.engine.traffic import Family
from clustersim.errors import InputError
from clustersim.model.operator import Collective
from clustersim.parallel.job import Job
from clustersim.parallel.mesh import Mesh
from clustersim.topology.model import Topology


class Use(NamedTuple):
    """A family and the collectives that the job runs in it, by size."""

    family: Family
    collectives: tuple[Collective, ...]


def families(job: Job, topology: Topology, gpus: Ints, collectives: Iterable[Collective]) -> tuple[Use, ...]:
    """Return the families of a placed job that its `collectives` name; `gpus` is the GPU of every rank.

    Eras: the gradient norm needs the reduced gradients of a whole replica, and those need the backward passes of every
    replica; the parameters are gathered after every norm, unless that is put off to the next forward passes. So the three
    never meet on a link.
    """
    by_name: dict[str, dict[Collective, None]] = {}
    for one in collectives:
        by_name.setdefault(one.group, {})[one] = None
    late = 2 if "model" in by_name and not job.parallelism.overlap.param_gather else 0
    eras = {"dp": {"all_gather": late}, "edp": {"all_gather": late}, "model": {"all_reduce": 1}}
    ranks = _ranks(job.mesh, job.expert_mesh, job.parallelism.vpp)
    upwards = fanouts(distinct(gpus // topology.gpus_per_node), topology)
    uses = []
    for name, own in by_name.items():
        algorithm = "" if name in (FORWARD, BACKWARD) else getattr(job.parallelism.algorithms, _setting(name))
        shares = job.shares if name == "ep" else ()
        family = Family(name, ranks[name], (), algorithm, eras.get(name, {}), shares=shares)
        uses.append(_fitted(job, topology, gpus, upwards, Use(family, tuple(own))))
    return tuple(uses)


def _setting(family: str) -> str:
    """Return the field of `parallelism.algorithms` for a family."""
    return {"edp": "dp", "etp": "tp", "tp_ep": "ep"}.get(family, family)


def _ranks(mesh: Mesh, experts: Mesh, chunks: int) -> dict[str, Ints]:
    """Return the groups of every family as (groups, n) ranks."""
    forward = _neighbours(mesh, chunks)
    return {
        "tp": mesh.groups("tp"),
        "dp": mesh.groups("dp"),
        "etp": experts.groups("tp"),
        "ep": experts.groups("ep"),
        "tp_ep": experts.groups("ep", "tp"),
        "edp": experts.groups("dp"),
        "embedding": mesh.embedding(),
        "model": experts.groups("pp", "ep", "cp", "tp"),
        FORWARD: forward,
        BACKWARD: forward[:, ::-1].copy(),
    }


def _fitted(job: Job, topology: Topology, gpus: Ints, upwards: tuple[int, ...], use: Use) -> Use:
    """Return the groups with the levels that their algorithm takes.

    Raises ConfigError at the place of an algorithm that cannot do what its groups need, or needs switches that are not there.
    """
    family, ops = use.family, dict.fromkeys(one.op for one in use.collectives)
    placed = gpus[family.ranks]
    if family.algorithm in ("", NCCL):
        fit = levels(placed // topology.gpus_per_node, upwards)
        return use._replace(family=family._replace(levels=fit))
    try:
        group = fitted(topology, family.algorithm, ops, placed, upwards, family.shares)
    except InputError as error:
        raise job.error(f"parallelism.algorithms.{_setting(family.name)}", str(error)) from error
    return use._replace(family=family._replace(levels=group.levels))


def _neighbours(mesh: Mesh, chunks: int) -> Ints:
    """Return the (source, destination) pairs of neighbouring pipeline ranks; the last meets the first with chunks > 1."""
    stages = mesh.ranks.reshape(mesh.pp, -1)
    following = np.roll(stages, -1, axis=0)
    last = mesh.pp if chunks > 1 and mesh.pp > 1 else mesh.pp - 1
    return np.stack([stages[:last].ravel(), following[:last].ravel()], axis=1)


def group_of(family: Family, ranks: int, position: int | None = None) -> Ints:
    """Return the group of each rank in a family (-1: none); `position` asks for the groups where it stands there."""
    result = np.full(ranks, -1, np.int64)
    columns = family.ranks if position is None else family.ranks[:, [position]]
    result[columns.ravel()] = np.repeat(np.arange(len(columns)), columns.shape[1])
    return result
