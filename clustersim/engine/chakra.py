"""Chakra's execution traces as tasks that are replayed on a cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from clustersim.convert.chakra import OPS, TYPES, NodeType, TraceNode, TraceSet
from clustersim.engine.fabric import HOST
from clustersim.engine.program import COMPUTE, Handle, OwnTask, PassMessage, Task, launch
from clustersim.engine.replay import ReplayTasks, TracedRank
from clustersim.errors import InputError
from clustersim.model.operator import Collective
from clustersim.topology.model import Topology

BARRIER = 4.0
"""Bytes of a barrier: PyTorch's reduces one number."""
PRECISION = "bf16"
"""Data type of GEMMs in nodes that contain only FLOP."""


def replay_tasks(traces: TraceSet, topology: Topology, roofline: bool = False) -> ReplayTasks:
    """Return the tasks of traces on a cluster, rank i on GPU i.

    roofline: whether computations take their roofline time on the cluster's GPUs, from FLOP and bytes, instead of the traces'
    durations. Raises InputError for traces that cannot be replayed, or that need more GPUs.
    """
    if len(traces.nodes) > topology.gpus:
        raise InputError(f"{traces.name}: {len(traces.nodes)} ranks, and {topology.name} has {topology.gpus} GPUs")
    ordered = [_ordered(nodes, rank) for rank, nodes in enumerate(traces.nodes)]
    groups = _Groups(traces, ordered)
    binder = _TraceBinder(topology, roofline, groups)
    ranks = [binder.rank(nodes, rank) for rank, nodes in enumerate(ordered)]
    _check_calls(ranks, groups.families)
    families, wide = (
        {name: np.array(one, np.int64) for name, one in own.items()} for own in (groups.families, groups.communicators)
    )
    return ReplayTasks(ranks, families, wide, binder.notes())


def _ordered(nodes: Sequence[TraceNode], rank: int) -> list[TraceNode]:
    """Return the nodes of a rank such that each comes after its dependencies, otherwise by number."""
    of = {node.id: node for node in nodes}
    if len(of) < len(nodes):
        twice = next(number for number, often in Counter(node.id for node in nodes).items() if often > 1)
        raise InputError(f"rank {rank}: two nodes have the number {twice}; number the nodes of a rank differently")
    after: defaultdict[int, list[int]] = defaultdict(list)
    missing = {node.id: sum(one in of for one in node.before) for node in nodes}
    for node in nodes:
        for one in node.before:
            after[one].append(node.id)
    free = [number for number, count in missing.items() if not count]
    heapify(free)
    found = []
    while free:
        number = heappop(free)
        found.append(of[number])
        for following in after[number]:
            missing[following] -= 1
            if not missing[following]:
                heappush(free, following)
    if len(found) < len(nodes):
        stuck = next(node for node in nodes if missing[node.id])
        raise InputError(f"rank {rank}: node {stuck.id} ({stuck.name}) waits for nodes that wait for it")
    return found


