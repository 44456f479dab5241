"""Writes tables as Parquet without a table library, whose import takes as long as simulating a step.

The output uses the plain part of format version 1 (https://parquet.apache.org/docs/file-format): row groups with one page per
column, compressed with gzip; numbers as in memory, texts as a dictionary and an index for each row. Headers are in Thrift's
compact protocol. Polars, pyarrow and DuckDB read it. Equal tables give equal bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats, Ints, Mask

ROWS = 1 << 20
"""Number of rows per row group; readers load one at a time."""
_MAGIC = b"PAR1"
_GZIP, _LEVEL = 2, 1
_DATA, _DICTIONARY = 0, 2  # kinds of pages
_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8  # encodings
_TEXT = 6  # physical type BYTE_ARRAY
_TYPES = {"i4": 1, "i8": 2, "f8": 5}  # physical types of numbers, by numpy's


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of texts."""

    names: Sequence[str]
    """Distinct texts."""
    which: Ints
    """Index into `names` for each row (rows,)."""

    @classmethod
    def of(cls, rows: Iterable[str]) -> Texts:
        """Return the column of these texts."""
        place: dict[str, int] = {}
        which = np.array([place.setdefault(text, len(place)) for text in rows], np.int64)
        return cls(tuple(place), which)

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, rows: slice) -> Texts:
        return Texts(self.names, self.which[rows])


TableColumns = Mapping[str, Floats | Ints | NDArray[np.int32] | Texts]
"""{column name: values}, all of equal length. NaN stands for a missing value."""
_Struct = dict[int, Any]
"""{number of a field: value}, in ascending order."""
_Column = NDArray[np.float64] | NDArray[np.int64] | NDArray[np.int32] | Texts


class _Long(int):
    """A 64-bit integer of Thrift; plain integers have 32 bits."""


def encoded(columns: TableColumns) -> bytes:
    """Return the content of a Parquet file with the table."""
    rows = max(map(len, columns.values()), default=0)
    optional = {
        n: not isinstance(c, Texts) and c.dtype.kind == "f" and bool(np.isnan(c).any()) for n, c in columns.items()
    }
    out, groups = bytearray(_MAGIC), []
    for first in range(0, rows, ROWS):
        count = min(ROWS, rows - first)
        chunks = [_chunk(out, n, c[first : first + count], count, optional[n]) for n, c in columns.items()]
        size = sum(before for _, before in chunks)
        groups.append({1: [entry for entry, _ in chunks], 2: _Long(size), 3: _Long(count)})
    schema = [{4: b"schema", 5: len(columns)}, *(_schema(n, c, optional[n]) for n, c in columns.items())]
    footer = _thrift({1: 1, 2: schema, 3: _Long(rows), 4: groups, 6: b"clustersim"})
    return bytes(out) + footer + len(footer).to_bytes(4, "little") + _MAGIC


def _type(column: _Column) -> int:
    """Return the number of a column's physical type in Parquet."""
    return _TEXT if isinstance(column, Texts) else _TYPES[column.dtype.str[1:]]


def _schema(name: str, column: _Column, optional: bool) -> _Struct:
    """Return the footer's description of a column; texts are marked as UTF-8. optional: whether values may be missing."""
    text: _Struct = {6: 0, 10: {1: {}}} if isinstance(column, Texts) else {}
    return {1: _type(column), 3: int(optional), 4: name.encode(), **text}


def _chunk(out: bytearray, name: str, column: _Column, rows: int, optional: bool) -> tuple[_Struct, int]:
    """Append the pages of one column of a row group to `out`. Return its footer entry, and its bytes before compression."""
    start, size = len(out), 0
    if isinstance(column, Texts):
        texts = (text.encode() for text in column.names)
        words = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        size += _page(out, words, {1: _DICTIONARY}, {7: {1: len(column.names), 2: _PLAIN}})
    data = len(out)
    body, encoding = _body(column, optional)
    size += _page(out, body, {1: _DATA}, {5: {1: rows, 2: encoding, 3: _RLE, 4: _RLE}})
    facts: _Struct = {1: _type(column), 2: sorted({_PLAIN, _RLE, encoding}), 3: [name.encode()], 4: _GZIP}
    facts |= {5: _Long(rows), 6: _Long(size), 7: _Long(len(out) - start), 9: _Long(data)}
    if data > start:
        facts[11] = _Long(start)
    return {2: _Long(start), 3: facts}, size


def _body(column: _Column, optional: bool) -> tuple[bytes, int]:
    """Return the bytes of a column's values, after a mask of present ones if it is optional, and the number of their encoding."""
    if isinstance(column, Texts):
        width = max(len(column.names) - 1, 1).bit_length()
        return bytes([width]) + _packed(column.which, width), _RLE_DICTIONARY
    if not optional:
        return column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes(), _PLAIN
    known = ~np.isnan(column)
    levels = _packed(known, 1)
    return len(levels).to_bytes(4, "little") + levels + _body(column[known], False)[0], _PLAIN


def _page(out: bytearray, body: bytes, kind: _Struct, header: _Struct) -> int:
    """Append a page with `body` to `out`, `kind` and `header` in its header. Return the bytes of both before compression."""
    squeeze = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)  # 31: in the frame of a gzip file, without a time
    packed = squeeze.compress(body) + squeeze.flush()
    head = _thrift({**kind, 2: len(body), 3: len(packed), **header})
    out += head + packed
    return len(head) + len(body)


def _packed(values: Ints | Mask, width: int) -> bytes:
    """Return numbers with `width` bits each, lowest bits first, as one run of the format's run/bit-packing hybrid."""
    groups = -(-len(values) // 8)
    padded = np.zeros(8 * groups, np.int64)
    padded[: len(values)] = values
    bits = (padded[:, np.newaxis] >> np.arange(width)) & 1
    return _varint(groups << 1 | 1) + np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


_KINDS = {int: 5, _Long: 6, bytes: 8, list: 9, dict: 12}
"""{type: its number in Thrift's compact protocol}"""


def _thrift(value: Any) -> bytes:
    """Return a number (≥ 0), text (bytes), list, or struct {field in ascending order: value} in Thrift's compact protocol."""
    if isinstance(value, int):
        return _varint(value << 1)  # zigzag: none is negative
    if isinstance(value, bytes):
        return _varint(len(value)) + value
    if isinstance(value, list):
        kind = _KINDS[type(value[0])] if value else 5
        length = bytes([len(value) << 4 | kind]) if len(value) < 15 else bytes([0xF0 | kind]) + _varint(len(value))
        return length + b"".join(map(_thrift, value))
    numbers = zip([0, *value], value.items(), strict=False)
    fields = (bytes([number - last << 4 | _KINDS[type(field)]]) + _thrift(field) for last, (number, field) in numbers)
    return b"".join(fields) + b"\0"


def _varint(number: int) -> bytes:
    """Return a number (≥ 0) in groups of seven bits, lowest first; a set highest bit says that more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
