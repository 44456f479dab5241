"""Chakra's execution traces (mlcommons/chakra, schema/protobuf/et_def.proto) as nodes, and back: one file per rank.

A file is a sequence of protobuf messages, each preceded by its length: one `GlobalMetadata`, then `Node` after `Node`. A node
computes, takes part in a collective, sends or receives, after its dependencies have ended. `pg_name` is the group of a
collective, whose members are in `comm_groups.json`. `comm_size` is the bytes that a rank contributes, as written by Chakra's
converter of PyTorch's traces and read by ASTRA-sim: for an all-gather, the shard of one rank.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from clustersim.errors import InputError
from clustersim.files import DESCRIPTION, TABLE, read_bytes, read_text

VERSION = "0.0.4"
"""Version of the schema."""
GROUPS = "comm_groups.json"
"""Name of the file with the ranks of every group."""
WHAT = "a Chakra execution trace"
NodeType = IntEnum("NodeType", "INVALID METADATA MEM_LOAD MEM_STORE COMP SEND RECV COLL", start=0)
"""Kinds of nodes in an execution trace, by the numbers of its protobuf schema."""
TYPES = {"all_reduce": 0, "reduce": 1, "all_gather": 2, "broadcast": 5, "reduce_scatter": 7}
TYPES |= dict.fromkeys(("all_to_all", "dispatch", "combine"), 6)
"""{collective: `CollectiveCommType`}"""
OPS = {number: op for op, number in reversed(TYPES.items())} | {8: "reduce_scatter", 9: "barrier"}
"""{`CollectiveCommType`: collective} of those that can be simulated; the attribute `op` distinguishes several of one type."""
SECONDS, BYTES = "seconds", "bytes"
"""Names of our own attributes, with the exact values that `duration_micros` and `comm_size` round."""
AttributeValue = int | float | bool | str | tuple[bool, ...]
_FIXED = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
_SIGNED, _ZIGZAG, _BOOLS = (7, 9), (15, 17), 28


class TraceNode(NamedTuple):
    """A node of a trace."""

    id: int
    name: str
    type: int
    """A NodeType."""
    before: tuple[int, ...]
    """Indices of the nodes that must end before it: data and control dependencies."""
    micros: int
    """Duration in microseconds; 0: not set."""
    attributes: Mapping[str, AttributeValue]
    inputs: str = ""
    """Values of its inputs, as text."""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.number(SECONDS, self.micros / 1e6)

    @property
    def bytes(self) -> float:
        """Bytes that a rank contributes."""
        return self.number(BYTES, self.number("comm_size"))

    def number(self, name: str, otherwise: float = 0.0) -> float:
        """Return an attribute that is a number of 0 or more, `otherwise` if it is missing."""
        value = self.attributes.get(name, otherwise)
        return float(value) if isinstance(value, int | float) and 0 <= value < float("inf") else otherwise


class TraceSet(NamedTuple):
    """Traces of all ranks of a job."""

    name: str
    nodes: list[list[TraceNode]]
    """Nodes of each rank."""
    groups: dict[str, tuple[int, ...]]
    """{name of a group: its ranks}"""


def read(folder: Path) -> TraceSet:
    """Return the traces NAME.RANK.et of a folder, with its comm_groups.json. Raises InputError for an incomplete set."""
    files = _files(folder)
    nodes = [list(decoded(read_bytes(path, WHAT, TABLE), str(path))) for path in files]
    groups = {**_groups(folder / GROUPS), **_said(row for one in nodes for row in one)}
    for name, ranks in groups.items():
        if not ranks or not 0 <= min(ranks) <= max(ranks) < len(nodes) or len(set(ranks)) < len(ranks):
            why = f"group {name} has the ranks {list(ranks)[:8]}; they must differ and have a trace"
            raise InputError(f"{folder}: {why}")
    return TraceSet(files[0].name.rsplit(".", 2)[0], nodes, groups)


def _files(folder: Path) -> list[Path]:
    """Return the files of all ranks, in order."""
    found: dict[int, Path] = {}
    for path in sorted(folder.glob("*.et")) if folder.is_dir() else ():
        _, _, rank = path.stem.rpartition(".")
        if not rank.isdecimal():
            raise InputError(f"{path}: the name must end in a rank; rename it NAME.RANK.et, such as step.0.et")
        if (other := found.setdefault(int(rank), path)) != path:
            why = f"{other.name} and {path.name} are both of rank {int(rank)}; leave one job there"
            raise InputError(f"{folder}: {why}")
    if not found:
        raise InputError(f"{folder}: has no file NAME.RANK.et; give the folder of a job's Chakra execution traces")
    missing = next((rank for rank in range(len(found)) if rank not in found), None)
    if missing is not None:
        raise InputError(f"{folder}: rank {missing} has no trace, rank {max(found)} has; give those of all ranks")
    return [found[rank] for rank in range(len(found))]


def _groups(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the groups in a file {name: [rank, …]}; {} without the file."""
    if not path.exists():
        return {}
    try:
        found = json.loads(read_text(path, "a JSON file", DESCRIPTION))
        return {str(name): tuple(int(rank) for rank in ranks) for name, ranks in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f'{path}: must map groups to their ranks ({error}); write {{"1": [0, 1], …}}') from error


