"""The trace of one step: ranks as processes, streams as threads, in order; what each slice does, who waits for whom, memory.

An arrow goes from a message to the pass that waits for it, and along the ranks of a collective or of passes in lock-step.
Where one rank stands for all that are alike, arrows join the ranks that stand for others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compile import Plan
from clustersim.engine.fabric import Activity
from clustersim.engine.launching import Seconds
from clustersim.engine.network import Variant
from clustersim.engine.program import COMPUTE, READY, GroupCell, Span, computing
from clustersim.engine.record import Record
from clustersim.model.kernel import Kernel
from clustersim.report.inside import inside
from clustersim.report.links import limits
from clustersim.report.parquet import TableColumns
from clustersim.report.trace import FIRST, Spans, name_of, streams
from clustersim.report.trace_details import link_load, power_state


class Process(NamedTuple):
    """A rank as the trace draws it."""

    rank: int
    cell: int
    ranks: int
    """So many it stands for."""

    @property
    def number(self) -> int:
        """Its number among the processes of the trace."""
        return self.rank + FIRST


class TraceDetails(NamedTuple):
    """What a trace shows on request."""

    seconds: Sequence[Seconds]
    """Of each kernel on a nominal GPU, by type of node; none: passes are drawn without their kernels."""
    links: Sequence[int]
    """Links whose load is drawn."""
    clock: float
    """Share of a short burst's clock that power leaves to matrix products; 1: no power state is drawn."""


