"""The wire format of protocol buffers: numbers and fields, written and read by hand."""

from __future__ import annotations

from collections.abc import Iterator


def varint(value: int) -> bytes:
    """Return a whole number as it is written."""
    found = bytearray()
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def field(number: int, content: bytes) -> bytes:
    """Return a field of bytes as it is written."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint_at(content: bytes, place: int) -> tuple[int, int]:
    """Return the number that is written at a place, and the place behind it."""
    value = shift = 0
    while True:
        byte, place = content[place], place + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place


def varints(content: bytes) -> Iterator[int]:
    """Yield the numbers of a packed field."""
    place = 0
    while place < len(content):
        value, place = varint_at(content, place)
        yield value


def fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number of each field, and the number that it is or its bytes."""
    place = 0
    while place < len(content):
        key, place = varint_at(content, place)
        number, wire = divmod(key, 8)
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire in (0, 2):
            size, place = varint_at(content, place)
        if wire == 0:
            yield number, size
            continue
        yield number, content[place : place + size]
        place += size
