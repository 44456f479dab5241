"""Communication groups of a placed job, as families of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from clustersim import plugins
from clustersim.arrays import Ints, distinct
from clustersim.cache import fingerprint
from clustersim.collectives.levels import fanouts, fitted, levels
from clustersim.collectives.model import ROOM
from clustersim.collectives.plan import MESSAGES, NCCL
from clustersim.engine.network import Tenant
from clustersim.engine.script import TO_NEXT, TO_PREVIOUS
from clustersim.engine.traffic import Family
from clustersim.errors import InputError
from clustersim.model.moe import COUNTS
from clustersim.model.operator import Collective
from clustersim.model.sharding import TOKENS
from clustersim.parallel.job import Job
from clustersim.parallel.mesh import Mesh
from clustersim.parallel.offload import DIRECTIONS, offloads
from clustersim.schedules.pipeline import Pipeline
from clustersim.topology.model import Topology

PIPELINES = "pp"
"""Family name of the ranks of pipelines."""


def tenant(job: Job, topology: Topology, gpus: Ints, collectives: Iterable[Collective]) -> Tenant:
    """Return a placed job as input of the network: the families of its `collectives`, and a seed for each rank.

    gpus: GPU of every rank (ranks,). Results that do not depend on sizes of collectives are cached with the cluster. Raises
    ConfigError at the key of an algorithm that does not support its groups, or needs switches that the cluster does not have.
    """
    by_name: dict[str, dict[Collective, None]] = {}
    for collective in collectives:
        by_name.setdefault(collective.group, {})[collective] = None
    ops = tuple((name, tuple(dict.fromkeys(call.op for call in calls))) for name, calls in by_name.items())
    split = job.parallelism
    algorithms = tuple((key, plugins.spelled(ROOM, name)) for key, name in split.algorithms if name != NCCL)
    gathers_after_update = not split.overlap.param_gather
    shards = (job.shards(False), job.shards(True))
    question = (
        "tenant",
        job.mesh,
        job.expert_mesh,
        job.pipeline,
        job.shares,
        job.positions,
        job.router,
        algorithms,
        gathers_after_update,
        shards,
        split.cp_inner,
        split.overlap.p2p,
        job.training.offload,
        ops,
        fingerprint(gpus),
    )

    def compute_tenant() -> tuple[tuple[Family, ...], Ints, object]:
        """Return families, seeds and a new object as cache key."""
        return families(job, topology, gpus, ops), _seeds(job, topology, gpus), object()

    job_families, seeds, key = topology.cache.once(question, compute_tenant)  # a key that is quick to hash
    return Tenant([(family, tuple(by_name[family.name])) for family in job_families], gpus, seeds, key)


def families(
    job: Job, topology: Topology, gpus: Ints, ops: Iterable[tuple[str, tuple[str, ...]]]
) -> tuple[Family, ...]:
    """Return the families of a placed job that communicate, with ranks of the job in their groups.

    gpus: GPU of every rank (ranks,). ops: (family, operations that it runs) for each family.

    Eras: the gradient norm needs the reduced gradients of a whole replica, and these need the backward passes of every replica;
    parameters are gathered after every norm, unless that overlaps the next forward passes. So collectives of the three eras never
    share a link. If shards are reduced over copies, reductions of other replicas may still be in progress at a norm.
    """
    family_ops = dict(ops)
    after_norm = 2 if "model" in family_ops and not job.parallelism.overlap.param_gather else 0
    has_copies = job.parallelism.optimizer_instances > 1
    gathers = dict.fromkeys(("all_gather", "broadcast"), 0 if job.sharded else after_norm)
    eras: dict[str, dict[str, int]] = {
        **dict.fromkeys(("dp", "edp", "fsdp", "efsdp"), gathers),
        "model": {"all_reduce": 0 if has_copies else 1},
    }
    ranks = _ranks(job.mesh, job.expert_mesh, job.pipeline)
    if job.sharded or has_copies:
        ranks |= _shard_groups(job)
    if job.parallelism.cp_inner:
        ranks |= _context_groups(job.mesh, job.parallelism.cp_inner)
    if offloads(job):  # copies may cross links of GPUs that reach each other over PCIe, at any time
        eras = {}
    fanouts_up = fanouts(distinct(topology.numbering.node_of(gpus)), topology)
    ranks |= {name: lambda: np.arange(job.mesh.size)[:, np.newaxis] for name in DIRECTIONS}
    result = []
    for name, wanted_ops in family_ops.items():
        host = (DIRECTIONS[name], job.training.offload.threads) if name in DIRECTIONS else None
        algorithm = (
            getattr(job.parallelism.algorithms, _setting(name)) if set(wanted_ops) - MESSAGES and not host else ""
        )
        if name == COUNTS and algorithm in TOKENS:  # DeepEP has no gather, so NCCL gathers the counts of rows
            algorithm = NCCL
        shares, router = (job.shares, job.router) if name == "ep" else ((), None)
        communicators = pipelines(job) if name in (TO_NEXT, TO_PREVIOUS) and not job.parallelism.overlap.p2p else None
        family = Family(name, ranks[name](), (), algorithm, eras.get(name, {}), 0, shares, router, communicators, host)
        result.append(_with_levels(job, topology, gpus, fanouts_up, family, wanted_ops))
    return tuple(result)


def _seeds(job: Job, topology: Topology, gpus: Ints) -> Ints:
    """Return a number per rank that identifies its role, node type and speed (ranks,). gpus: GPU of every rank."""
    _, speed = np.unique(topology.slowdown[gpus], return_inverse=True)
    if topology.pools:
        speed = speed + (speed.max() + 1) * topology.kind_of(gpus)
    seeds: Ints = roles(job) * (speed.max() + 1) + speed
    return seeds


def roles(job: Job) -> Ints:
    """Return the index of every rank's script in `Work.scripts` (ranks,).

    It follows from the pipeline rank, and from the position in the ep group if the loads of its positions differ.
    """
    pp, _, ep, _, _ = job.expert_mesh.coordinates(np.arange(job.mesh.size))
    return pp * job.positions + ep % job.positions


def _setting(family: str) -> str:
    """Return the field of `parallelism.algorithms` for a family."""
    settings = {"etp": "tp", "tp_ep": "ep", "cp_a2a": "cp", "cp_ring": "cp"}
    return "dp" if family in ("edp", "amax", "fsdp", "efsdp") else settings.get(family, family)


def _ranks(mesh: Mesh, expert_mesh: Mesh, pipeline: Pipeline) -> dict[str, Callable[[], Ints]]:
    """Return {family: function that returns the ranks of its groups (groups, n)}, without families of shards and copies."""
    return {
        "tp": lambda: mesh.groups("tp"),
        "dp": lambda: replica_groups(mesh, pipeline),
        "cp": lambda: mesh.groups("cp"),
        "etp": lambda: expert_mesh.groups("tp"),
        "ep": lambda: expert_mesh.groups("ep"),
        "tp_ep": lambda: expert_mesh.groups("ep", "tp"),
        "amax": lambda: mesh.groups("dp", "cp", "tp"),
        "edp": lambda: replica_groups(expert_mesh, pipeline),
        "embedding": mesh.embedding,
        "model": lambda: expert_mesh.groups("pp", "ep", "cp", "tp"),
        TO_NEXT: lambda: _neighbours(mesh, pipeline),
        TO_PREVIOUS: lambda: np.flip(_neighbours(mesh, pipeline), axis=1).copy(),
    }


def replica_groups(mesh: Mesh, pipeline: Pipeline) -> Ints:
    """Return the groups of ranks that hold the same parameters, as ranks (groups, n).

    With two copies of the model in a pipeline, the two ranks at equal distance from its ends hold the same two stages.
    """
    groups = mesh.groups("dp", "cp")
    if pipeline.copies == 1:
        return groups
    near, far = np.split(groups.reshape(mesh.pp, -1, groups.shape[1]), 2)
    return np.concatenate([near, far[::-1]], axis=2).reshape(-1, 2 * groups.shape[1])


def _context_groups(mesh: Mesh, inner: int) -> dict[str, Callable[[], Ints]]:
    """Return {family: function for the ranks of its groups} of context parallelism in two dimensions.

    They are the all-to-all groups of `inner` ranks (Ulysses) and the rings across them.
    """

    def split_groups() -> Ints:
        """Return the ranks of each cp group (groups, cp / inner, inner)."""
        return mesh.groups("cp").reshape(-1, mesh.cp // inner, inner)

    return {
        "cp_a2a": lambda: split_groups().reshape(-1, inner),
        "cp_ring": lambda: split_groups().transpose(0, 2, 1).reshape(-1, mesh.cp // inner),
    }


def _shard_groups(job: Job) -> dict[str, Callable[[], Ints]]:
    """Return {family: function for the ranks of its groups} of sharded parameters.

    They are the groups that share one copy of the parameters, and the groups with equal shards of different copies.
    """

    def shard_groups(mesh: Mesh, expert: bool) -> Ints:
        """Return the ranks of the same parameters (groups, copies, shards)."""
        return replica_groups(mesh, job.pipeline).reshape(
            -1, job.copies(expert) // job.shards(expert), job.shards(expert)
        )

    def copies(mesh: Mesh, expert: bool) -> Ints:
        """Return the ranks with equal shards of different copies (groups, copies)."""
        groups = shard_groups(mesh, expert)
        return groups.transpose(0, 2, 1).reshape(-1, groups.shape[1])

    return {
        "fsdp": lambda: shard_groups(job.mesh, False).reshape(-1, job.shards(False)),
        "efsdp": lambda: shard_groups(job.expert_mesh, True).reshape(-1, job.shards(True)),
        "dp": lambda: copies(job.mesh, False),
        "edp": lambda: copies(job.expert_mesh, True),
    }


def _with_levels(
    job: Job, topology: Topology, gpus: Ints, fanouts_up: tuple[int, ...], family: Family, ops: tuple[str, ...]
) -> Family:
    """Return the family with the levels that its algorithm uses, for operations `ops`.

    gpus: GPU of every rank. fanouts_up: fan-outs above the node, from `fanouts`. Raises ConfigError if it cannot run on its
    groups.
    """
    gpus_of_groups = gpus[family.ranks]
    if family.algorithm in ("", NCCL):
        return family._replace(levels=levels(topology.numbering.node_of(gpus_of_groups), fanouts_up))
    try:
        group = fitted(topology, family.algorithm, ops, gpus_of_groups, fanouts_up, family.shares)
    except InputError as error:
        raise job.error(f"parallelism.algorithms.{_setting(family.name)}", str(error)) from error
    return family._replace(levels=group.levels)


def _neighbours(mesh: Mesh, pipeline: Pipeline) -> Ints:
    """Return pairs (sender, receiver) of ranks in neighbouring pipeline ranks (pairs, 2), with (last, first) if chunks wrap."""
    stages = mesh.ranks.reshape(mesh.pp, -1)
    following = np.roll(stages, -1, axis=0)
    sending = mesh.pp if pipeline.chunks > 1 and not pipeline.folded and mesh.pp > 1 else mesh.pp - 1
    return np.stack([stages[:sending].ravel(), following[:sending].ravel()], axis=1)


def pipelines(job: Job) -> Ints:
    """Return the ranks of every pipeline (pipelines, pp), in the order of the neighbours of one stage.

    Messages with waits are sent and received in one call (PyTorch's batch_isend_irecv, as in Megatron and PyTorch's own
    pipelines), which uses the pipeline's communicator; others use a communicator of the two ranks.
    """
    return np.ascontiguousarray(job.mesh.ranks.reshape(job.mesh.pp, -1).T)


def group_of(family: Family, ranks: int, position: int | None = None) -> Ints:
    """Return the index of each rank's group in a family (ranks,), -1 for none. ranks: number of ranks.

    position: if not None, only ranks at this position of their group count as members.
    """
    result = np.full(ranks, -1, np.int64)
    columns = family.ranks if position is None else family.ranks[:, [position]]
    result[columns.ravel()] = np.repeat(np.arange(len(columns)), columns.shape[1])
    return result
