"""The detailed trace of a step: passes with their kernels and flows, counters and arrows."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compile import Source
from clustersim.engine.fabric import Activity
from clustersim.engine.flows import Flow
from clustersim.engine.launching import Seconds
from clustersim.engine.program import COMPUTE, Span
from clustersim.engine.record import Record
from clustersim.engine.traffic import Variant
from clustersim.model.kernel import Kernel
from clustersim.report.links import limits
from clustersim.report.parquet import TableColumns
from clustersim.report.trace import Arrows, DrawnRank, Spans, numbered_tracks, slices
from clustersim.report.trace_events import (
    LEVEL,
    NUMBER,
    SEPARATOR,
    counter_event,
    event_count,
    gemm_clock,
    link_load,
    metadata_event,
    pass_runs,
    slice_event,
)


class PassPart(NamedTuple):
    """A kernel, or a flow of a collective, from `start` to `end` seconds after the start of its pass."""

    what: Kernel | str
    """Kernel, family of a flow, or `compute` if kernels are unknown."""
    start: float
    end: float


def pass_parts(
    activity: Activity, source: Source | None, seconds: Sequence[Seconds], ends: Sequence[float] | None = None
) -> Iterator[PassPart]:
    """Yield the parts of a pass in order.

    `source` belongs to the activity; None: its kernels are unknown. `seconds` are kernel times on a nominal GPU. `ends` are the
    ends of each half segment in seconds after the start of the pass; None: as if alone. If kernels wait for the host, their
    starts are spread evenly over the time of kernels and waits.
    """
    ends = activity.timing.ends if ends is None else ends
    runs = pass_runs(source) if source else ()
    parts = iter([part for run in runs for part in ((run.before, run.overlapped), *[((), ())] * (run.flows - 1))])
    begin = 0.0
    for place, segment in enumerate(activity.segments):
        computed, moved = ends[2 * place], ends[2 * place + 1]
        before, overlapped = next(parts, ((), ()))
        yield from _in_sequence(before, begin, computed, source, seconds)
        if segment.flow is not None:
            yield PassPart(segment.flow.family, computed, moved)
            if overlapped:
                yield from _in_sequence(overlapped, computed, moved, source, seconds)
        begin = moved


def _in_sequence(
    kernels: Sequence[Kernel], begin: float, end: float, source: Source | None, seconds: Sequence[Seconds]
) -> Iterator[PassPart]:
    """Yield kernels one after the other from `begin` to `end` (s); one `compute` without `source`. seconds: by node type."""
    if source is None:
        if end > begin:
            yield PassPart("compute", begin, end)
        return
    nominal = [seconds[source.speed.kind][kernel] * source.speed.slowdown for kernel in kernels]
    stretch = max((end - begin) / (sum(nominal) or 1.0), 0.0)
    start = begin
    for kernel, took in zip(kernels, nominal, strict=True):
        yield PassPart(kernel, start, start + took * min(stretch, 1.0))
        start += took * stretch


_SAMPLED = 16
"""Number of ranks from which the size of a trace is estimated before it is written."""
_KEPT = 64
"""Number of rank cells whose events are cached for further ranks."""


class TraceSize(NamedTuple):
    """Estimated size of a trace."""

    events: int
    packed: int
    """Bytes of its compressed file."""


@dataclass(frozen=True)
class StepTrace:
    """Content of a step's trace."""

    record: Record
    spans: Spans
    """Spans of the drawn rank cells."""
    drawn: Sequence[DrawnRank]
    """Drawn ranks in order."""
    memory: TableColumns = field(default_factory=dict)
    """Columns of `tables.memory_table`; if empty, memory is not drawn."""
    stage_of: Sequence[int] = ()
    """Pipeline rank of each rank cell."""
    families: Mapping[str, Ints] = field(default_factory=dict)
    """{family: ranks of all its groups (groups, n)} if single ranks are drawn instead of one of each class."""
    seconds: Sequence[Seconds] = ()
    """Kernel times on a nominal GPU, by node type; if empty, passes are drawn without kernels."""
    links: Sequence[int] = ()
    """Links whose load is drawn."""
    clock: float = 1.0
    """Share of a short burst's clock that power leaves to GEMMs; if 1, no power state is drawn."""

    def events(self, progress: Callable[[str], None] = lambda _: None) -> Iterator[str]:
        """Yield JSON events as text: metadata, events of each drawn rank, arrows, link loads. progress: receives phases in words.

        An item is one event or several joined by SEPARATOR; an empty rank yields none. Ranks of a cell differ only in number.
        """
        yield from self._metadata(self.drawn)
        text_of, percent = lru_cache(_KEPT)(self._text_of), -(-len(self.drawn) // 100)
        for place, rank in enumerate(self.drawn):
            if place % percent == 0:
                progress(f"write {place / len(self.drawn):.0%}")
            if text := text_of(rank.cell):
                yield text.replace(NUMBER, str(rank.number))
        progress("write arrows")
        yield from self._arrows.events()
        yield from self._loads()

    def size(self) -> TraceSize:
        """Return the estimated size of the trace, from an even sample of its ranks."""
        sample = self.drawn[:: -(-len(self.drawn) // _SAMPLED)]
        text = SEPARATOR.join([*self._metadata(sample), *(self._text_of(rank.cell) for rank in sample)])
        events, arrows = event_count(text), self._arrows.ends[[rank.cell for rank in sample]].sum()
        share = len(self.drawn) / len(sample) * (events + arrows) / events
        return TraceSize(round(events * share), round(len(zlib.compress(text.encode(), LEVEL)) * share))

    @property
    def _arrows(self) -> Arrows:
        """Dependencies between the drawn ranks."""
        return Arrows(self.record, self.drawn, self.families, self.tracks)

    @cached_property
    def tracks(self) -> dict[str, int]:
        """{stream: thread}, computation first."""
        return numbered_tracks(span for row in self.spans.values() for span in row)

    def _metadata(self, drawn: Sequence[DrawnRank]) -> Iterator[str]:
        """Yield the names and the order of the processes and threads of drawn ranks."""
        for place, rank in enumerate(drawn):
            like = f" (and {rank.ranks - 1} like it)" if rank.ranks > 1 else ""
            stage = f", pipeline rank {self.stage_of[rank.cell]}" if self.stage_of else ""
            yield metadata_event(rank.number, None, "process_name", "name", f"rank {rank.rank}{like}")
            yield metadata_event(rank.number, None, "process_labels", "labels", f"stands for {rank.ranks}{stage}")
            yield metadata_event(rank.number, None, "process_sort_index", "sort_index", place)
            for name, tid in self.tracks.items():
                yield metadata_event(rank.number, tid, "thread_name", "name", name)
                yield metadata_event(rank.number, tid, "thread_sort_index", "sort_index", tid)

    # ranks

    def _text_of(self, cell: int) -> str:
        """Return the slices and counters of the ranks of a cell."""
        events = list[str]()
        for span in self.spans[cell]:
            events += (*slices(span, NUMBER, self.tracks, self._said), *self._kernels(span))
        if self.memory and (self.families or cell in self._first_of_stage):
            events += self._memory(cell)
        clocks = gemm_clock(self.spans[cell], self.clock) if self.clock < 1 else ()
        events += (counter_event(NUMBER, "clock of products", time, [("share", share)]) for time, share in clocks)
        return SEPARATOR.join(events)

    def _kernels(self, span: Span) -> Iterator[str]:
        """Yield the slice events of a pass's kernels, inside its slice; none for other spans or unknown kernel times."""
        source = span.activity.timing.source if span.activity and self.seconds else None
        if span.stream != COMPUTE or span.activity is None or source is None:
            return
        ends = [end - span.start for end in span.segment_ends] if span.segment_ends else None
        for part in pass_parts(span.activity, source, self.seconds, ends):
            if isinstance(kernel := part.what, Kernel):
                shape = (
                    f"{kernel.batch}x" * (kernel.batch > 1) + f"{kernel.m}x{kernel.n}" + f"x{kernel.k}" * (kernel.k > 0)
                )
                work = f'"FLOP":{kernel.flop:.10g},"memory bytes":{kernel.bytes:.10g}'
                arguments = f'{work},"shape":"{shape}","data type":"{kernel.dtype}"'
                start, end = span.start + part.start, min(span.start + part.end, span.end)
                yield slice_event(NUMBER, self.tracks[COMPUTE], f"{kernel.kind} {kernel.op}", start, end, arguments)

    def _said(self, span: Span, flow: Flow | None) -> str:
        """Return, as JSON without braces, a span's stage and microbatch, and `_computes` or `_moves` of it or of its `flow`."""
        key = id(span.activity), id(span.carried), span.stream == COMPUTE, (flow.family, flow.size) if flow else None
        if key not in self._known:
            work = self._moves(span, flow) if flow or span.stream != COMPUTE else self._computes(span)
            self._known[key] = [f'"{name}":{json.dumps(value)}' for name, value in work.items()]
        place = {} if flow else {"stage": span.stage, "microbatch": span.microbatch}
        return ",".join([*(f'"{name}":{n}' for name, n in place.items() if n >= 0), *self._known[key]])

    @cached_property
    def _known(self) -> dict[tuple[object, ...], list[str]]:
        """{(activity, …): JSON arguments without place} that `_said` has written, to be reused."""
        return {}

    def _computes(self, span: Span) -> dict[str, Any]:
        """Return {`FLOP`, `memory bytes`, `kernels`: number} of a pass; {} if its kernels are unknown."""
        source = span.activity.timing.source if span.activity else None
        kernels = [item for item in source.items if isinstance(item, Kernel)] if source else []
        flop, size = (sum(getattr(kernel, what) for kernel in kernels) for what in ("flop", "bytes"))
        return {"FLOP": flop, "memory bytes": size, "kernels": len(kernels)} if kernels else {}

    def _moves(self, span: Span, flow: Flow | None) -> dict[str, Any]:
        """Return `bytes`, `algorithm`, and if known `protocol` and limiting `link`, of a span or a `flow` inside it, else {}."""
        calls = [call for call in span.carried if flow is None or call[0][0] == flow.family]
        if span.activity is None or not calls:
            return {}
        size = flow.size if flow else span.carried[calls[0]]
        facts: dict[str, Any] = {"bytes": size, "algorithm": "/".join(dict.fromkeys(c[0][2] or c[0][1] for c in calls))}
        if flow is None and (protocol := self._protocols.get((*calls[0][0][:2], size))):
            facts["protocol"] = protocol
        if links := dict.fromkeys(self._limiting[call] for call in calls if call in self._limiting):
            facts["link"] = "/".join(links)
        return facts

    @cached_property
    def _protocols(self) -> dict[tuple[str, str, float], str]:
        """{(family, operation, bytes): protocols of the collective or message}"""
        plans = self.record.plan.network.plans.items()
        return {
            (call.group, call.op, float(call.size)): "/".join(dict.fromkeys(p.protocol for p in phases.values()))
            for call, phases in plans
        }

    @cached_property
    def _limiting(self) -> dict[tuple[Variant, int], str]:
        """{collective or message: the first link that limits its rate}"""
        calls = dict.fromkeys(call for row in self.spans.values() for span in row for call in span.carried)
        network = self.record.plan.network
        return {limit.call: network.topology.link_name(int(limit.links[0])) for limit in limits(calls, network)}

    # counters

    @cached_property
    def _first_of_stage(self) -> set[int]:
        """Rank cell that shows the memory of each pipeline rank, its first drawn one, if one rank of each class is drawn."""
        return set(dict(reversed([(self.stage_of[rank.cell], rank.cell) for rank in self.drawn])).values())

    @cached_property
    def _held(self) -> tuple[Ints, Floats, dict[str, Floats]]:
        """Columns over passes: pipeline rank, start (s), and {kind: bytes} of the memory that changes during the step."""
        ranks, begun = (np.asarray(self.memory[name]) for name in ("pipeline_rank", "start_s"))
        kinds = {name: np.asarray(self.memory[name]) for name in self.memory if name.endswith("_bytes")}
        changing = {name.removesuffix("_bytes"): column for name, column in kinds.items() if np.ptp(column) > 0}
        return ranks, begun, changing

    def _memory(self, cell: int) -> Iterator[str]:
        """Yield counter events of memory by kind (GiB) at the starts of the passes of a cell's pipeline rank."""
        ranks, begun, kinds = self._held
        for i in np.flatnonzero((ranks == self.stage_of[cell]) & ~np.isnan(begun)).tolist():
            values = [(kind, column[i] / 2**30) for kind, column in kinds.items()]
            yield counter_event(NUMBER, "memory (GiB)", float(begun[i]), values)

    def _loads(self) -> Iterator[str]:
        """Yield the events of the load of `links` over time (share of capacity), in one process after those of the ranks."""
        if not self.links:
            return
        topology, number = self.record.plan.network.topology, max(rank.number for rank in self.drawn) + 1
        yield metadata_event(number, None, "process_name", "name", "links")
        yield metadata_event(number, None, "process_sort_index", "sort_index", len(self.drawn))
        for link in self.links:
            for time, load in link_load(self.record, link):
                yield counter_event(number, f"load of {topology.link_name(link)}", time, [("share", load)])
