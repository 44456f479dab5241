"""A step as arrays of records, for the compiled loop of `eventloop`: nodes, those of them that hold links, and what these do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, offsets
from clustersim.engine.contention import Holders
from clustersim.engine.fabric import Activity
from clustersim.engine.flows import Flow
from clustersim.engine.graph import StepGraph

Records = Any
"""An array of records of one of the types below."""
_BLOCK = 4096


def _type(whole: str, real: str = "") -> np.dtype[np.void]:
    return np.dtype([*[(name, np.int32) for name in whole.split()], *[(name, float) for name in real.split()]])


NODE = _type("a b after after_end holder missing", "seconds end")
"""A node of the graph: its predecessors, where its successors stand, which holder it is (-1: it holds no link), how many
predecessors are not over; its seconds as if alone, and its end."""
HOLDER = _type(
    "node row row_end segment segment_end flow awake version index on_time moving seen place",
    "started begun rate tried left since lands",
)
"""A node that holds links: its rows, segments and the first of its flows. `index`: the half segment in which it is awake or
went to sleep, which began at `begun`; `on_time`: nothing has slowed it, it ends as if alone to the last digit. Of the flow
whose bytes are `moving` (-1: none): its rate, the one that was tried last, bytes `left` at the time `since`, and when it
`lands` if nothing slows it, infinite once that has happened. `seen`, `place`: in which try last, and where."""
ROW = _type("holder link next_held last_held at", "share")
"""A holder and a link: the most of it that is asked, its neighbours among those that hold the link, and where it stands among
those whose bytes cross it."""
CROSSING = _type("row holder", "weight")
"""Bytes that cross a link: of which row and holder, and how many for each byte of the flow."""
LINK = _type("held first crossing", "limit reserved used")
"""A link of `limit` bytes/s: the first row that holds it (-1: none); where what crosses it stands, and how much that is; the
share that is asked of it; the bytes/s that cross it, as was tried last."""
SEGMENT = _type("", "compute launched beside taken computed over")
"""As in engine.fabric.Segment; `computed`, `over`: when its halves end as if alone."""
FLOW = _type("load load_end", "latency size bound idle")
"""As in engine.flows.Flow, and where its loads stand."""
LOAD = _type("place link", "weight")
"""The place of a link among those that the holder holds, which one it is, and bytes over it for each byte of the flow."""


class World(NamedTuple):
    """All records of a step."""

    nodes: Records
    after: Ints
    """Successors, node after node."""
    holders: Records
    rows: Records
    links: Records
    crossings: Records
    """What crosses links, link after link, with room for all."""
    segments: Records
    numbers: Ints
    """The flow of each segment of each holder's kind, -1 where it has none."""
    flows: Records
    loads: Records
    counts: Ints
    """Those of `eventloop`."""


class Sums(NamedTuple):
    """What rates are solved with, near at hand."""

    full: Mask
    """By link, whether it was full or nearly so when last solved …"""
    seen: Ints
    """… and its place among `wide` when it was last there."""
    wide: Ints
    """The links of a solution …"""
    found: Ints
    """… its holders …"""
    start: Ints
    """… and by holder where its full links begin …"""
    of: Ints
    """… in `of`, by their places among `wide` …"""
    weight: Floats
    """… with the bytes over them for each byte of the flow."""

    @classmethod
    def room(cls, holders: int, links: int, rows: int) -> Sums:
        """Return room for so many."""
        wide, found, start, of = (np.empty(count, np.int64) for count in (links, holders, holders + 1, rows))
        return cls(np.zeros(links, bool), np.zeros(links, np.int64), wide, found, start, of, np.empty(rows))


