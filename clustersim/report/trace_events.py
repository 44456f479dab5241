"""Events of the Trace Event Format for https://ui.perfetto.dev as text: one per line, times in microseconds."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from io import BufferedWriter, TextIOWrapper
from typing import IO, NamedTuple

import numpy as np

from clustersim.engine.compile import Source
from clustersim.engine.flows import Flow
from clustersim.engine.network import Network
from clustersim.engine.program import COMPUTE, UPDATE, Span
from clustersim.engine.record import Record
from clustersim.engine.traffic import Variant
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective

FIRST = 1
"""Smallest number of a process or thread; 0 is a system's idle one."""
NUMBER = "\0"
"""Placeholder for the process in text that several processes share. JSON never has this character unescaped."""
SEPARATOR = ",\n"
"""Text between two events."""
LEVEL = 3
"""Compression level. Higher ones take twice as long for a tenth less."""
_BUFFER = 1 << 20
_BOUND = {"s": "", "t": ',"bp":"e"', "f": ',"bp":"e"'}
"""Attribute, by phase, that binds the end of an arrow to the slice around it."""
Process = int | str
"""Number of a process, or `NUMBER`."""


def write_events(raw: IO[bytes], facts: object, events: Iterable[str]) -> int:
    """Write a gzipped trace into an open file, as the events arrive, and return their number.

    `facts` are its metadata. Each item of `events` is one event or several with `SEPARATOR` between them.
    """
    count, between = 0, ""
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=LEVEL) as packed,
        TextIOWrapper(BufferedWriter(packed, _BUFFER), "utf-8", newline="\n") as file,
    ):
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[\n')
        for text in events:
            file.write(between)
            file.write(text)
            between = SEPARATOR
            count += event_count(text)
        file.write("\n]}\n")
    return count


def event_count(text: str) -> int:
    """Return the number of events in a text."""
    return text.count("\n") + 1


def metadata_event(process: Process, thread: int | None, name: str, key: str, value: object) -> str:
    """Return a metadata event, such as `thread_name`, of a process or of one of its threads, with the argument `key`: `value`."""
    tid = "" if thread is None else f'"tid":{thread},'
    return f'{{"ph":"M","pid":{process},{tid}"name":"{name}","args":{{"{key}":{json.dumps(value)}}}}}'


def slice_event(process: Process, thread: int, name: str, start: float, end: float, arguments: str = "") -> str:
    """Return a slice whose ends (`start`, `end` in s) are rounded to whole nanoseconds, so that adjacent slices do not overlap.

    `arguments` is its arguments as JSON without braces.
    """
    begin, last = round(start * 1e9), round(end * 1e9)
    times = f'"ts":{begin / 1e3:.3f},"dur":{(last - begin) / 1e3:.3f}'
    args = f',"args":{{{arguments}}}' if arguments else ""
    return f'{{"ph":"X","pid":{process},"tid":{thread},"name":"{name}",{times}{args}}}'


def counter_event(process: Process, name: str, time: float, values: Iterable[tuple[str, float]]) -> str:
    """Return the event that sets a counter's series to `values`, (name of a series, value), from `time` (s) on, as text."""
    at = f'"pid":{process},"ts":{round(time * 1e9) / 1e3:.3f}'
    arguments = ",".join(f'"{key}":{value:.6g}' for key, value in values)
    return f'{{"ph":"C","name":{json.dumps(name)},{at},"args":{{{arguments}}}}}'


def arrow_events(kind: str, number: int, ends: Sequence[tuple[Process, int, float]]) -> str:
    """Return an arrow of a kind through slices: `ends` are (process, thread, start of the slice in s).

    `number` is unique among arrows; Perfetto drops arrows whose `id` is not a number.
    """
    phases = ["s", *["t"] * (len(ends) - 2), "f"]
    name = f'"cat":"{kind}","name":"{kind}","id":{number}'
    return SEPARATOR.join(
        f'{{"ph":"{phase}",{name},"pid":{process},"tid":{thread},"ts":{round(time * 1e9) / 1e3:.3f}{_BOUND[phase]}}}'
        for phase, (process, thread, time) in zip(phases, ends, strict=True)
    )


_NOTHING = 1e-9  # relative to a link's capacity: smaller values are rounding errors of the sums
Call = tuple[Variant, int]
"""Collective or message, and its group cell."""


def link_load(record: Record, link: int) -> list[tuple[float, float]]:
    """Return the load of a link over the step: (seconds, share of its capacity in use from then on).

    Every transfer counts with its mean rate between its start and end.
    """
    network, changes = record.plan.network, defaultdict[float, float](float)
    weights = _link_weights(network, link)
    for call, start, end, size in dict.fromkeys(_transfers(record.spans, weights, network)):
        rate = size * weights[call] / (end - start)
        changes[start] += rate
        changes[end] -= rate
    times = sorted(changes)
    level = np.cumsum([changes[time] for time in times]) / network.topology.capacity[link]
    return list(zip(times, np.where(level > _NOTHING, level, 0.0).tolist(), strict=True))


def _link_weights(network: Network, link: int) -> dict[Call, float]:
    """Return {call: bytes over the link per byte of the collective} for every group cell."""
    weights: defaultdict[Call, float] = defaultdict(float)
    for variant in network.traffic:
        cell_of = network.cells.groups[variant[0]].of
        for t in network.phases(variant):
            crossing = np.flatnonzero(t.link == link)
            for group, weight in zip(t.group[crossing].tolist(), t.weight[crossing].tolist(), strict=True):
                weights[variant, int(cell_of[group])] += weight
    return dict(weights)


def _transfers(
    spans: Iterable[Span], wanted: Container[Call], network: Network
) -> Iterator[tuple[Call, float, float, float]]:
    """Yield (call, start s, end s, bytes) of each transfer of the `wanted` calls; one for each rank cell of a group."""
    collectives: dict[int, list[Collective]] = {}
    for span in spans:
        calls = [call for call in span.carried if call in wanted]
        if not calls or span.activity is None or span.end <= span.start:
            continue
        if span.stream != COMPUTE:
            yield from ((call, span.start, span.end, span.carried[call]) for call in calls)
            continue
        cells = {family: cell for (family, *_), cell in span.carried}
        source: Source = span.activity.timing.source
        if id(source) not in collectives:
            runs = pass_runs(source)
            collectives[id(source)] = [run.call for run in runs if run.call for _ in range(run.flows)]
        for number, flow, start, end in inner_flows(span):
            call = network.variant(collectives[id(source)][number], cells[flow.family]), cells[flow.family]
            if call in wanted:
                yield call, start, end, flow.size


class PassRun(NamedTuple):
    """Kernels of a pass before a collective, the collective, and the kernels concurrent with it."""

    before: list[Kernel]
    call: Collective | None
    """None: the kernels after the last collective."""
    flows: int
    """Number of flows of the collective, one after another."""
    overlapped: list[Kernel]


def pass_runs(source: Source) -> list[PassRun]:
    """Return the kernels of a pass, split at the collectives that send something."""
    runs, before, over = list[PassRun](), list[Kernel](), 0
    for item in source.items:
        if isinstance(item, Kernel):
            (runs[-1].overlapped if over else before).append(item)
            over -= bool(over)
        elif isinstance(item, Collective) and item.group in source.families:
            runs.append(PassRun(before, item, len(source.flows[item]), []))
            before, over = [], item.over
    merged, kernels = list[PassRun](), list[Kernel]()
    for run in (*runs, PassRun(before, None, 0, [])):
        kernels += run.before
        if run.flows or run.call is None:
            merged.append(run._replace(before=kernels))
            kernels = []
        else:  # a group of one rank sends nothing
            kernels += run.overlapped
    return merged


def inner_flows(span: Span) -> Iterator[tuple[int, Flow, float, float]]:
    """Yield (index of its segment, flow, start s, end s) of the flows inside a pass, without flows of zero length."""
    if span.stream != COMPUTE or span.activity is None:
        return
    ends = span.segment_ends or [span.start + end for end in span.activity.timing.ends]
    for i, segment in enumerate(span.activity.segments):
        if segment.flow and ends[2 * i + 1] > ends[2 * i]:
            yield i, segment.flow, ends[2 * i], ends[2 * i + 1]


def gemm_clock(spans: Iterable[Span], share: float) -> list[tuple[float, float]]:
    """Return the clock of GEMMs over the step: (seconds, share of a short burst's clock from then on).

    `share` is what power leaves while passes run; between them it is 1.
    """
    states: list[tuple[float, float]] = [(0.0, 1.0)]
    passes = sorted((s.start, s.end) for s in spans if s.stream == COMPUTE and s.kind not in UPDATE and s.end > s.start)
    for start, end in passes:
        if states[-1] == (start, 1.0):
            states.pop()  # one pass follows another without a gap
        if not states or states[-1][1] != share:
            states.append((start, share))
        states.append((end, 1.0))
    return states
