"""Events of the Trace Event Format, which https://ui.perfetto.dev opens, as text: one a line, times in microseconds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from io import BufferedWriter, TextIOWrapper
from pathlib import Path
from typing import IO

FIRST = 1
"""The lowest number of a process and of a thread: 0 is the idle one of a system."""
NUMBER = "\0"
"""Stands for the number of a process in text that serves several: no JSON has this sign as it is."""
SEPARATOR = ",\n"
"""Between two events."""
LEVEL = 3
"""How hard traces are packed: more takes twice as long for a tenth less."""
_BUFFER = 1 << 20
_BOUND = {"s": "", "t": ',"bp":"e"', "f": ',"bp":"e"'}
"""By phase, what binds the end of an arrow to the slice around it."""
Process = int | str
"""The number of a process, or `NUMBER`."""


def write_events(path: Path, facts: object, events: Iterable[str]) -> None:
    """Write the gzipped trace of these events; `facts`, what it shows of the step, are its metadata."""
    with path.open("wb") as raw:
        pack_events(raw, facts, events)


def pack_events(raw: IO[bytes], facts: object, events: Iterable[str]) -> int:
    """Write the same into an open file, as the events come, and return how many they are.

    events: each a text, or several at once with `SEPARATOR` between them.
    """
    count, between = 0, ""
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=LEVEL) as packed,
        TextIOWrapper(BufferedWriter(packed, _BUFFER), "utf-8", newline="\n") as file,
    ):
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[\n')
        for some in events:
            file.write(between)
            file.write(some)
            between = SEPARATOR
            count += counted(some)
        file.write("\n]}\n")
    return count


def counted(some: str) -> int:
    """Return how many events a text has."""
    return some.count("\n") + 1


def said_of(process: Process, thread: int | None, name: str, key: str, value: object) -> str:
    """Return what is to be shown of a process, or of one of its threads, such as its `thread_name`."""
    tid = "" if thread is None else f'"tid":{thread},'
    return f'{{"ph":"M","pid":{process},{tid}"name":"{name}","args":{{"{key}":{json.dumps(value)}}}}}'


def slice_of(process: Process, thread: int, name: str, start: float, end: float, said: str = "") -> str:
    """Return a slice cut to whole nanoseconds at both ends, so that slices that meet do not overlap.

    said: its arguments as JSON without its braces.
    """
    begin, last = round(start * 1e9), round(end * 1e9)
    times = f'"ts":{begin / 1e3:.3f},"dur":{(last - begin) / 1e3:.3f}'
    args = f',"args":{{{said}}}' if said else ""
    return f'{{"ph":"X","pid":{process},"tid":{thread},"name":"{name}",{times}{args}}}'


def count_of(process: Process, name: str, time: float, values: Iterable[tuple[str, float]]) -> str:
    """Return the values of a counter from a time on, in seconds."""
    at = f'"pid":{process},"ts":{round(time * 1e9) / 1e3:.3f}'
    said = ",".join(f'"{key}":{value:.6g}' for key, value in values)
    return f'{{"ph":"C","name":{json.dumps(name)},{at},"args":{{{said}}}}}'


def arrow_of(kind: str, number: int, ends: Sequence[tuple[Process, int, float]]) -> str:
    """Return an arrow through slices, which begin at these times on these threads of processes.

    number: its own among all arrows; Perfetto drops arrows whose `id` is no number.
    """
    phases = ["s", *["t"] * (len(ends) - 2), "f"]
    name = f'"cat":"{kind}","name":"{kind}","id":{number}'
    return SEPARATOR.join(
        f'{{"ph":"{phase}",{name},"pid":{process},"tid":{thread},"ts":{round(time * 1e9) / 1e3:.3f}{_BOUND[phase]}}}'
        for phase, (process, thread, time) in zip(phases, ends, strict=True)
    )
