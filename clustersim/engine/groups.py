"""Communication groups of a job on its mesh, as families of the fabric."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from clustersim import plugins
from clustersim.arrays import Ints, distinct
from clustersim.cache import fingerprint
from clustersim.collectives.levels import fanouts, levels
from clustersim.collectives.model import ROOM
from clustersim.collectives.plan import MESSAGES, NCCL
from clustersim.collectives.switched import fitted
from clustersim.config.workload import Algorithms
from clustersim.engine.network import Tenant
from clustersim.engine.script import BACKWARD, FORWARD
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

    gpus: GPU of every rank. Results that depend on the split and not on sizes are cached per cluster. Raises ConfigError at the
    key of an algorithm that does not support its groups, or needs missing switches.
    """
    by_name: dict[str, dict[Collective, None]] = {}
    for one in collectives:
        by_name.setdefault(one.group, {})[one] = None
    ops = tuple((name, tuple(dict.fromkeys(one.op for one in own))) for name, own in by_name.items())
    split = job.parallelism
    algorithms = tuple((key, plugins.spelled(ROOM, name)) for key, name in split.algorithms if name != NCCL)
    late = not split.overlap.param_gather
    shards = (job.shards(False), job.shards(True))
    shape = (
        job.mesh,
        job.expert_mesh,
        job.pipeline,
        job.shares,
        job.positions,
        job.router,
        algorithms,
        late,
        shards,
        split.cp_inner,
        split.overlap.p2p,
        job.training.offload,
    )
    question = ("tenant", *shape, ops, fingerprint(gpus))

    def found() -> tuple[tuple[Family, ...], Ints, object]:
        return families(job, topology, gpus, ops), _seeds(job, topology, gpus), object()

    own, seeds, key = topology.cache.once(question, found)  # a key that is quick to hash
    return Tenant([(family, tuple(by_name[family.name])) for family in own], gpus, seeds, key)


def families(
    job: Job, topology: Topology, gpus: Ints, ops: Iterable[tuple[str, tuple[str, ...]]]
) -> tuple[Family, ...]:
    """Return the families of a placed job, by name, for the operations `ops`.

    Eras: the gradient norm needs the reduced gradients of a whole replica, and those need the backward passes of every replica;
    parameters are gathered after every norm, unless that overlaps the next forward passes. So collectives of the three eras never
    share a link. If shards are reduced over copies, those of other replicas may still be in progress at a norm.
    """
    wanted = dict(ops)
    late = 2 if "model" in wanted and not job.parallelism.overlap.param_gather else 0
    several = job.parallelism.optimizer_instances > 1
    gathers = dict.fromkeys(("all_gather", "broadcast"), 0 if job.sharded else late)
    eras: dict[str, dict[str, int]] = {
        **dict.fromkeys(("dp", "edp", "fsdp", "efsdp"), gathers),
        "model": {"all_reduce": 0 if several else 1},
    }
    ranks = _ranks(job.mesh, job.expert_mesh, job.pipeline)
    if job.sharded or several:
        ranks |= _shard_groups(job)
    if job.parallelism.cp_inner:
        ranks |= _context_groups(job.mesh, job.parallelism.cp_inner)
    if offloads(job):  # copies may cross links of GPUs that reach each other over PCIe, at any time
        eras = {}
    upwards = fanouts(distinct(topology.numbering.node_of(gpus)), topology)
    ranks |= {name: lambda: np.arange(job.mesh.size)[:, np.newaxis] for name in DIRECTIONS}
    found = []
    for name, own in wanted.items():
        host = (DIRECTIONS[name], job.training.offload.threads) if name in DIRECTIONS else None
        algorithm = "" if host or set(own) <= MESSAGES else _algorithm(job.parallelism.algorithms, name)
        shares, router = (job.shares, job.router) if name == "ep" else ((), None)
        wide = pipelines(job) if name in (FORWARD, BACKWARD) and not job.parallelism.overlap.p2p else None
        family = Family(name, ranks[name](), (), algorithm, eras.get(name, {}), 0, shares, router, wide, host)
        found.append(_fitted(job, topology, gpus, upwards, family, own))
    return tuple(found)


def _seeds(job: Job, topology: Topology, gpus: Ints) -> Ints:
    """Return a number per rank that identifies its script, node type and speed (ranks,)."""
    _, speed = np.unique(topology.slowdown[gpus], return_inverse=True)
    if topology.pools:
        speed = speed + (speed.max() + 1) * topology.kind_of(gpus)
    seeds: Ints = roles(job) * (speed.max() + 1) + speed
    return seeds


def roles(job: Job) -> Ints:
    """Return the role of every rank (ranks,): its pipeline rank, and its position in the ep group if loads there differ."""
    pp, _, ep, _, _ = job.expert_mesh.coordinates(np.arange(job.mesh.size))
    return pp * job.positions + ep % job.positions


def _algorithm(algorithms: Algorithms, family: str) -> str:
    """Return the algorithm of a family. Row counts are gathered by NCCL, because DeepEP has no gather."""
    found: str = getattr(algorithms, _setting(family))
    return NCCL if family == COUNTS and found in TOKENS else found