@dataclass(frozen=True)
class StepTrace:
    """What is drawn of a step."""

    record: Record
    plan: Plan
    spans: Spans
    """Of the rank cells that are drawn."""
    processes: tuple[Process, ...]
    """In the order in which they are drawn."""
    memory: TableColumns = field(default_factory=dict)
    """As `tables.memory_table` has it; none: no memory is drawn."""
    stage_of: Sequence[int] = ()
    """Pipeline rank by rank cell."""
    families: Mapping[str, Ints] = field(default_factory=dict)
    """Where single ranks are drawn and not one of each kind: the ranks of all groups by family (groups, n)."""
    details: TraceDetails | None = None
    """What is drawn besides, on request."""

    def events(self) -> Iterator[str]:
        """Yield every event, one line each."""
        yield from self._metadata()
        for process in self.processes:
            for span in self.spans[process.cell]:
                yield from self._slices(span, process.number)
        yield from self._messages()
        yield from self._together()
        yield from self._memory()
        yield from self._counters()

    @cached_property
    def tracks(self) -> dict[str, int]:
        """The thread of each stream: computation first."""
        names = {name for row in self.spans.values() for span in row for name in streams(span)}
        return {name: i for i, name in enumerate([COMPUTE, *sorted(names - {COMPUTE})], FIRST)}

    def _metadata(self) -> Iterator[str]:
        for place, (rank, cell, ranks) in enumerate(self.processes):
            like = f" (and {ranks - 1} like it)" if ranks > 1 else ""
            stage = f", pipeline rank {self.stage_of[cell]}" if self.stage_of else ""
            yield _meta(rank + FIRST, None, "process_name", "name", f"rank {rank}{like}")
            yield _meta(rank + FIRST, None, "process_labels", "labels", f"stands for {ranks}{stage}")
            yield _meta(rank + FIRST, None, "process_sort_index", "sort_index", place)
            for name, tid in self.tracks.items():
                yield _meta(rank + FIRST, tid, "thread_name", "name", name)
                yield _meta(rank + FIRST, tid, "thread_sort_index", "sort_index", tid)

    # slices

    def _slices(self, span: Span, process: int) -> Iterator[str]:
        """Yield the slice of a span, and of the collectives inside it on the tracks of their streams."""
        if span.kind == READY:
            return
        if span.end > span.start:
            said = self._said(span)
            yield _slice(process, self.tracks[span.stream], name_of(span), span.start, span.end, said)
        if span.stream != COMPUTE or span.activity is None:
            return
        if self.details and self.details.seconds:
            yield from self._kernels(span, process, self.details.seconds)
        ends = span.segment_ends or [span.start + end for end in span.activity.ends]
        for i, segment in enumerate(span.activity.segments):
            if segment.flow and ends[2 * i + 1] > ends[2 * i]:
                family = segment.flow.family
                inside = self._inside(span.activity, family, segment.flow.size)
                yield _slice(process, self.tracks[family], family, ends[2 * i], ends[2 * i + 1], inside)

    def _kernels(self, span: Span, process: int, seconds: Sequence[Seconds]) -> Iterator[str]:
        """Yield the kernels of a pass, inside its slice."""
        source = self.plan.sources.get(span.activity) if span.activity else None
        if span.activity is None or source is None:
            return
        ends = [end - span.start for end in span.segment_ends] if span.segment_ends else None
        for one in inside(span.activity, source, seconds, ends):
            if isinstance(kernel := one.what, Kernel):
                shape = (
                    f"{kernel.batch}x" * (kernel.batch > 1) + f"{kernel.m}x{kernel.n}" + f"x{kernel.k}" * (kernel.k > 0)
                )
                work = f'"FLOP":{kernel.flop:.10g},"memory bytes":{kernel.bytes:.10g}'
                said = f'{work},"shape":"{shape}","data type":"{kernel.dtype}"'
                start, end = span.start + one.start, min(span.start + one.end, span.end)
                yield _slice(process, self.tracks[COMPUTE], f"{kernel.kind} {kernel.op}", start, end, said)

    def _said(self, span: Span) -> str:
        """Return the arguments of a slice as JSON without its braces."""
        place = f'"stage":{span.stage},' * (span.stage >= 0) + f'"microbatch":{span.microbatch},' * (
            span.microbatch >= 0
        )
        return (place + self._work(span.activity, span.stream)).rstrip(",") if span.activity else place.rstrip(",")

    @cached_property
    def _known(self) -> dict[tuple[object, ...], str]:
        return {}

    def _work(self, activity: Activity, stream: str) -> str:
        key = id(activity), stream == COMPUTE
        if key not in self._known:
            found = self._computes(activity) if stream == COMPUTE else self._moves(activity)
            self._known[key] = "".join(f'"{name}":{json.dumps(value)},' for name, value in found.items())
        return self._known[key]

    def _computes(self, activity: Activity) -> dict[str, Any]:
        source = self.plan.sources.get(activity)
        kernels = [item for item in source.items if isinstance(item, Kernel)] if source else []
        flop, size = (sum(getattr(one, what) for one in kernels) for what in ("flop", "bytes"))
        return {"FLOP": flop, "memory bytes": size, "kernels": len(kernels)} if kernels else {}

    def _moves(self, activity: Activity) -> dict[str, Any]:
        """Return bytes, algorithm, protocol and the link that limits them, of a collective or message."""
        for call, size in activity.carried.items():
            group, op, algorithm = call[0]
            found: dict[str, Any] = {"bytes": size, "algorithm": algorithm or op}
            found |= {"protocol": self._protocols[group, op, size]} if self._protocols.get((group, op, size)) else {}
            found |= {"link": self._limiting[call]} if call in self._limiting else {}
            return found
        return {}

    def _inside(self, activity: Activity, family: str, size: float) -> str:
        key = id(activity), family, size
        if key not in self._known:
            own = {call: one for call, one in activity.carried.items() if call[0][0] == family}
            found: dict[str, Any] = {"bytes": size, "algorithm": "/".join(dict.fromkeys(call[0][2] for call in own))}
            links = dict.fromkeys(self._limiting[call] for call in own if call in self._limiting)
            found |= {"link": "/".join(links)} if links else {}
            self._known[key] = "".join(f'"{name}":{json.dumps(value)},' for name, value in found.items()).rstrip(",")
        return self._known[key]

    @cached_property
    def _protocols(self) -> dict[tuple[str, str, float], str]:
        plans = self.plan.network.plans.items()
        return {
            (call.group, call.op, float(call.size)): "/".join(dict.fromkeys(one.protocol for one in own.values()))
            for call, own in plans
        }

    @cached_property
    def _limiting(self) -> dict[tuple[Variant, int], str]:
        """The first of the links that give each collective or message its rate."""
        spans = (span for row in self.spans.values() for span in row if span.activity)
        calls = dict.fromkeys(call for span in spans if span.activity for call in span.activity.carried)
        topology = self.plan.network.topology
        return {one.call: topology.link_name(int(one.links[0])) for one in limits(calls, self.plan.network)}

    # arrows

    @cached_property
    def _drawn(self) -> dict[int, list[Process]]:
        """By rank cell, the ranks that are drawn of it."""
        found: dict[int, list[Process]] = {}
        for process in self.processes:
            found.setdefault(process.cell, []).append(process)
        return found

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """The process of each rank that is drawn."""
        return {one.rank: one.number for one in self.processes}

    def _messages(self) -> Iterator[str]:
        """Yield an arrow from each message to the pass that waits for it."""
        record, waits = self.record, self.record.graph.waits
        order, start = record.graph.by_node
        parts, begins = record.graph.occurrences, self._begins()
        ready = np.maximum(record.ends[waits.asked], record.ends[waits.awaited])
        for i in np.flatnonzero(waits.stage >= 0).tolist():
            row, receiver = int(order[start[waits.awaited[i]]]), int(waits.rank[i])
            sent, sender = float(record.starts[parts.node[row]]), int(parts.rank[row])
            if receiver not in begins or record.ends[parts.node[row]] <= sent:
                continue
            place = int(np.searchsorted(begins[receiver], ready[i]))
            stream = record.tasks[int(parts.task[row])].stream
            for one, other in self._pairs(sender, receiver, stream) if place < len(begins[receiver]) else ():
                ends = [(one, stream, sent), (other, COMPUTE, float(begins[receiver][place]))]
                yield from self._arrow("message", f"{i}.{other}", ends)

    def _pairs(self, sender: int, receiver: int, stream: str) -> Iterator[tuple[int, int]]:
        """Yield the processes of sender and receiver of a message between rank cells, of all ranks that are drawn."""
        if not self.families:
            if sender in self._drawn and receiver in self._drawn:
                yield self._drawn[sender][0].number, self._drawn[receiver][0].number
            return
        ranks = self.families[stream]
        for one in self._drawn.get(receiver, ()):
            for rank in ranks[ranks[:, 1] == one.rank, 0].tolist():
                if rank in self._numbers:
                    yield self._numbers[rank], one.number

    def _begins(self) -> dict[int, Floats]:
        """Return when the computations of each rank cell begin, ascending."""
        parts, tasks, record = self.record.graph.occurrences, self.record.tasks, self.record
        some = tasks.once(computing)[parts.task] & (record.ends[parts.node] > record.starts[parts.node])
        rank, begun = parts.rank[some], record.starts[parts.node[some]]
        return {cell: np.sort(begun[rank == cell]) for cell in self._drawn}

    def _together(self) -> Iterator[str]:
        """Yield arrows along the ranks of each collective, and of passes in lock-step."""
        record = self.record
        order, start = record.graph.by_node
        parts, starts = record.graph.occurrences, record.starts.tolist()
        for node in np.flatnonzero(record.ends > record.starts).tolist():
            rows = order[start[node] : start[node + 1]]
            tasks = [record.tasks[int(task)] for task in parts.task[rows].tolist()]
            group = tasks[0].group if tasks else None
            if group is None:
                continue
            kind = "collective" if len(tasks[0].kind) > 1 else "lock-step"
            for number, ranks in enumerate(self._groups(group, parts.rank[rows].tolist())):
                ends = [(one, tasks[0].stream, starts[node]) for one in sorted(ranks)]
                if len(ends) > 1:
                    yield from self._arrow(kind, f"n{node}.{number}", ends)

    def _groups(self, group: GroupCell, cells: Sequence[int]) -> Iterator[list[int]]:
        """Yield the processes of each group of a cell that are drawn; cells: the rank cells of its first group."""
        if not self.families:
            yield [self._drawn[cell][0].number for cell in cells if cell in self._drawn]
            return
        family, own = group
        of = self.plan.network.cells.groups[family].of
        for ranks in self.families[family][np.flatnonzero(of == own)].tolist():
            yield [self._numbers[rank] for rank in ranks if rank in self._numbers]

    def _arrow(self, kind: str, number: object, ends: Sequence[tuple[int, str, float]]) -> Iterator[str]:
        """Yield an arrow from slice to slice, which begin at these times on these streams of processes."""
        for place, (process, stream, time) in enumerate(ends):
            phase = "s" if place == 0 else "f" if place == len(ends) - 1 else "t"
            at = f'"pid":{process},"tid":{self.tracks[stream]},"ts":{round(time * 1e9) / 1e3:.3f}'
            bound = ',"bp":"e"' if place else ""
            yield f'{{"ph":"{phase}","cat":"{kind}","name":"{kind}","id":"{number}",{at}{bound}}}'

    # counters

    def _memory(self) -> Iterator[str]:
        """Yield the memory of each pipeline rank, by kind, as its passes begin."""
        if not self.memory:
            return
        ranks, begun = (np.asarray(self.memory[name]) for name in ("pipeline_rank", "start_s"))
        kinds = {
            name.removesuffix("_bytes"): np.asarray(self.memory[name])
            for name in self.memory
            if name.endswith("_bytes")
        }
        varying = {kind: column for kind, column in kinds.items() if np.ptp(column) > 0}
        shown = dict(reversed([(self.stage_of[one.cell], one) for one in self.processes]))
        each = self.processes if self.families else shown.values()
        for process in sorted(each):
            stage = self.stage_of[process.cell]
            rows = np.flatnonzero((ranks == stage) & ~np.isnan(begun))
            for i in rows.tolist():
                said = ",".join(f'"{kind}":{column[i] / 2**30:.6g}' for kind, column in varying.items())
                at = f'"pid":{process.number},"ts":{round(float(begun[i]) * 1e9) / 1e3:.3f}'
                yield f'{{"ph":"C","name":"memory (GiB)",{at},"args":{{{said}}}}}'

    def _counters(self) -> Iterator[str]:
        """Yield the load of links, on a process of their own behind the ranks, and the power state of each rank."""
        if self.details is None:
            return
        topology, number = self.plan.network.topology, max(one.number for one in self.processes) + 1
        if self.details.links:
            yield _meta(number, None, "process_name", "name", "links")
            yield _meta(number, None, "process_sort_index", "sort_index", len(self.processes))
        for link in self.details.links:
            for time, load in link_load(self.record, self.plan, link):
                yield _count(number, f"load of {topology.link_name(link)}", time, load)
        for process in self.processes if self.details.clock < 1 else ():
            for time, clock in power_state(self.spans[process.cell], self.details.clock):
                yield _count(process.number, "clock of products", time, clock)