class _Groups:
    """Groups of collectives and pairs of messages, arranged as families in which no rank appears twice."""

    def __init__(self, traces: TraceSet, ordered: Sequence[Sequence[TraceNode]]) -> None:
        self.traces = traces
        self.families: dict[str, list[tuple[int, ...]]] = {}
        self.communicators: dict[str, list[tuple[int, ...]]] = {}
        """{family of pairs: ranks of the communicator that carries the messages of each pair}"""
        self.taken: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
        """{family: (rank, its position in its group) in use}; the position is 0 except in pairs."""
        used: dict[str, tuple[tuple[int, ...], str]] = {}
        pairs: dict[tuple[int, int, str], tuple[int, ...]] = {}
        self.messages: defaultdict[tuple[int, int, int], list[tuple[str, int, float]]] = defaultdict(list)
        """{(sender, receiver, tag): (family of the pair, number of its earlier messages, bytes) of each message}"""
        for rank, nodes in enumerate(ordered):
            for node in _on_gpu(nodes):
                if node.type == NodeType.COLL:
                    found = self.ranks(node, rank), str(node.attributes.get("pg_desc", ""))
                    used.setdefault(_group_name(node), found)
                elif node.type == NodeType.SEND:
                    peer = self.peer(node, rank, "comm_dst")
                    wide = self.traces.groups.get(_group_name(node), ())
                    own = wide if {rank, peer} <= set(wide) else (rank, peer)
                    pairs[(rank, peer, str(node.attributes.get("pg_desc", "")))] = own
        self.family = {name: self.add(_family_name(desc, ranks), ranks) for name, (ranks, desc) in used.items()}
        """Family of each group by its name in the traces."""
        self.pairs = {one: self.add(_pair_name(*one), one[:2], wide) for one, wide in pairs.items()}
        """Family of each pair by sender, receiver and description."""
        self.sent(ordered)

    def ranks(self, node: TraceNode, rank: int) -> tuple[int, ...]:
        """Return the ranks of the group of a collective."""
        name, every = _group_name(node), tuple(range(len(self.traces.nodes)))
        if name not in self.traces.groups and name not in ("", "0"):
            raise InputError(f"rank {rank}: node {node.id} runs in the group {name}, of which no file says the ranks")
        dims = node.attributes.get("involved_dim", ())
        if name not in self.traces.groups and isinstance(dims, tuple) and not all(dims):
            raise InputError(f"rank {rank}: node {node.id} says dimensions of a network; name its group by pg_name")
        found = self.traces.groups.get(name, every)
        if rank not in found:
            raise InputError(f"rank {rank}: node {node.id} runs in the group {name}, to which the rank does not belong")
        return found

    def peer(self, node: TraceNode, rank: int, which: str) -> int:
        """Return the rank to which a message goes, or from which it comes."""
        found = node.attributes.get(which, -1)
        if not isinstance(found, int) or not 0 <= found < len(self.traces.nodes) or found == rank:
            raise InputError(f"rank {rank}: node {node.id} ({node.name}) has the {which} {found}; name another rank")
        return found

    def add(self, base: str, ranks: tuple[int, ...], wide: tuple[int, ...] = ()) -> str:
        """Add a group to the first family of a name that has none of its ranks, and return that; a pair's ranks keep their
        positions.

        wide: communicator of a pair's messages, which has the same size for all pairs of a family.
        """
        keys = {(rank, place if wide else 0) for place, rank in enumerate(ranks)}
        number = 1
        while True:
            name = base if number == 1 else f"{base} ({number})"
            own, communicators = self.families.setdefault(name, []), self.communicators.get(name, [wide])
            fits = not own or (len(own[0]), len(communicators[0])) == (len(ranks), len(wide))
            if fits and not keys & self.taken[name]:
                own.append(ranks)
                if wide:
                    self.communicators.setdefault(name, []).append(wide)
                self.taken[name] |= keys
                return name
            number += 1

    def sent(self, ordered: Sequence[Sequence[TraceNode]]) -> None:
        """Count the messages of each pair."""
        often = Counter[tuple[str, int, int]]()
        for rank, nodes in enumerate(ordered):
            for node in (one for one in _on_gpu(nodes) if one.type == NodeType.SEND):
                to = self.peer(node, rank, "comm_dst")
                family = self.pairs[rank, to, str(node.attributes.get("pg_desc", ""))]
                self.messages[rank, to, _tag(node)].append((family, often[family, rank, to], node.bytes))
                often[family, rank, to] += 1


def _on_gpu(nodes: Sequence[TraceNode]) -> list[TraceNode]:
    """Return the nodes without CPU operations, such as the call of a collective that has its own node."""
    return [node for node in nodes if node.attributes.get("is_cpu_op") is not True]


def _group_name(node: TraceNode) -> str:
    """Return the name of a collective's group. Two groups with equal ranks are distinct, and their collectives independent."""
    return str(node.attributes.get("pg_name", ""))


