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
    """Return the tasks of traces on a cluster, with rank i on GPU i.

    roofline: whether computations take their roofline time on the cluster's GPUs, from FLOP and bytes, instead of the traces'
    durations. Raises InputError for traces that cannot be replayed, or with more ranks than the cluster has GPUs.
    """
    if len(traces.nodes) > topology.gpus:
        raise InputError(f"{traces.name}: {len(traces.nodes)} ranks, and {topology.name} has {topology.gpus} GPUs")
    ordered = [_ordered(nodes, rank) for rank, nodes in enumerate(traces.nodes)]
    groups = _Groups(traces, ordered)
    binder = _TraceBinder(topology, roofline, groups)
    ranks = [binder.rank(nodes, rank) for rank, nodes in enumerate(ordered)]
    _check_calls(ranks, groups.families)
    families, communicators = (
        {name: np.array(members, np.int64) for name, members in by_name.items()}
        for by_name in (groups.families, groups.communicators)
    )
    return ReplayTasks(ranks, families, communicators, binder.notes())


def _ordered(nodes: Sequence[TraceNode], rank: int) -> list[TraceNode]:
    """Return the nodes of a rank in the order of their numbers, but each after its known dependencies.

    Raises InputError if two nodes have one number, or if dependencies form a cycle.
    """
    node_by_id = {node.id: node for node in nodes}
    if len(node_by_id) < len(nodes):
        duplicate = next(number for number, count in Counter(node.id for node in nodes).items() if count > 1)
        raise InputError(f"rank {rank}: two nodes have the number {duplicate}; number the nodes of a rank differently")
    after: defaultdict[int, list[int]] = defaultdict(list)
    unmet = {node.id: sum(dependency in node_by_id for dependency in node.before) for node in nodes}
    for node in nodes:
        for dependency in node.before:
            after[dependency].append(node.id)
    ready = [number for number, count in unmet.items() if not count]
    heapify(ready)
    order = []
    while ready:
        number = heappop(ready)
        order.append(node_by_id[number])
        for dependent in after[number]:
            unmet[dependent] -= 1
            if not unmet[dependent]:
                heappush(ready, dependent)
    if len(order) < len(nodes):
        stuck = next(node for node in nodes if unmet[node.id])
        raise InputError(f"rank {rank}: node {stuck.id} ({stuck.name}) waits for nodes that wait for it")
    return order


