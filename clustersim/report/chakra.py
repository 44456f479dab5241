"""A step as execution traces of Chakra (mlcommons/chakra, schema/protobuf/et_def.proto): one file a rank.

A file is a row of protobuf messages, each behind its length: one `GlobalMetadata`, then `Node` after `Node`. A node computes, is
part of a collective, sends or receives; `data_deps` are those that must be over before it. Ranks of a collective are named by
`pg_name`, whose members stand in `comm_groups.json`; `comm_size` are the bytes of the whole buffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from clustersim.arrays import Ints
from clustersim.engine.compile import Plan
from clustersim.engine.launching import Seconds
from clustersim.engine.program import COMPUTE, Handle, Launched, Message, Task
from clustersim.errors import InputError
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective

VERSION = "0.0.4"
"""Of the schema."""
Attribute = tuple[str, int | bool | str]


class NodeType(IntEnum):
    """What a node is."""

    COMP = 4
    SEND = 5
    RECV = 6
    COLL = 7


TYPES = {
    "all_reduce": 0,
    "all_gather": 2,
    "broadcast": 5,
    "all_to_all": 6,
    "dispatch": 6,
    "combine": 6,
    "reduce_scatter": 7,
}
"""Collective → `CollectiveCommType`."""


@dataclass
class RankTrace:
    """Writes the nodes of one rank, in the order in which it launches them."""

    plan: Plan
    rank: int
    families: Mapping[str, Ints]
    """The ranks of all groups by family (groups, n)."""
    seconds: Sequence[Seconds]
    """Of each kernel on a nominal GPU, by type of node."""
    nodes: list[bytes] = field(default_factory=list)
    last: int | None = None
    """The last node on the compute stream."""
    launched: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Those on other streams."""

    def encoded(self) -> bytes:
        """Return the file. Raises InputError for what Chakra has no word for."""
        program = self.plan.programs[int(self.plan.network.cells.ranks.of[self.rank])]
        for _, template, microbatch in program.passes():
            for task in template:
                self._task(task, microbatch)
        return b"".join(_delimited(one) for one in (_text(1, VERSION), *self.nodes))

    def _task(self, task: Task, microbatch: int) -> None:
        if task.stream == COMPUTE:
            before = [node for handle in task.waits for node in self._awaited(handle, microbatch)]
            self._computes(task, microbatch, before)
        elif task.gives is not None:
            pairs = self.families[task.stream]
            peer = int(pairs[pairs[:, 0] == self.rank, 1][0])
            size = int(sum(task.activity.carried.values()))
            to = ("comm_dst", peer), ("comm_tag", _tag(task.gives, microbatch)), ("comm_size", size)
            self._launch(task, NodeType.SEND, f"send {task.stream}", (("comm_src", self.rank), *to))
        elif task.activity.carried:
            (variant, _), moved = next(iter(task.activity.carried.items()))
            attributes = self._collective(variant[0], variant[1], moved)
            self._launch(task, NodeType.COLL, f"{variant[1]} {variant[0]}", attributes)

    def _launch(self, task: Task, kind: NodeType, name: str, attributes: Sequence[Attribute]) -> None:
        stream = self.launched[task.stream]
        before = [*([] if self.last is None else [self.last]), *stream[-1:]]
        before += [node for handle in task.waits for node in self._awaited(handle, -1)]
        stream.append(self._node(kind, name, before, 0.0, attributes))

    def _awaited(self, handle: Handle, microbatch: int) -> Iterator[int]:
        """Yield the nodes that a handle stands for; a message is received by a node of its own."""
        if isinstance(handle, Message):
            pairs = self.families[handle.group[0]]
            peer = int(pairs[pairs[:, 1] == self.rank, 0][0])
            tag, size = ("comm_tag", _tag(handle, microbatch)), self._sizes[handle.group[0]]
            found = (("comm_src", peer), ("comm_dst", self.rank), tag, ("comm_size", size))
            yield self._node(NodeType.RECV, f"receive {handle.group[0]}", [], 0.0, found)
        elif isinstance(handle, Launched):
            own = self.launched[handle.stream]
            done = own[: handle.first] if handle.first is not None else own[: len(own) - handle.but]
            yield from done[-1:]

    @property
    def _sizes(self) -> dict[str, int]:
        """The bytes of a message, by family."""
        calls = self.plan.network.plans
        return {call.group: int(call.size) for call in calls if call.op == "send"}

    def _computes(self, task: Task, microbatch: int, before: list[int]) -> None:
        """Write the kernels of a pass between its collectives, each run as one node."""
        source = self.plan.sources.get(task.activity)
        name = f"{task.stage}{task.kind}{microbatch}" if task.stage >= 0 else task.kind
        run: list[Kernel] = []
        waits = [*([] if self.last is None else [self.last]), *before]
        if source is None:
            self.last = self._node(NodeType.COMP, name or "wait", waits, task.activity.idle)
            return
        own = self.seconds[source.speed.kind]
        for item in (*source.items, None):
            if isinstance(item, Kernel):
                run.append(item)
            elif item is None or (isinstance(item, Collective) and source.flows.get(item)):
                work = ("num_ops", int(sum(k.flop for k in run))), ("tensor_size", int(sum(k.bytes for k in run)))
                took = sum(own[kernel] for kernel in run) * source.speed.slowdown
                if run or waits != [self.last]:
                    self.last = self._node(NodeType.COMP, name, waits, took, work)
                if item is not None:
                    found = self._collective(item.group, item.op, item.size)
                    self.last = self._node(NodeType.COLL, f"{item.op} {item.group}", [self.last or 0], 0.0, found)
                run, waits = [], [] if self.last is None else [self.last]

    def _collective(self, family: str, op: str, size: float) -> tuple[Attribute, ...]:
        if op not in TYPES:
            raise InputError(f"Chakra has no collective like {op} (of {family}); export a job without it")
        group = int(np.flatnonzero((self.families[family] == self.rank).any(axis=1))[0])
        return ("comm_type", TYPES[op]), ("comm_size", int(size)), ("pg_name", group_name(self.families, family, group))

    def _node(
        self, kind: NodeType, name: str, before: Sequence[int], seconds: float, attributes: Sequence[Attribute] = ()
    ) -> int:
        number = len(self.nodes) + 1
        parts = [_number(1, number), _text(2, name), _number(3, kind)]
        if before:
            parts.append(_message(5, b"".join(map(_varint, dict.fromkeys(before)))))
        parts += [_number(7, round(seconds * 1e6)), _message(10, _attribute(("is_cpu_op", False)))]
        self.nodes.append(b"".join([*parts, *(_message(10, _attribute(one)) for one in attributes)]))
        return number