def _family_name(desc: str, ranks: tuple[int, ...]) -> str:
    """Return the family of a collective's group: its description, unless streams or pairs of ranks have such names."""
    if desc in (COMPUTE, HOST) or desc.startswith("p2p"):
        return f"group {desc}"
    return desc or f"groups of {len(ranks)}"


def _pair_name(source: int, target: int, desc: str) -> str:
    """Return the name of the family of a message: the trace's own name, or the distance between both ranks."""
    return desc if desc.startswith("p2p") else f"p2p {desc or f'{target - source:+d}'}"


def _tag(node: TraceNode) -> int:
    """Return the tag of a message, 0 if the trace has none."""
    found = node.attributes.get("comm_tag", 0)
    return found if isinstance(found, int) else 0


class _TraceBinder:
    """Converts nodes into tasks, with the seconds of computations and the groups of all communication."""

    def __init__(self, topology: Topology, roofline: bool, groups: _Groups) -> None:
        self.topology, self.roofline, self.groups = topology, roofline, groups
        self.guessed = self.memory = self.timeless = self.absent = 0

    def rank(self, nodes: Sequence[TraceNode], rank: int) -> TracedRank:
        """Return the tasks of a rank; at its end it waits for the tasks that none of them waits for."""
        place = {node.id: i for i, node in enumerate(nodes)}
        needed = {place[one] for node in nodes for one in node.before if one in place}
        taken, last = Counter[tuple[int, int, int]](), dict[str, int]()
        tasks, seconds, shown = list[Task](), list[float](), list[str]()

        def add(task: Task, took: float, name: str, before: Iterable[int]) -> None:
            """Add a task. name: name of waits for the task, empty if they are not shown. before: its dependencies."""
            # computations run in order, and so do collectives and messages of a stream
            waits: list[Handle] = [OwnTask(last[task.stream])] if task.stream in last else []
            waits += task.waits
            for one in dict.fromkeys(before):
                # so that the record has when a message was sent
                if task.stream == COMPUTE and tasks[one].stream == HOST:
                    waits += [handle for handle in tasks[one].waits if isinstance(handle, PassMessage)]
                waits.append(OwnTask(one, shown[one]))
            if task.stream != HOST:
                last[task.stream] = len(tasks)
            tasks.append(task._replace(waits=tuple(waits), free=True))
            seconds.append(took)
            shown.append(name)

        for node in nodes:
            before = [place[one] for one in node.before if one in place]
            self.absent += len(node.before) - len(before)
            if node.attributes.get("is_cpu_op") is True:
                add(Task(HOST, node.name or "host"), node.seconds, HOST, before)
            elif node.type == NodeType.COLL:
                add(*self.collective(node, rank), before)
            elif node.type in (NodeType.SEND, NodeType.RECV):
                add(*self.message(node, taken, rank), before)
            elif node.type in (NodeType.COMP, NodeType.MEM_LOAD, NodeType.MEM_STORE):
                self.memory += node.type != NodeType.COMP
                add(Task(COMPUTE, node.name or "compute"), self.seconds(node, rank), "", before)
            else:
                add(Task(HOST, node.name or "wait"), 0.0, "", before)
        add(Task(COMPUTE, "end"), 0.0, "", [one for one in range(len(tasks)) if one not in needed])
        return TracedRank(tuple(tasks), tuple(seconds))

    def collective(self, node: TraceNode, rank: int) -> tuple[Task, float, str]:
        """Return the task of a collective with its seconds and the name of waits for it; for a single rank an empty task."""
        ranks = self.groups.ranks(node, rank)
        kind = node.attributes.get("comm_type", 0)
        if kind not in OPS:
            raise InputError(
                f"rank {rank}: node {node.id} ({node.name}) is of comm_type {kind}; give one of {sorted(OPS)}"
            )
        if len(ranks) == 1:
            return Task(HOST, node.name or "wait"), 0.0, ""
        said = str(node.attributes.get("op", ""))
        op = said if TYPES.get(said, -1) == kind else OPS[int(kind)]
        size = node.bytes * (len(ranks) if op == "all_gather" else 1)
        family = self.groups.family[_group_name(node)]
        call = Collective(family, "all_reduce", BARRIER) if op == "barrier" else Collective(family, op, size)
        return launch(-1, call), 0.0, family

    def message(self, node: TraceNode, taken: Counter[tuple[int, int, int]], rank: int) -> tuple[Task, float, str]:
        """Return the task of a send or a receive, its seconds and the name of waits for it. A receive takes the first message
        with that tag not received yet."""
        sends = node.type == NodeType.SEND
        peer = self.groups.peer(node, rank, "comm_dst" if sends else "comm_src")
        key = (rank, peer, _tag(node)) if sends else (peer, rank, _tag(node))
        known = self.groups.messages[key]
        if taken[key] == len(known):
            raise InputError(
                f"rank {rank}: node {node.id} ({node.name}) receives from rank {peer} what that never sends"
            )
        family, number, size = known[taken[key]]
        taken[key] += 1
        message = PassMessage(family, 0, 0, number)
        if not sends:
            return Task(HOST, "receive", waits=(message,)), 0.0, ""
        return Task(family, "send", gives=message, collective=Collective(family, "send", size)), 0.0, "send"

    def seconds(self, node: TraceNode, rank: int) -> float:
        """Return the seconds of a computation: from the trace, or from the peak rates of the rank's GPU."""
        if node.seconds and not self.roofline:
            return node.seconds
        flop, size = node.number("num_ops"), node.number("tensor_size")
        if not flop and not size:
            self.timeless += self.roofline and node.seconds > 0
            return node.seconds
        self.guessed += 1
        gpu = self.topology.kinds[self.topology.kind_of(np.array([rank]))[0]].gpu
        slowest = max(flop / gpu.matrix_peak(PRECISION), size / gpu.memory_bandwidth)
        return float(slowest * self.topology.slowdown[rank])

    def notes(self) -> list[str]:
        """Return the assumptions, in words."""
        said = {
            f"computations take what their FLOP ({PRECISION}) and bytes need at least on the GPU": self.guessed,
            "computations say neither FLOP nor bytes and take as long as the traces say": self.timeless,
            "dependencies are on nodes that are not there, and count as met": self.absent,
            "loads and stores of remote memory take as long as the traces say": self.memory,
        }
        return [f"{count:,} {what}" for what, count in said.items() if count]


def _check_calls(ranks: Sequence[TracedRank], families: Mapping[str, Sequence[tuple[int, ...]]]) -> None:
    """Raise InputError unless all ranks of each group run the same collectives in the same order."""
    rows = defaultdict[tuple[str, int], list[Collective]](list)
    for rank, own in enumerate(ranks):
        for task in own.tasks:
            if task.family is not None and task.collective is not None:
                rows[task.family, rank].append(task.collective)
    for family, members in ((family, members) for family, every in families.items() for members in every):
        first = rows[family, members[0]]
        for rank in members:
            calls = rows[family, rank]
            if calls != first:
                which = next(
                    (i for i, (a, b) in enumerate(zip(calls, first, strict=False)) if a != b),
                    min(len(calls), len(first)),
                )
                both = " and ".join(
                    f"rank {r} {_told(said, which)}" for r, said in ((members[0], first), (rank, calls))
                )
                raise InputError(
                    f"collective {which} of the group {list(members)[:8]}: {both}; ranks of a group run the same"
                )


def _told(calls: Sequence[Collective], which: int) -> str:
    """Return words on call `which` of a rank, for an error that compares ranks."""
    return f"runs {calls[which].op} of {calls[which].size:g} bytes" if which < len(calls) else "runs none"