def _said(nodes: Iterable[TraceNode]) -> dict[str, tuple[int, ...]]:
    """Return the groups in metadata nodes of PyTorch's traces."""
    found: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        if node.type == NodeType.METADATA and "pg_name" in node.inputs:
            start, end = node.inputs.find("["), node.inputs.rfind("]")
            try:
                for one in json.loads(node.inputs[start : end + 1].removeprefix("['").removesuffix("']")):
                    if one["ranks"]:
                        found[str(one["pg_name"])] = tuple(int(rank) for rank in one["ranks"])
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # a group that is used and not known is named where it is used
    return found


# protobuf's wire format (https://protobuf.dev/programming-guides/encoding)

_INT32, _INT64, _UINT64, _DOUBLE, _BOOL, _TEXT = 7, 9, 13, 3, 27, 29
_KINDS = {"comm_src": _INT32, "comm_dst": _INT32, "comm_tag": _INT32, "tensor_size": _UINT64}
"""Wire types of fields that Chakra's feeder does not read as int64."""


def encoded(nodes: Sequence[TraceNode]) -> bytes:
    """Return the content of a rank's file: messages, each after its length."""
    return b"".join(_varint(len(one)) + one for one in (_text(1, VERSION), *map(_node, nodes)))


def _node(node: TraceNode) -> bytes:
    """Return a node as the bytes of its protobuf message."""
    parts = [_number(1, node.id), _text(2, node.name), _number(3, node.type)]
    if node.before:
        parts.append(_message(5, b"".join(map(_varint, node.before))))
    parts += [_number(7, node.micros), *(_message(10, _attribute(*one)) for one in node.attributes.items())]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    """Return an integer as a varint: 7 bits per byte, lowest first, with the top bit set in all but the last."""
    found = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(place: int, value: int) -> bytes:
    """Return field number `place` with an integer."""
    return _varint(place << 3) + _varint(value)


def _message(place: int, content: bytes) -> bytes:
    """Return field number `place` with bytes, after their length."""
    return _varint(place << 3 | 2) + _varint(len(content)) + content


def _text(place: int, value: str) -> bytes:
    """Return field number `place` with a text."""
    return _message(place, value.encode())


def _attribute(name: str, value: AttributeValue) -> bytes:
    """Return an `AttributeProto` as bytes."""
    if isinstance(value, bool):
        return _text(1, name) + _number(_BOOL, value)
    if isinstance(value, float):
        return _text(1, name) + _varint(_DOUBLE << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return _text(1, name) + _number(_KINDS.get(name, _INT64), value)
    return _text(1, name) + _text(_TEXT, str(value))


def decoded(data: bytes, where: str) -> Iterator[TraceNode]:
    """Yield the nodes of a file. Raises InputError, which names the file `where`, for invalid content."""
    try:
        messages = _messages(data)
        next(messages, None)  # of the file
        for message in messages:
            yield _read_node(message)
    except (IndexError, ValueError, struct.error, OverflowError) as error:
        why = f"not a Chakra execution trace ({error}); give files of its protobuf schema"
        raise InputError(f"{where}: {why}") from error


def _messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a file, each after its length. Raises ValueError for a cut one."""
    at = 0
    while at < len(data):
        size, at = _read_varint(data, at)
        if size > len(data) - at:
            raise ValueError("it ends within a message")
        yield data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer of a varint at index `at`, and the index after it. Raises ValueError beyond 64 bits."""
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of the fields of a message: integers, or bytes for other types."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _read_varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field is of the unknown wire type {kind}")
        if size > len(data) - at:
            raise ValueError("it ends within a field")
        yield key >> 3, data[at : at + size]
        at += size


def _read_node(message: bytes) -> TraceNode:
    """Return the node of a protobuf message; unknown fields are skipped."""
    numbers, name, inputs = {1: 0, 3: 0, 7: 0}, "", ""
    before: dict[int, None] = {}
    attributes: dict[str, AttributeValue] = {}
    for place, value in _fields(message):
        if place in (4, 5):
            before |= dict.fromkeys(_packed(value))
        elif isinstance(value, int):
            numbers |= {place: value}
        elif place == 2:
            name = value.decode()
        elif place == 8:
            inputs = next((text.decode() for own, text in _fields(value) if own == 1 and isinstance(text, bytes)), "")
        elif place == 10:
            attributes |= _read_attribute(value)
    return TraceNode(numbers[1], name, numbers[3], tuple(before), numbers[7], attributes, inputs)


def _packed(value: int | bytes) -> Iterator[int]:
    """Yield the integers in a packed field, or a single one."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        found, at = _read_varint(value, at)
        yield found


def _read_attribute(message: bytes) -> dict[str, AttributeValue]:
    """Return {name: value} of an `AttributeProto`; {} for a type of value that is not used here."""
    name, found = "", dict[str, AttributeValue]()
    for place, value in _fields(message):
        if place == 1 and isinstance(value, bytes):
            name = value.decode()
        elif place > 2 and (read := _value(place, value)) is not None:
            found = {name: read}
    return found


def _value(place: int, value: int | bytes) -> AttributeValue | None:
    """Return the value of an attribute; None for lists other than of booleans, which are not used here."""
    if isinstance(value, int):
        if place == _BOOL:
            return bool(value)
        if place in _ZIGZAG:
            return value >> 1 ^ -(value & 1)
        return value - (1 << 64) if place in _SIGNED and value >> 63 else value
    found: AttributeValue | None = None
    if place in _FIXED:
        found = struct.unpack(_FIXED[place], value)[0]
    elif place == _TEXT:
        found = value.decode()
    elif place == _BOOLS:
        found = tuple(bool(one) for _, row in _fields(value) for one in _packed(row))
    return found