def world(
    capacity: Floats, graph: StepGraph, activities: Sequence[Activity], holders: Holders, seconds: Floats
) -> World:
    """Return the records of a step; the arguments are those of `hybrid`."""
    a, b, _ = graph.arrays
    after, start = graph.successors
    number = np.full(len(graph), -1)
    number[holders.node] = np.arange(len(holders.node))
    row, of = holders.row, holders.holdings.of
    link, share = holders.holdings.held
    asked, kind = _numbered(holders.slot, len(activities))
    doing = _Doing([activities[slot] for slot in asked.tolist()])
    return World(
        _records(
            NODE, len(graph), a=a, b=b, after=start[:-1], after_end=start[1:], holder=number, missing=2, seconds=seconds
        ),
        after,
        _records(
            HOLDER,
            len(holders.node),
            node=holders.node,
            row=row[:-1],
            row_end=row[1:],
            segment=doing.first[kind],
            segment_end=doing.last[kind],
            flow=doing.flow[kind],
            on_time=1,
            moving=-1,
        ),
        _records(ROW, len(of), holder=of, link=link, share=share),
        _records(
            LINK, len(capacity), held=-1, first=offsets(np.bincount(link, minlength=len(capacity)))[:-1], limit=capacity
        ),
        np.zeros(len(of), CROSSING),
        np.array(doing.segments, SEGMENT),
        np.array(doing.numbers, np.int64),
        *doing.flows(),
        np.zeros(5, np.int64),
    )


def _numbered(values: Ints, most: int) -> tuple[Ints, Ints]:
    """Return the different ones of some values below `most`, and which of them each is."""
    there = np.zeros(most, bool)
    there[values] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[values]


def _records(kind: np.dtype[np.void], count: int, **columns: Floats | Ints | float) -> Records:
    found = np.zeros(count, kind)
    filled = {name: np.broadcast_to(column, count) for name, column in columns.items()}
    for begin in range(0, count, _BLOCK):  # all columns of some records, while those are in the cache
        for name, column in filled.items():
            found[name][begin : begin + _BLOCK] = column[begin : begin + _BLOCK]
    return found


class _Doing:
    """What activities do: their segments, once for all that take as long, and their flows, once for all on the same links."""

    def __init__(self, activities: Iterable[Activity]) -> None:
        self.segments: list[tuple[float, ...]] = []
        self.numbers: list[int] = []
        """As in World."""
        self.different: dict[tuple[int, int], int] = {}
        self.kept: list[tuple[Flow, Ints]] = []
        """Flows, and the links that are held with them."""
        first: dict[int, int] = {}
        rows = [(self._first(one.times, first), len(one.times.segments), self._flows(one)) for one in activities]
        columns = np.array(rows, np.int64).reshape(-1, 3)
        self.first, self.last, self.flow = columns[:, 0], columns[:, 0] + columns[:, 1], columns[:, 2]

    def _first(self, times: Activity, known: dict[int, int]) -> int:
        """Return the first of the segments of an activity."""
        if id(times) not in known:
            known[id(times)] = len(self.segments)
            ends = zip(times.ends[::2], times.ends[1::2], strict=True)
            self.segments += [
                (one.compute, one.launched, one.beside, one.share, *both)
                for one, both in zip(times.segments, ends, strict=True)
            ]
        return known[id(times)]

    def _flows(self, activity: Activity) -> int:
        """Return where the numbers of the flows of an activity begin."""
        begin, held = len(self.numbers), activity.asked.links
        for flow in activity.flows:
            if flow is None:
                self.numbers.append(-1)
                continue
            number = self.different.setdefault((id(flow), id(held)), len(self.kept))
            if number == len(self.kept):
                self.kept.append((flow, held))
            self.numbers.append(number)
        return begin

    def flows(self) -> tuple[Records, Records]:
        """Return the flows and their loads."""
        place, link = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for flow, held in self.kept:
            place.append(np.arange(len(held)) if flow.links is held else np.searchsorted(held, flow.links))
            link.append(flow.links)
        load = offsets(np.array([len(flow.links) for flow, _ in self.kept], np.int64)).tolist()
        flows = [
            (*ends, one.latency, one.size, one.bound, one.idle)
            for ends, (one, _) in zip(pairwise(load), self.kept, strict=True)
        ]
        weight = np.concatenate([np.empty(0), *(flow.weights for flow, _ in self.kept)])
        loads = _records(LOAD, load[-1], place=np.concatenate(place), link=np.concatenate(link), weight=weight)
        return np.array(flows, FLOW), loads