def _count(process: int, name: str, time: float, share: float) -> str:
    at = f'"pid":{process},"ts":{round(time * 1e9) / 1e3:.3f}'
    return f'{{"ph":"C","name":{json.dumps(name)},{at},"args":{{"share":{share:.6g}}}}}'


def by_class(plan: Plan, spans: Spans) -> tuple[Process, ...]:
    """Return one process for each rank cell that has spans: its first rank."""
    return tuple(Process(int(plan.first[cell]), cell, int(plan.size[cell])) for cell in spans)


def _meta(process: int, thread: int | None, name: str, key: str, value: object) -> str:
    tid = "" if thread is None else f'"tid":{thread},'
    return f'{{"ph":"M","pid":{process},{tid}"name":"{name}","args":{{"{key}":{json.dumps(value)}}}}}'


def _slice(pid: int, tid: int, name: str, start: float, end: float, said: str) -> str:
    """Return a slice cut to whole nanoseconds at both ends, so that slices that meet do not overlap."""
    begin, last = round(start * 1e9), round(end * 1e9)
    times = f'"ts":{begin / 1e3:.3f},"dur":{(last - begin) / 1e3:.3f}'
    args = f',"args":{{{said}}}' if said else ""
    return f'{{"ph":"X","pid":{pid},"tid":{tid},"name":"{name}",{times}{args}}}'


def of_ranks(plan: Plan, ranks: Sequence[int]) -> tuple[Process, ...]:
    """Return a process for each of some ranks, in order."""
    of = plan.network.cells.ranks.of
    return tuple(Process(rank, int(of[rank]), 1) for rank in ranks)