class _Groups:
    """Groups of collectives and pairs of messages, arranged as families in which no rank is in two groups."""

    def __init__(self, traces: TraceSet, ordered: Sequence[Sequence[TraceNode]]) -> None:
        """ordered: nodes of each rank, as from `_ordered`."""
        self.traces = traces
        self.families: dict[str, list[tuple[int, ...]]] = {}
        """{family: ranks of each group; for messages (sender, receiver)}"""
        self.communicators: dict[str, list[tuple[int, ...]]] = {}
        """{family of pairs: ranks of the communicator that carries the messages of each pair}"""
        self.taken: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
        """{family: (rank, its position in its group) of all its groups}; the position is 0 except in pairs."""
        used: dict[str, tuple[tuple[int, ...], str]] = {}
        pairs: dict[tuple[int, int, str], tuple[int, ...]] = {}
        self.messages: defaultdict[tuple[int, int, int], list[tuple[str, int, float]]] = defaultdict(list)
        """{(sender, receiver, tag): (family of the pair, number of its earlier messages, bytes) of each message}"""
        for rank, nodes in enumerate(ordered):
            for node in _on_gpu(nodes):
                if node.type == NodeType.COLL:
                    used.setdefault(_group_name(node), (self.ranks(node, rank), _description(node)))
                elif node.type == NodeType.SEND:
                    peer = self.peer(node, rank, "comm_dst")
                    communicator = self.traces.groups.get(_group_name(node), ())
                    carrier = communicator if {rank, peer} <= set(communicator) else (rank, peer)
                    pairs[(rank, peer, _description(node))] = carrier
        self.family = {name: self.add(_family_name(desc, ranks), ranks) for name, (ranks, desc) in used.items()}
        """{name of a group in the traces: its family}"""
        self.pairs = {pair: self.add(_pair_name(*pair), pair[:2], communicator) for pair, communicator in pairs.items()}
        """{(sender, receiver, description): family of the pair}"""
        sent = Counter[tuple[str, int, int]]()
        for rank, nodes in enumerate(ordered):
            for node in (send for send in _on_gpu(nodes) if send.type == NodeType.SEND):
                receiver = self.peer(node, rank, "comm_dst")
                family = self.pairs[rank, receiver, _description(node)]
                self.messages[rank, receiver, _tag(node)].append((family, sent[family, rank, receiver], node.bytes))
                sent[family, rank, receiver] += 1

    def ranks(self, node: TraceNode, rank: int) -> tuple[int, ...]:
        """Return the ranks of the group of a collective; all ranks for group 0 and without a name.

        Raises InputError if the group is unknown, is given as dimensions of a network, or lacks this rank.
        """
        name, all_ranks = _group_name(node), tuple(range(len(self.traces.nodes)))
        if name not in self.traces.groups and name not in ("", "0"):
            raise InputError(f"rank {rank}: node {node.id} runs in the group {name}, of which no file says the ranks")
        dimensions = node.attributes.get("involved_dim", ())
        if name not in self.traces.groups and isinstance(dimensions, tuple) and not all(dimensions):
            raise InputError(f"rank {rank}: node {node.id} says dimensions of a network; name its group by pg_name")
        members = self.traces.groups.get(name, all_ranks)
        if rank not in members:
            raise InputError(f"rank {rank}: node {node.id} runs in the group {name}, to which the rank does not belong")
        return members

    def peer(self, node: TraceNode, rank: int, attribute: str) -> int:
        """Return the other rank of a message. attribute: `comm_dst` for a send, `comm_src` for a receive.

        Raises InputError if the attribute is missing or does not name another rank.
        """
        peer = node.attributes.get(attribute, -1)
        if not isinstance(peer, int) or not 0 <= peer < len(self.traces.nodes) or peer == rank:
            raise InputError(f"rank {rank}: node {node.id} ({node.name}) has the {attribute} {peer}; name another rank")
        return peer

    def add(self, family: str, ranks: tuple[int, ...], communicator: tuple[int, ...] = ()) -> str:
        """Add a group to `family`, or to `family (2)`, `family (3)` … if one of its ranks is in use there. Return the name.

        communicator: ranks of the communicator that carries the messages of a pair; () for the group of a collective. Groups, and
        communicators, of a family have equal sizes. A rank may be the sender of one pair and the receiver of another.
        """
        members = {(rank, position if communicator else 0) for position, rank in enumerate(ranks)}
        number = 1
        while True:
            name = family if number == 1 else f"{family} ({number})"
            groups, communicators = self.families.setdefault(name, []), self.communicators.get(name, [communicator])
            fits = not groups or (len(groups[0]), len(communicators[0])) == (len(ranks), len(communicator))
            if fits and not members & self.taken[name]:
                groups.append(ranks)
                if communicator:
                    self.communicators.setdefault(name, []).append(communicator)
                self.taken[name] |= members
                return name
            number += 1


def _on_gpu(nodes: Sequence[TraceNode]) -> list[TraceNode]:
    """Return the nodes that are not CPU operations, such as the call of a collective, which has a node of its own."""
    return [node for node in nodes if node.attributes.get("is_cpu_op") is not True]


def _group_name(node: TraceNode) -> str:
    """Return the name of a node's group, empty without one. Groups of equal ranks but different names run independently."""
    return str(node.attributes.get("pg_name", ""))


def _description(node: TraceNode) -> str:
    """Return the description of a node's group, empty without one."""
    return str(node.attributes.get("pg_desc", ""))


def _family_name(desc: str, ranks: tuple[int, ...]) -> str:
    """Return the family of a collective's group: its description `desc`, with `group ` before it if a stream or a family of
    messages could have that name; `groups of N` without a description."""
    if desc in (COMPUTE, HOST) or desc.startswith("p2p"):
        return f"group {desc}"
    return desc or f"groups of {len(ranks)}"


