"""Chakra's execution traces (mlcommons/chakra, schema/protobuf/et_def.proto) as nodes, and back: one file per rank.

A file is a sequence of protobuf messages, each preceded by its length: one `GlobalMetadata`, then `Node` after `Node`. A node
computes, takes part in a collective, sends or receives, after its dependencies have ended. `pg_name` is the group of a
collective, whose members are in `comm_groups.json`. `comm_size` is the bytes that a rank contributes, as written by Chakra's
converter of PyTorch's traces and read by ASTRA-sim: for an all-gather, the shard of one rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from clustersim.convert.table import records_of
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
    groups = {**_groups(folder / GROUPS), **_metadata_groups(node for rank_nodes in nodes for node in rank_nodes)}
    for name, ranks in groups.items():
        if not ranks or not 0 <= min(ranks) <= max(ranks) < len(nodes) or len(set(ranks)) < len(ranks):
            why = f"group {name} has the ranks {list(ranks)[:8]}; they must differ and have a trace"
            raise InputError(f"{folder}: {why}")
    return TraceSet(files[0].name.rsplit(".", 2)[0], nodes, groups)


def _files(folder: Path) -> list[Path]:
    """Return the files NAME.RANK.et of a folder, ordered by rank. Raises InputError for missing, repeated or invalid ranks."""
    files: dict[int, Path] = {}
    for path in sorted(folder.glob("*.et")) if folder.is_dir() else ():
        _, _, rank = path.stem.rpartition(".")
        if not rank.isdecimal():
            raise InputError(f"{path}: the name must end in a rank; rename it NAME.RANK.et, such as step.0.et")
        if (other := files.setdefault(int(rank), path)) != path:
            why = f"{other.name} and {path.name} are both of rank {int(rank)}; leave one job there"
            raise InputError(f"{folder}: {why}")
    if not files:
        raise InputError(f"{folder}: has no file NAME.RANK.et; give the folder of a job's Chakra execution traces")
    missing = next((rank for rank in range(len(files)) if rank not in files), None)
    if missing is not None:
        raise InputError(f"{folder}: rank {missing} has no trace, rank {max(files)} has; give those of all ranks")
    return [files[rank] for rank in range(len(files))]


def _groups(path: Path) -> dict[str, tuple[int, ...]]:
    """Return {name of a group: its ranks} in comm_groups.json, {} without the file. Raises InputError for invalid content."""
    if not path.exists():
        return {}
    try:
        groups = json.loads(read_text(path, "a JSON file", DESCRIPTION))
        return {str(name): tuple(int(rank) for rank in ranks) for name, ranks in groups.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f'{path}: must map groups to their ranks ({error}); write {{"1": [0, 1], …}}') from error


def _metadata_groups(nodes: Iterable[TraceNode]) -> dict[str, tuple[int, ...]]:
    """Return {name of a group: its ranks} in metadata nodes of PyTorch's traces; unreadable nodes are skipped."""
    groups: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        if node.type == NodeType.METADATA and "pg_name" in node.inputs:
            start, end = node.inputs.find("["), node.inputs.rfind("]")
            try:
                for entry in json.loads(node.inputs[start : end + 1].removeprefix("['").removesuffix("']")):
                    if entry["ranks"]:
                        groups[str(entry["pg_name"])] = tuple(int(rank) for rank in entry["ranks"])
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # a group that is used and not known is named where it is used
    return groups


SCHEMA: Mapping[str, Mapping[str, Any]] = records_of("chakra")
"""{message: {our name of a field: [its number, its type]}}"""
_INTEGERS = {"comm_src": "int32", "comm_dst": "int32", "comm_tag": "int32", "tensor_size": "uint64"}
"""Types of attributes that Chakra's feeder does not read as int64."""


@cache
def _messages() -> dict[str, type[Any]]:
    """Return {name: class} of the messages in SCHEMA. Fields are optional: a 0 in the file differs from a missing value."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", syntax="proto2")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, (number, text) in fields.items():
            kind = text.removeprefix("repeated ")
            label = proto.LABEL_REPEATED if kind != text else proto.LABEL_OPTIONAL
            declared = message.field.add(name=field, number=number, label=label)
            if kind in SCHEMA:
                declared.type, declared.type_name = proto.TYPE_MESSAGE, kind
            else:
                declared.type, declared.options.packed = proto.Type.Value(f"TYPE_{kind.upper()}"), kind != text
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in SCHEMA}


def encoded(nodes: Iterable[TraceNode]) -> bytes:
    """Return the content of one rank's file: GlobalMetadata and the nodes, each after its length."""
    from google.protobuf.proto import serialize_length_prefixed

    stream = BytesIO()
    for message in (_messages()["GlobalMetadata"](version=VERSION), *map(_node, nodes)):
        serialize_length_prefixed(message, stream)
    return stream.getvalue()


def _node(node: TraceNode) -> Any:
    """Return the protobuf message of a node."""
    message = _messages()["Node"](id=node.id, name=node.name, type=node.type, data=node.before, micros=node.micros)
    for name, value in node.attributes.items():
        message.attributes.add(name=name, **{_kind(name, value): str(value) if isinstance(value, tuple) else value})
    return message


def _kind(name: str, value: AttributeValue) -> str:
    """Return the name of the schema's field for the value of an attribute, such as `int64` or `string`."""
    if isinstance(value, bool | float):
        return "bool" if isinstance(value, bool) else "double"
    return _INTEGERS.get(name, "int64") if isinstance(value, int) else "string"


def decoded(data: bytes, where: str) -> Iterator[TraceNode]:
    """Yield the nodes of a file's content. Raises InputError, which names the file `where`, for invalid content."""
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed

    stream, known = BytesIO(data), _messages()
    try:
        parse_length_prefixed(known["GlobalMetadata"], stream)
        while (message := parse_length_prefixed(known["Node"], stream)) is not None:
            before = tuple(dict.fromkeys([*message.control, *message.data]))
            attributes = {attribute.name: value for attribute in message.attributes for value in _values(attribute)}
            facts = (message.id, message.name, message.type, before, message.micros)
            yield TraceNode(*facts, attributes, message.inputs.values)
    except (DecodeError, ValueError, OverflowError) as error:
        why = f"not a Chakra execution trace ({error}); give files of its protobuf schema"
        raise InputError(f"{where}: {why}") from error


def _values(attribute: Any) -> Iterator[AttributeValue]:
    """Yield the value of an attribute's message; nothing for an unsupported type."""
    for field, value in attribute.ListFields():
        if field.name != "name":
            yield tuple(value.values) if field.name == "booleans" else value
