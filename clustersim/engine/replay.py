"""Replay of traces: tasks of ranks with their dependencies, as a pass of free tasks.

A rank's computations run one after the other, in the order in which it has them. So do the collectives of each of its groups
and its messages to each peer, as NCCL's do; everything else begins when what it needs is over. Ranks of which nothing can tell
apart what they do, and where, are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, distinct
from clustersim.collectives.levels import fanouts, levels
from clustersim.collectives.plan import NCCL
from clustersim.engine.compile import Activities, Plan, cells_of
from clustersim.engine.network import Network, Tenant, demand, folded, networks
from clustersim.engine.player import Engine, execute
from clustersim.engine.program import Layout, Program, Task
from clustersim.engine.record import Record
from clustersim.engine.times import Tasks
from clustersim.engine.traffic import Family
from clustersim.errors import DeadlockError, SimulationError
from clustersim.model.operator import Collective
from clustersim.topology.model import Topology


class TracedRank(NamedTuple):
    """Tasks of a rank in a trace."""

    tasks: tuple[Task, ...]
    """Free tasks; each waits for earlier ones."""
    seconds: tuple[float, ...]
    """Seconds of each computation or host task; 0 for others."""


class ReplayTasks(NamedTuple):
    """Tasks of all ranks, with the groups that they use."""

    ranks: Sequence[TracedRank]
    families: Mapping[str, Ints]
    """Ranks of all groups by name (groups, n), with no rank in two groups of a family; families of messages, from the first rank
    to the second, begin with p2p."""
    communicators: Mapping[str, Ints]
    """For families of messages, ranks of their communicators (groups, m), if other than the two ranks."""
    notes: Sequence[str] = ()
    """Assumptions, in words."""


def replay(topology: Topology, asked: ReplayTasks, engine: Engine = "auto", fold: bool = True) -> Record:
    """Return the step of all ranks, rank i on GPU i, as one pass with all tasks. Raises SimulationError at a deadlock."""
    gpus = np.arange(len(asked.ranks))
    upwards = fanouts(distinct(topology.numbering.node_of(gpus)), topology)
    used: dict[str, dict[Collective, None]] = {name: {} for name in asked.families}
    for task in chain.from_iterable(rank.tasks for rank in asked.ranks):
        if task.collective is not None:
            used[task.collective.group][task.collective] = None
    families = [
        Family(
            name,
            ranks,
            levels(topology.numbering.node_of(ranks), upwards),
            NCCL,
            communicators=asked.communicators.get(name),
        )
        for name, ranks in asked.families.items()
        if used[name]
    ]
    uses = [(family, tuple(used[family.name])) for family in families]
    loads = demand(topology, [Tenant(uses, gpus, _seeds(topology, asked.ranks))])
    [network] = networks(loads, folded(loads, fold))
    first = network.cells.ranks.first
    plan = _plan([asked.ranks[rank] for rank in first.tolist()], families, network)
    bound = Tasks(plan)
    try:
        return execute(bound, engine)
    except DeadlockError as error:
        cell, place = bound.shape.place(error.task)
        raise SimulationError(
            f"deadlock: task {place} of rank {int(first[cell])} waits for what waits for it"
        ) from None


def _seeds(topology: Topology, ranks: Sequence[TracedRank]) -> Ints:
    """Return a number per rank: ranks with equal numbers have equal tasks, possibly in other groups, on nodes of one type."""
    kinds = topology.kind_of(np.arange(len(ranks))).tolist() if topology.pools else [0] * len(ranks)
    known: dict[object, int] = {}
    same = ((tuple(one._replace(kind="") for one in rank.tasks), rank.seconds) for rank in ranks)
    return np.array([known.setdefault(one, len(known)) for one in zip(kinds, same, strict=True)], np.int64)


def _plan(ranks: Sequence[TracedRank], families: Sequence[Family], network: Network) -> Plan:
    """Return the plan of rank cells: one pass each."""
    groups, made, cells = cells_of(families, network), Activities((), network), network.cells.ranks

    def activity(cell: int, call: Collective | None, seconds: float) -> int:
        if call is None:
            return made.alone(seconds)
        return made.transfers(call, [int(groups[f"{call.group}/send" if call.op == "send" else call.group][cell])])[0]

    does = [
        activity(cell, task.collective, seconds)
        for cell, rank in enumerate(ranks)
        for task, seconds in zip(rank.tasks, rank.seconds, strict=True)
    ]
    programs, role = [Program(Layout(rank.tasks), (), (0,)) for rank in ranks], np.arange(len(ranks))
    own = programs, role, groups, made.activities, np.array(does), network
    return Plan(*own, cells.first, cells.size)