def _pair_name(source: int, target: int, desc: str) -> str:
    """Return the family of a message, which begins with `p2p`: from its description `desc`, or from the distance of the ranks."""
    return desc if desc.startswith("p2p") else f"p2p {desc or f'{target - source:+d}'}"


def _tag(node: TraceNode) -> int:
    """Return the tag of a message, 0 if the trace has none."""
    tag = node.attributes.get("comm_tag", 0)
    return tag if isinstance(tag, int) else 0


class _TraceBinder:
    """Converts nodes into tasks, with the seconds of computations and the groups of all communication.

    It counts the assumptions: roofline times (guessed), remote memory (memory), times of the trace for lack of FLOP and bytes
    (timeless), and unknown dependencies (absent).
    """

    def __init__(self, topology: Topology, roofline: bool, groups: _Groups) -> None:
        """roofline: as in `replay_tasks`."""
        self.topology, self.roofline, self.groups = topology, roofline, groups
        self.guessed = self.memory = self.timeless = self.absent = 0

    def rank(self, nodes: Sequence[TraceNode], rank: int) -> TracedRank:
        """Return the tasks of a rank, and a last one that waits for all tasks for which no other task waits. nodes: ordered."""
        index = {node.id: i for i, node in enumerate(nodes)}
        needed = {index[dependency] for node in nodes for dependency in node.before if dependency in index}
        received, last_on_stream = Counter[tuple[int, int, int]](), dict[str, int]()
        tasks, seconds, wait_names = list[Task](), list[float](), list[str]()

        def add(task: Task, task_seconds: float, name: str, dependencies: Iterable[int]) -> None:
            """Add a task. name: name of spans that wait for it, empty if they are not shown. dependencies: indices of tasks."""
            # computations run in order, and so do collectives and messages of a stream
            waits: list[Handle] = [OwnTask(last_on_stream[task.stream])] if task.stream in last_on_stream else []
            waits += task.waits
            for dependency in dict.fromkeys(dependencies):
                # wait for the message itself, so that the record knows when it was sent
                if task.stream == COMPUTE and tasks[dependency].stream == HOST:
                    waits += [handle for handle in tasks[dependency].waits if isinstance(handle, PassMessage)]
                waits.append(OwnTask(dependency, wait_names[dependency]))
            if task.stream != HOST:
                last_on_stream[task.stream] = len(tasks)
            tasks.append(task._replace(waits=tuple(waits), free=True))
            seconds.append(task_seconds)
            wait_names.append(name)

        for node in nodes:
            dependencies = [index[dependency] for dependency in node.before if dependency in index]
            self.absent += len(node.before) - len(dependencies)
            if node.attributes.get("is_cpu_op") is True:
                add(Task(HOST, node.name or "host"), node.seconds, HOST, dependencies)
            elif node.type == NodeType.COLL:
                add(*self.collective(node, rank), dependencies)
            elif node.type in (NodeType.SEND, NodeType.RECV):
                add(*self.message(node, received, rank), dependencies)
            elif node.type in (NodeType.COMP, NodeType.MEM_LOAD, NodeType.MEM_STORE):
                self.memory += node.type != NodeType.COMP
                add(Task(COMPUTE, node.name or "compute"), self.seconds(node, rank), "", dependencies)
            else:
                add(Task(HOST, node.name or "wait"), 0.0, "", dependencies)
        add(Task(COMPUTE, "end"), 0.0, "", [dependency for dependency in range(len(tasks)) if dependency not in needed])
        return TracedRank(tuple(tasks), tuple(seconds))

    def collective(self, node: TraceNode, rank: int) -> tuple[Task, float, str]:
        """Return the task of a collective, its seconds (0) and the name of waits for it, which is its family.

        A collective of a single rank becomes an empty host task. Raises InputError for an unknown `comm_type` or group.
        """
        ranks = self.groups.ranks(node, rank)
        comm_type = node.attributes.get("comm_type", 0)
        if comm_type not in OPS:
            raise InputError(
                f"rank {rank}: node {node.id} ({node.name}) is of comm_type {comm_type}; give one of {sorted(OPS)}"
            )
        if len(ranks) == 1:
            return Task(HOST, node.name or "wait"), 0.0, ""
        named_op = str(node.attributes.get("op", ""))
        op = named_op if TYPES.get(named_op, -1) == comm_type else OPS[int(comm_type)]
        size = node.bytes * (len(ranks) if op == "all_gather" else 1)
        family = self.groups.family[_group_name(node)]
        call = Collective(family, "all_reduce", BARRIER) if op == "barrier" else Collective(family, op, size)
        return launch(-1, call), 0.0, family

    def message(self, node: TraceNode, received: Counter[tuple[int, int, int]], rank: int) -> tuple[Task, float, str]:
        """Return the task of a send or a receive, its seconds (0) and the name of waits for it.

        A receive takes the first message with its tag that is not received yet. received: {(sender, receiver, tag): number of
        nodes so far}, which is counted up. Raises InputError if no message is left.
        """
        sends = node.type == NodeType.SEND
        peer = self.groups.peer(node, rank, "comm_dst" if sends else "comm_src")
        key = (rank, peer, _tag(node)) if sends else (peer, rank, _tag(node))
        messages = self.groups.messages[key]
        if received[key] == len(messages):
            raise InputError(
                f"rank {rank}: node {node.id} ({node.name}) receives a message that rank {peer} never sends"
            )
        family, number, size = messages[received[key]]
        received[key] += 1
        message = PassMessage(family, 0, 0, number)
        if not sends:
            return Task(HOST, "receive", waits=(message,)), 0.0, ""
        return Task(family, "send", gives=message, collective=Collective(family, "send", size)), 0.0, "send"

    def seconds(self, node: TraceNode, rank: int) -> float:
        """Return the seconds of a computation: the trace's, if it has any and `roofline` is off; else the roofline time of its
        FLOP and bytes on the rank's GPU, times its slowdown."""
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
        """Return a sentence for each assumption that was made, with the number of its nodes or dependencies."""
        counts = {
            f"computations take what their FLOP ({PRECISION}) and bytes need at least on the GPU": self.guessed,
            "computations have neither FLOP nor bytes and keep the times of the traces": self.timeless,
            "dependencies are on nodes that are not there, and count as met": self.absent,
            "loads and stores of remote memory take as long as the traces say": self.memory,
        }
        return [f"{count:,} {note}" for note, count in counts.items() if count]