def _tag(message: Message, microbatch: int) -> int:
    """Return what tells the messages between two ranks apart."""
    return 65_536 * message.stage + microbatch


def group_name(families: Mapping[str, Ints], family: str, group: int) -> str:
    """Return the name of a group: groups are counted family after family, from 1."""
    names = sorted(name for name in families if not name.startswith("p2p"))
    return str(1 + sum(len(families[name]) for name in names[: names.index(family)]) + group)


def groups(families: Mapping[str, Ints]) -> dict[str, list[int]]:
    """Return the ranks of every group by its name."""
    return {
        group_name(families, family, i): ranks
        for family in families
        if not family.startswith("p2p")
        for i, ranks in enumerate(families[family].tolist())
    }


# protobuf's wire format (https://protobuf.dev/programming-guides/encoding)


def _varint(value: int) -> bytes:
    found = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(place: int, value: int) -> bytes:
    return _varint(place << 3) + _varint(value)


def _message(place: int, content: bytes) -> bytes:
    return _varint(place << 3 | 2) + _varint(len(content)) + content


def _text(place: int, value: str) -> bytes:
    return _message(place, value.encode())


def _delimited(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _attribute(one: Attribute) -> bytes:
    """Return an `AttributeProto`: bool_val is its field 27, int64_val 9, string_val 29."""
    name, value = one
    if isinstance(value, bool):
        return _text(1, name) + _number(27, value)
    return _text(1, name) + (_text(29, value) if isinstance(value, str) else _number(9, value))