def _setting(family: str) -> str:
    """Return the field of `parallelism.algorithms` for a family."""
    found = {"etp": "tp", "tp_ep": "ep", "cp_a2a": "cp", "cp_ring": "cp"}
    return "dp" if family in ("edp", "amax", "fsdp", "efsdp") else found.get(family, family)


def _ranks(mesh: Mesh, experts: Mesh, pipeline: Pipeline) -> dict[str, Callable[[], Ints]]:
    """Return {family: function that returns its groups as ranks (groups, n)}."""
    return {
        "tp": lambda: mesh.groups("tp"),
        "dp": lambda: holders(mesh, pipeline),
        "cp": lambda: mesh.groups("cp"),
        "etp": lambda: experts.groups("tp"),
        "ep": lambda: experts.groups("ep"),
        "tp_ep": lambda: experts.groups("ep", "tp"),
        "amax": lambda: mesh.groups("dp", "cp", "tp"),
        "edp": lambda: holders(experts, pipeline),
        "embedding": mesh.embedding,
        "model": lambda: experts.groups("pp", "ep", "cp", "tp"),
        FORWARD: lambda: _neighbours(mesh, pipeline),
        BACKWARD: lambda: np.flip(_neighbours(mesh, pipeline), axis=1).copy(),
    }


def holders(mesh: Mesh, pipeline: Pipeline) -> Ints:
    """Return the groups of ranks that hold the same parameters.

    With two copies of the model, the two ranks at equal distance from the ends of a pipeline hold the same two stages.
    """
    found = mesh.groups("dp", "cp")
    if pipeline.copies == 1:
        return found
    near, far = np.split(found.reshape(mesh.pp, -1, found.shape[1]), 2)
    return np.concatenate([near, far[::-1]], axis=2).reshape(-1, 2 * found.shape[1])


def _context_groups(mesh: Mesh, inner: int) -> dict[str, Callable[[], Ints]]:
    """Return functions for the two dimensions of context parallelism: all-to-all groups (Ulysses) and the rings across them."""

    def cut() -> Ints:
        return mesh.groups("cp").reshape(-1, mesh.cp // inner, inner)

    return {
        "cp_a2a": lambda: cut().reshape(-1, inner),
        "cp_ring": lambda: cut().transpose(0, 2, 1).reshape(-1, mesh.cp // inner),
    }


def _shard_groups(job: Job) -> dict[str, Callable[[], Ints]]:
    """Return functions for the groups that shard one copy of the parameters, and for the groups of equal shards of the copies."""

    def cut(mesh: Mesh, expert: bool) -> Ints:
        return holders(mesh, job.pipeline).reshape(-1, job.copies(expert) // job.shards(expert), job.shards(expert))

    def copies(mesh: Mesh, expert: bool) -> Ints:
        found = cut(mesh, expert)
        return found.transpose(0, 2, 1).reshape(-1, found.shape[1])

    return {
        "fsdp": lambda: cut(job.mesh, False).reshape(-1, job.shards(False)),
        "efsdp": lambda: cut(job.expert_mesh, True).reshape(-1, job.shards(True)),
        "dp": lambda: copies(job.mesh, False),
        "edp": lambda: copies(job.expert_mesh, True),
    }


def _fitted(
    job: Job, topology: Topology, gpus: Ints, upwards: tuple[int, ...], family: Family, ops: tuple[str, ...]
) -> Family:
    """Return the family with the levels that its algorithm uses. Raises ConfigError if the algorithm cannot run on its groups."""
    placed = gpus[family.ranks]
    if family.algorithm in ("", NCCL):
        return family._replace(levels=levels(topology.numbering.node_of(placed), upwards))
    try:
        group = fitted(topology, family.algorithm, ops, placed, upwards, family.shares)
    except InputError as error:
        raise job.error(f"parallelism.algorithms.{_setting(family.name)}", str(error)) from error
    return family._replace(levels=group.levels)


def _neighbours(mesh: Mesh, pipeline: Pipeline) -> Ints:
    """Return (source, destination) pairs of neighbouring pipeline ranks, including (last, first) if chunks wrap around."""
    stages = mesh.ranks.reshape(mesh.pp, -1)
    following = np.roll(stages, -1, axis=0)
    last = mesh.pp if pipeline.chunks > 1 and not pipeline.folded and mesh.pp > 1 else mesh.pp - 1
    return np.stack([stages[:last].ravel(), following[:last].ravel()], axis=1)


def pipelines(job: Job) -> Ints:
    """Return the ranks of every pipeline (pipelines, pp), in the order of the neighbours of one stage.

    Messages with waits are sent and received in one call (batch_isend_irecv of PyTorch, as in Megatron and in its own pipelines),
    which uses the pipeline's communicator; others use one of the two ranks.
    """
    return np.ascontiguousarray(job.mesh.ranks.reshape(job.mesh.pp, -1).T)


def group_of(family: Family, ranks: int, position: int | None = None) -> Ints:
    """Return the group of each rank in a family (-1: none); with `position`, only where the rank has that position."""
    result = np.full(ranks, -1, np.int64)
    columns = family.ranks if position is None else family.ranks[:, [position]]
    result[columns.ravel()] = np.repeat(np.arange(len(columns)), columns.shape[1])
    return result