def _check_calls(ranks: Sequence[TracedRank], families: Mapping[str, Sequence[tuple[int, ...]]]) -> None:
    """Raise InputError unless all ranks of each group run the same collectives (operation and bytes) in the same order.

    families: {family: ranks of each group}.
    """
    calls_by_rank = defaultdict[tuple[str, int], list[Collective]](list)
    for rank, traced in enumerate(ranks):
        for task in traced.tasks:
            if task.family is not None and task.collective is not None:
                calls_by_rank[task.family, rank].append(task.collective)
    for family, members in ((family, members) for family, groups in families.items() for members in groups):
        first = calls_by_rank[family, members[0]]
        for rank in members:
            calls = calls_by_rank[family, rank]
            if calls != first:
                number = next(
                    (i for i, (a, b) in enumerate(zip(calls, first, strict=False)) if a != b),
                    min(len(calls), len(first)),
                )
                first_text, text = _call_text(first, number), _call_text(calls, number)
                texts = f"rank {members[0]} {first_text} and rank {rank} {text}"
                raise InputError(
                    f"collective {number} of the group {list(members)[:8]}: {texts}; ranks of a group run the same"
                )


def _call_text(calls: Sequence[Collective], number: int) -> str:
    """Return `runs OP of N bytes` for call `number` of a rank, or `runs none`."""
    return f"runs {calls[number].op} of {calls[number].size:g} bytes" if number < len(calls) else "runs none"
