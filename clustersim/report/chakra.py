"""A step as Chakra execution traces (convert/chakra.py): each rank's nodes in the order of their launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from clustersim.arrays import Ints
from clustersim.convert.chakra import BYTES, OPS, SECONDS, TYPES, AttributeValue, NodeType, TraceNode
from clustersim.engine.compile import Plan
from clustersim.engine.fabric import HOST, Activity
from clustersim.engine.groups import PIPELINES
from clustersim.engine.program import COMPUTE, READY, SYNCHRONISE, Handle, PassMessage, Program, Task, Wait
from clustersim.errors import InputError
from clustersim.model.kernel import Kernel
from clustersim.report.trace_events import pass_runs

Attributes = dict[str, AttributeValue]


@dataclass
class RankTrace:
    """Builds the trace of one rank."""

    plan: Plan
    rank: int
    families: Mapping[str, Ints]
    """{family: ranks of all its groups (groups, n)}"""
    nodes: list[TraceNode] = field(default_factory=list)
    last: int | None = None
    """Last node on the compute stream."""
    launched: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """{stream: nodes} of the other streams."""
    sizes: dict[tuple[int, str, int, int], float] = field(default_factory=dict)
    """{(sender, family, stage, number): bytes} of messages that the rank receives."""

    def written(self) -> list[TraceNode]:
        """Add all nodes of the rank's step to `nodes`, once, and return them. Raises InputError if Chakra cannot express one."""
        plan, layout = self.plan, self._program.layout
        begin = plan.begins[int(plan.network.cells.ranks.of[self.rank])]
        for key, microbatch in self._program.passes():
            for place in layout.templates[key]:
                self._task(layout.tasks[place], plan.activities[plan.does[begin + place]], microbatch)
        return self.nodes

    @cached_property
    def _program(self) -> Program:
        """Passes of the rank."""
        return self._program_of(self.rank)

    def _program_of(self, rank: int) -> Program:
        """Return the passes of a rank."""
        return self.plan.programs[int(self.plan.role[self.plan.network.cells.ranks.of[rank]])]

    def _task(self, task: Task, activity: Activity, microbatch: int) -> None:
        """Add the nodes of a task, which does `activity`, for a microbatch."""
        if task.stream == COMPUTE:
            before = [node for handle in task.waits for node in self._awaited(handle, microbatch)]
            self._computes(task, activity, microbatch, [*self._now(), *before])
        elif task.stream == HOST:
            self._host(task, activity.timing.idle)
        elif task.gives is not None:
            pairs = self.families[task.stream]
            peer = int(pairs[pairs[:, 0] == self.rank, 1][0])
            size = sum(activity.calls.values())
            ends = {"comm_src": self.rank, "comm_dst": peer, "comm_tag": self._tag(task.gives, microbatch)}
            self._launch(task, NodeType.SEND, {**ends, **_sized(size), **self._communicator, "pg_desc": task.stream})
        elif task.collective is not None:
            family, op, size, *_ = task.collective
            self._launch(task, NodeType.COLL, self._collective(family, op, size))

    def _now(self) -> list[int]:
        """Return a list of the last node on the compute stream; empty before the first."""
        return [] if self.last is None else [self.last]

    def _launch(self, task: Task, kind: NodeType, attributes: Attributes) -> None:
        """Add a node to the stream of a task, after the computation so far and what the task waits for."""
        stream = self.launched[task.stream]
        before = [*self._now(), *stream[-1:]]
        before += [node for handle in task.waits for node in self._awaited(handle, -1)]
        stream.append(self._node(kind, f"{task.kind} {task.stream}", before, 0.0, attributes))

    def _host(self, task: Task, seconds: float) -> None:
        """Add a node for launches of the host that take `seconds`, or for its wait until the GPU is idle."""
        stream = self.launched[HOST]
        if task.kind == SYNCHRONISE:
            stream += self._now()
            return
        node = self._node(NodeType.COMP, f"launch {task.kind}", stream[-1:] or self._now(), seconds, CPU)
        self.launched[task.kind if task.kind == READY else HOST].append(node)

    def _awaited(self, handle: Handle, microbatch: int) -> Iterator[int]:
        """Yield the nodes that a handle waits for, at most one. A message of `microbatch` adds its own receiving node."""
        if isinstance(handle, PassMessage):
            family = handle.family
            pairs = self.families[family]
            peer = int(pairs[pairs[:, 1] == self.rank, 0][0])
            ends = {"comm_src": peer, "comm_dst": self.rank, "comm_tag": self._tag(handle, microbatch)}
            attributes = {**ends, **_sized(self._bytes(peer, handle)), **self._communicator, "pg_desc": family}
            yield self._node(NodeType.RECV, f"receive {family}", [], 0.0, attributes)
        elif isinstance(handle, Wait):
            launched = self.launched[handle.stream]
            done = launched[: handle.first] if handle.first is not None else launched[: len(launched) - handle.but]
            yield from done[-1:]

    def _bytes(self, sender: int, message: PassMessage) -> float:
        """Return the bytes of a message from the rank `sender`, as its task has them."""
        key = sender, message.family, self._program.stages[message.chunk] + message.ahead, message.number
        if key not in self.sizes:
            program = self._program_of(sender)
            for task in program.layout.tasks:
                if task.gives is not None and task.collective is not None:
                    family, chunk, ahead, number = task.gives
                    self.sizes[sender, family, program.stages[chunk] + ahead, number] = task.collective.size
        return self.sizes[key]

    @property
    def _communicator(self) -> Attributes:
        """Attributes of the group of messages, if it is larger than the pair of ranks."""
        return {"pg_name": self._group(PIPELINES)} if PIPELINES in self.families else {}

    def _group(self, family: str) -> str:
        """Return the name of the rank's group in a family."""
        group = int(np.flatnonzero((self.families[family] == self.rank).any(axis=1))[0])
        return group_name(self.families, family, group)

    def _computes(self, task: Task, activity: Activity, microbatch: int, waits: list[int]) -> None:
        """Add the nodes of a pass after the nodes `waits`: kernels between its collectives, and late launches of its host."""
        source = activity.timing.source
        stage = self._program.stage(task.chunk)
        name = f"{stage}{task.kind}{microbatch}" if stage >= 0 else task.kind or "wait"
        segments, host, begun = iter(activity.segments), 0.0, waits
        for before, call, flows, overlapped in pass_runs(source) if source else ():
            segment = next(segments)
            if segment.launched:
                begun = [self._node(NodeType.COMP, f"launch {name}", begun, segment.launched - host, CPU)]
                host = segment.launched
            if segment.compute or before:
                waits = [self._node(NodeType.COMP, name, waits, segment.compute, _work(before))]
            waits += begun if segment.launched else []
            if call is None:
                break
            hidden = segment.overlapped + sum(next(segments).overlapped for _ in range(1, flows))
            moved = self._node(
                NodeType.COLL, f"{call.op} {call.group}", waits, 0.0, self._collective(call.group, call.op, call.size)
            )
            waits = [self._node(NodeType.COMP, name, waits, hidden, _work(overlapped))] if hidden else []
            waits.append(moved)
        if source is None and activity.timing.idle:
            waits = [self._node(NodeType.COMP, name, waits, activity.timing.idle, {})]
        if len(waits) > 1:
            waits = [self._node(NodeType.COMP, "wait", waits, 0.0, {})]
        self.last = waits[0] if waits else None

    def _collective(self, family: str, op: str, size: float) -> Attributes:
        """Return the attributes of a collective of `size` bytes in the rank's group. Raises InputError if Chakra has no `op`."""
        if op not in TYPES:
            raise InputError(f"Chakra has no collective like {op} (of {family}); export a job without it")
        put_in = size / self.families[family].shape[1] if op == "all_gather" else size
        return {
            "comm_type": TYPES[op],
            **({} if OPS[TYPES[op]] == op else {"op": op}),
            **_sized(put_in),
            "pg_name": self._group(family),
            "pg_desc": family,
        }

    def _tag(self, message: PassMessage, microbatch: int) -> int:
        """Return the tag of a message: 65,536 times the stage that receives it, plus its microbatch."""
        return 65_536 * (self._program.stages[message.chunk] + message.ahead) + microbatch

    def _node(self, kind: NodeType, name: str, before: Sequence[int], seconds: float, attributes: Attributes) -> int:
        """Add a node of `seconds` (0 for communication) that depends on the nodes `before`, and return its number."""
        number = len(self.nodes) + 1
        exact = {SECONDS: seconds} if kind == NodeType.COMP else {}
        attributes = {"is_cpu_op": False, **attributes, **exact}
        self.nodes.append(TraceNode(number, name, kind, tuple(dict.fromkeys(before)), round(seconds * 1e6), attributes))
        return number


