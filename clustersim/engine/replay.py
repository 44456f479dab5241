"""Replay of traces: the tasks of each rank with their dependencies, as one pass of free tasks.

A rank's computations run one after the other, in the order of its tasks. So do the collectives of each of its groups and its
messages to each peer, as NCCL's do. Every other task starts when its dependencies have ended. Ranks with equal tasks in
equivalent places of the cluster are simulated once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, distinct
from clustersim.collectives.levels import fanouts, levels
from clustersim.collectives.plan import NCCL
from clustersim.engine.compile import Activities, Plan, cells_of, group_key
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
    """Tasks with `free` set, each after the tasks that it waits for."""
    seconds: tuple[float, ...]
    """Seconds of each task that is a computation or on the host; 0 for others."""


class ReplayTasks(NamedTuple):
    """Tasks of all ranks, with the groups that they use."""

    ranks: Sequence[TracedRank]
    families: Mapping[str, Ints]
    """{family: ranks of its groups (groups, n)}, with no rank in two groups of a family; families of messages, from the first
    rank to the second, begin with p2p."""
    communicators: Mapping[str, Ints]
    """{family of messages: ranks of the communicator of each pair (groups, m)}; a family without is carried by the pairs."""
    notes: Sequence[str] = ()
    """A sentence for each assumption."""


def replay(topology: Topology, traced: ReplayTasks, engine: Engine = "auto", fold: bool = True) -> Record:
    """Simulate all tasks, with rank i on GPU i, as one step of a single pass. Return its record.

    fold: whether identical ranks are simulated once. Raises SimulationError at a deadlock.
    """
    gpus = np.arange(len(traced.ranks))
    upwards = fanouts(distinct(topology.numbering.node_of(gpus)), topology)
    calls: dict[str, dict[Collective, None]] = {name: {} for name in traced.families}
    for task in chain.from_iterable(rank.tasks for rank in traced.ranks):
        if task.collective is not None:
            calls[task.collective.group][task.collective] = None
    families = [
        Family(
            name,
            ranks,
            levels(topology.numbering.node_of(ranks), upwards),
            NCCL,
            communicators=traced.communicators.get(name),
        )
        for name, ranks in traced.families.items()
        if calls[name]
    ]
    family_calls = [(family, tuple(calls[family.name])) for family in families]
    loads = demand(topology, [Tenant(family_calls, gpus, _seeds(topology, traced.ranks))])
    [network] = networks(loads, folded(loads, fold))
    first = network.cells.ranks.first
    plan = _plan([traced.ranks[rank] for rank in first.tolist()], families, network)
    tasks = Tasks(plan)
    try:
        return execute(tasks, engine)
    except DeadlockError as error:
        cell, index = tasks.shape.place(error.task)
        raise SimulationError(
            f"deadlock: task {index} of rank {int(first[cell])} waits for a task that waits for it"
        ) from None


def _seeds(topology: Topology, ranks: Sequence[TracedRank]) -> Ints:
    """Return a number per rank (ranks,): equal for ranks with equal tasks on nodes of one type."""
    node_types = topology.kind_of(np.arange(len(ranks))).tolist() if topology.pools else [0] * len(ranks)
    seed_of: dict[object, int] = {}
    content = ((tuple(one._replace(kind="") for one in rank.tasks), rank.seconds) for rank in ranks)
    return np.array([seed_of.setdefault(one, len(seed_of)) for one in zip(node_types, content, strict=True)], np.int64)


def _plan(ranks: Sequence[TracedRank], families: Sequence[Family], network: Network) -> Plan:
    """Return the plan of rank cells, with a program of one pass for each. ranks: first rank of each cell."""
    groups, activities, cells = cells_of(families, network), Activities((), network), network.cells.ranks

    def activity_index(cell: int, call: Collective | None, seconds: float) -> int:
        """Return the index of the activity of a call, or of `seconds` of computation, in a rank cell."""
        if call is None:
            return activities.without_flows(seconds)
        return activities.transfers(call, [int(groups[group_key(call)][cell])])[0]

    task_activities = [
        activity_index(cell, task.collective, seconds)
        for cell, rank in enumerate(ranks)
        for task, seconds in zip(rank.tasks, rank.seconds, strict=True)
    ]
    programs, role = [Program(Layout(rank.tasks), (), (0,)) for rank in ranks], np.arange(len(ranks))
    columns = programs, role, groups, activities.activities, np.array(task_activities), network
    return Plan(*columns, cells.first, cells.size)