CPU: Attributes = {"is_cpu_op": True}
"""Attributes of a node that runs on the host."""


def _work(kernels: Sequence[Kernel]) -> Attributes:
    """Return the FLOP (`num_ops`) and the bytes of memory traffic (`tensor_size`) of kernels as attributes."""
    return {"num_ops": int(sum(k.flop for k in kernels)), "tensor_size": int(sum(k.bytes for k in kernels))}


def _sized(size: float) -> Attributes:
    """Return a rank's `size` (bytes), rounded, as `comm_size`; if it is not whole, also the exact value as `BYTES`."""
    return {"comm_size": round(size), **({} if float(size).is_integer() else {BYTES: size})}


def group_name(families: Mapping[str, Ints], family: str, group: int) -> str:
    """Return the number, as text, of a group of a family, from 1 over all families by name. Raises ValueError for `p2p…`."""
    names = sorted(name for name in families if not name.startswith("p2p"))
    return str(1 + sum(len(families[name]) for name in names[: names.index(family)]) + group)


def group_ranks(families: Mapping[str, Ints]) -> dict[str, list[int]]:
    """Return {name of a group: its ranks} for all families but pairs (`p2p…`)."""
    return {
        group_name(families, family, i): ranks
        for family in families
        if not family.startswith("p2p")
        for i, ranks in enumerate(families[family].tolist())
    }
