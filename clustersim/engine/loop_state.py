"""A step as arrays of records, for the compiled loop of `eventloop`: nodes, those of them that hold links, and what these do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats, Ints, Mask, chained, offsets
from clustersim.engine.contention import LinkUse
from clustersim.engine.fabric import Activity
from clustersim.engine.flows import Flow
from clustersim.engine.graph import StepGraph
from clustersim.engine.slowing import NO_SLOWING, BesideRows, Slowing
from clustersim.engine.tasks import SlotKinds, Tasks

Records = Any
"""An array of records of one of the types below."""
Places = NDArray[np.int32]
"""Where something stands among records."""
COUNTERS = 10


def _type(real: str, whole: str = "", long: str = "") -> np.dtype[np.void]:
    """Return a type of records of floats, integers of 64 bits and of 32 bits, the widest first."""
    kinds = (float, real), (np.int64, long), (np.int32, whole)
    return np.dtype([(name, kind) for kind, names in kinds for name in names.split()], align=True)


KIND = _type("", "segment segment_end flow")
"""What tasks of one slot do: where their segments begin and end, and the first of their flows."""
TASK = _type(
    "started begun rate tried left since lands",
    "row row_end segment segment_end flow half waits call awake on_time moving full seen place late job",
    "index",
)
"""A node whose end is not known when it begins, from then on: it holds links, takes from the passes beside it, or loses. Its
rows and segments, the first of its flows and of the ends of its half segments; what it waits for (`call`), and the place of
that event (`waits`, -1: none). `index`: the half segment in which it is awake or went to sleep, which began at `begun`;
`on_time`: nothing has slowed it, it ends as if alone to the last digit. Of the flow whose bytes are `moving`: its rate, the one
that was tried last, bytes `left` at the time `since`, when it `lands` if nothing slows it, infinite once that has happened, and
the first row whose link is `full`. `seen`, `place`: in which try last, and where. `late`: it makes up for what it lost, `since`
it would have been over."""
ROW = _type("", "task link next_held last_held at next_full")
"""A task and a link, from its begin on: its neighbours among those that hold the link, where it stands among those whose
bytes cross it, and the task's next row whose link is full."""
CROSSING = _type("weight", "row task")
"""Bytes that cross a link: how many for each byte of the flow, of which row and task."""
LINK = _type("reserved free total", "held first crossing changed seen left")
"""A link: the share that is asked of it; the first row that holds it (-1: none); where what crosses it stands, and how much that
is; whether bytes have left it since rates were solved. In the try in which it was `seen` last, what is free of it, and the
weights and number of the flows that still rise."""
SEGMENT = _type("compute launched beside taken computed over")
"""As in engine.fabric.Segment; `computed`, `over`: when its halves end as if alone."""
FLOW = _type("latency size bound idle", "load load_end")
"""As in engine.flows.Flow, and where its loads stand."""
LOAD = _type("weight", "place link")
"""Bytes over a link for each byte of the flow, the place of the link among those that the task holds, and which one it is."""
EVENT = _type("time", "task", "order")
"""When a task does not wait any more; `order` tells which comes first of one time."""
TRIAL = _type("bound rate", "task load load_end")
"""A flow of a try: its most and its found bytes/s, whose it is, and where the full links that it loads begin and end."""
LOADED = _type("weight", "link")
"""A full link of a flow of a try."""
STOP = _type("level", "", "place")
"""A rate at which a link is full, or a flow (a negative number) at its bound."""
RANK = _type("sms memory taken taken_most lost lost_most since", "late")
"""A rank: the shares of SMs and of its memory's bandwidth that communication asks of it at the time `since`; what kernels lose
of their speed that memory does not bound (`taken`), and that it does (`taken_most`); the integrals of both; and the first of
its losses that are made up for (-1: none)."""
TAKE = _type("sms memory", "rank")
"""What a task takes of a rank while it runs."""
LOSS = _type("other memory before before_most left end", "rank task next last")
"""A task and a rank on which it computes: the parts of it that are kernels which memory does not bound, and which it does;
the integrals of the rank when it began. When it makes up for what it lost: the seconds `left` to do alone, when it will `end`,
and its neighbours among those of the rank."""


JOB = _type("begin end", "first last first_task last_task under_way idle")
"""A job: when its step began or is to begin, and ended; its nodes and tasks, of which the last one waits for the step itself to
begin and to end; how many of its tasks are under way; whether its step is not."""


class LoopState(NamedTuple):
    """All records of the steps of jobs."""

    a: Ints
    """By node, one predecessor …"""
    b: Ints
    """… and the other one …"""
    start: Ints
    """… where its successors begin in `after` …"""
    after: Ints
    seconds: Floats
    """… its seconds as if alone …"""
    task: Places
    """… which task it is (-1: it holds no link) …"""
    missing: NDArray[np.int8]
    """… how many predecessors are not over …"""
    end: Floats
    """… and when it ended."""
    node: Ints
    """By task, its node …"""
    kind: Ints
    """… which of `kinds` …"""
    row: Ints
    """… where its rows begin …"""
    take: Ints
    """… what it takes …"""
    loss: Ints
    """… and what it loses …"""
    half: Ints
    """… and the ends of its half segments."""
    link: Ints
    """By row, the link …"""
    share: Floats
    """… and the most of it that is asked."""
    kinds: Records
    tasks: Records
    rows: Records
    links: Records
    limit: Floats
    """By link, its bytes/s …"""
    used: Floats
    """… those that cross it, as was tried last …"""
    full: Mask
    """… and whether it was full or nearly so when last solved: apart, as flows over a hundred links look at all of theirs."""
    crossings: Records
    """What crosses links, link after link, with room for all."""
    ranks: Records
    takes: Records
    losses: Records
    longer: Floats
    """By node, by how much longer it took as communication beside it took SMs or memory."""
    segments: Records
    numbers: Ints
    """The flow of each segment of each task's kind, -1 where it has none."""
    flows: Records
    loads: Records
    jobs: Records
    counts: Ints
    """Those of `eventloop`."""
    queue: Records
    """Events to come, as a heap."""
    ends: Floats
    """Of the half segments of those that have been awake."""
    moved: Places
    """Tasks whose bytes have begun to move since rates were solved …"""
    changed: Places
    """… and links that bytes have left."""
    wide: Places
    """The links of a try …"""
    trial: Records
    """… its flows …"""
    loaded: Records
    """… their full links …"""
    stops: Records
    """… when they stop, as a heap …"""
    stop: Places
    """… and which flows stop now."""
    woken: Places
    """Tasks that wake now."""
    stack: Places
    """Nodes that have ended, of which others are to begin."""


class SlotFlows(NamedTuple):
    """The flows of the slots of a graph, whatever else takes time."""

    first: Ints
    """By slot, where its flows begin among `numbers`."""
    numbers: Ints
    """As in LoopState."""
    flows: Records
    loads: Records


class LoopJob(NamedTuple):
    """A job as the loop plays it."""

    graph: StepGraph
    kinds: SlotKinds
    """Of its slots …"""
    flows: SlotFlows
    links: LinkUse
    seconds: Floats
    """Of each node, as if alone."""
    slowing: Slowing = NO_SLOWING
    """What communication takes from the computation beside it."""

    @classmethod
    def of(cls, graph: StepGraph, tasks: Tasks, links: LinkUse, slowing: Slowing) -> LoopJob:
        """Return a job by its graph and tasks, which links these hold, and what they lose."""
        return cls(graph, tasks.slot_kinds, tasks.once_of_slots(slot_flows), links, tasks.seconds, slowing)

    @property
    def waiting(self) -> Ints:
        """The nodes whose ends are not known when they begin: that hold links, or take from passes beside them, or lose."""
        found = np.zeros(len(self.graph), bool)
        for some in (self.links.node, self.slowing.takers.node, self.slowing.slowed.node):
            found[some] = True
        return np.flatnonzero(found)


def loop_state(capacity: Floats, jobs: Sequence[LoopJob]) -> LoopState:
    """Return the records of jobs. capacity: bytes/s of each link that can be short."""
    waiting = [job.waiting for job in jobs]
    nodes = offsets(np.array([len(job.graph) for job in jobs]))
    tasks = offsets(np.array([len(own) + 1 for own in waiting]))
    slots = offsets(np.array([len(job.kinds.of) for job in jobs]))
    ranks = offsets(np.array([job.graph.ranks for job in jobs]))
    numbers = offsets(np.array([len(job.flows.numbers) for job in jobs]))
    flows = offsets(np.array([len(job.flows.flows) for job in jobs]))
    loads = offsets(np.array([len(job.flows.loads) for job in jobs]))
    each = [
        _records_of(*one)
        for one in zip(jobs, waiting, nodes.tolist(), tasks.tolist(), slots.tolist(), ranks.tolist(), strict=False)
    ]

    def all_of(name: str) -> Any:
        return np.concatenate([one[name] for one in each])

    def shifted(tables: Iterable[Records], by: Ints, *names: str) -> Records:
        """Return tables one after the other, in which these columns are places in tables that stand so too."""
        found = np.concatenate(list(tables))
        for name in names:
            found[name] += np.repeat(by[:-1], [len(one) for one in tables]).astype(np.int32)
        return found

    segments = offsets(np.array([len(one["segments"]) for one in each]))
    kinds = shifted([one["kinds"] for one in each], segments, "segment", "segment_end")
    kinds["flow"] += np.repeat(numbers[:-1], np.diff(slots)).astype(np.int32)
    which = [np.where(job.flows.numbers < 0, -1, job.flows.numbers + by) for job, by in zip(jobs, flows, strict=False)]
    nodes_of_all, links, link = int(nodes[-1]), len(capacity), all_of("link")
    count, rows, half = int(tasks[-1]), len(link), chained(one["half"] for one in each)
    own = _records(TASK, count, waits=-1, job=np.repeat(np.arange(len(jobs)), np.diff(tasks)))
    table = _records(JOB, len(jobs), first=nodes[:-1], last=nodes[1:], idle=1)
    table["first_task"], table["last_task"] = tasks[:-1], tasks[1:] - 1
    return LoopState(
        a=all_of("a"),
        b=all_of("b"),
        start=chained(one["start"] for one in each),
        after=all_of("after"),
        seconds=np.concatenate([job.seconds for job in jobs]),
        task=all_of("task"),
        missing=np.full(nodes_of_all, 2, np.int8),
        end=np.zeros(nodes_of_all),
        node=all_of("node"),
        kind=all_of("kind"),
        row=chained(one["row"] for one in each),
        take=chained(one["take"] for one in each),
        loss=chained(one["loss"] for one in each),
        half=half,
        link=link,
        share=all_of("share"),
        kinds=kinds,
        tasks=own,
        rows=np.empty(rows, ROW),
        links=_records(LINK, links, held=-1, first=offsets(np.bincount(link, minlength=links))[:-1]),
        limit=capacity.astype(float),
        used=np.zeros(links),
        full=np.zeros(links, bool),
        crossings=np.empty(rows, CROSSING),
        ranks=_records(RANK, int(ranks[-1]), late=-1),
        takes=all_of("takes"),
        losses=all_of("losses"),
        longer=np.zeros(nodes_of_all),
        segments=all_of("segments"),
        numbers=np.concatenate(which),
        flows=shifted([job.flows.flows for job in jobs], loads, "load", "load_end"),
        loads=np.concatenate([job.flows.loads for job in jobs]),
        jobs=table,
        counts=np.zeros(COUNTERS, np.int64),
        queue=np.empty(count, EVENT),
        ends=np.empty(int(half[-1])),
        moved=_places(count),
        changed=_places(links),
        wide=_places(links),
        trial=np.empty(count, TRIAL),
        loaded=np.empty(rows, LOADED),
        stops=np.empty(links + count, STOP),
        stop=_places(count),
        woken=_places(count),
        stack=_places(nodes_of_all),
    )


def _records_of(job: LoopJob, waiting: Ints, first: int, first_task: int, slots: int, ranks: int) -> dict[str, Any]:
    """Return the columns of LoopState that a job has of its own, in the numbers of all jobs; what begins where, in its own.

    first …: of its nodes, tasks, slots and ranks among those of all jobs.
    """
    a, b, slot, after, start = (column.astype(np.int64) for column in (*job.graph.arrays, *job.graph.successors))
    count = len(waiting) + 1  # the last one stands for the step itself, and waits at no node
    number = np.full(len(a), -1, np.int32)
    number[waiting] = first_task + np.arange(len(waiting))
    begin = offsets(np.array([len(one.times.segments) for one in job.kinds.different], np.int64))
    linked = number[job.links.node] - first_task
    rows, halves = np.zeros((2, count), np.int64)
    rows[linked], halves[linked] = np.diff(job.links.row), 2 * np.diff(begin)[job.kinds.of[job.links.slot]]
    (taker, takes), (loser, losses) = (_beside(one, number) for one in (job.slowing.takers, job.slowing.slowed))
    return dict(  # noqa: C408 - keywords are the columns
        a=a + first,
        b=b + first,
        start=start,
        after=after[: start[-1]] + first,
        task=number,
        node=np.append(waiting, 0) + first,
        kind=np.append(slot[waiting], 0) + slots,
        row=offsets(rows),
        take=offsets(np.bincount(taker - first_task, minlength=count)),
        loss=offsets(np.bincount(loser - first_task, minlength=count)),
        half=offsets(halves),
        link=job.links.link.astype(np.int64),
        share=job.links.share,
        kinds=_records(
            KIND,
            len(job.kinds.of),
            segment=begin[job.kinds.of],
            segment_end=begin[job.kinds.of + 1],
            flow=job.flows.first,
        ),
        takes=_records(TAKE, len(taker), rank=takes.rank + ranks, sms=takes.share[:, 0], memory=takes.share[:, 1]),
        losses=_records(
            LOSS,
            len(loser),
            rank=losses.rank + ranks,
            task=loser,
            other=losses.share[:, 0],
            memory=losses.share[:, 1],
        ),
        segments=np.array([row for one in job.kinds.different for row in _segments(one.times)], SEGMENT),
    )


def _beside(rows: BesideRows, number: Places) -> tuple[Ints, BesideRows]:
    """Return the tasks of rows, in their order, and the rows in that; number: which task each node is."""
    order = np.argsort(rows.node, kind="stable")
    node = rows.node[order]
    return number[node].astype(np.int64), BesideRows(rows.rank[order], node, rows.share[order])


def _places(most: int) -> Places:
    """Return room for so many."""
    return np.empty(most, np.int32)


def _records(kind: np.dtype[np.void], count: int, **columns: Floats | Ints | float) -> Records:
    found = np.zeros(count, kind)
    for name, column in columns.items():
        found[name] = column
    return found


def _segments(one: Activity) -> Iterator[tuple[float, ...]]:
    ends = zip(one.ends[::2], one.ends[1::2], strict=True)
    for segment, both in zip(one.segments, ends, strict=True):
        yield segment.compute, segment.launched, segment.beside, segment.share, *both


def slot_flows(activities: Sequence[Activity]) -> SlotFlows:
    """Return the flows of slots, once for all that have the same on the same links."""
    first, numbers = [], list[int]()
    different: dict[tuple[int, int], int] = {}
    kept: list[tuple[Flow, Ints]] = []  # flows, and the links that are held with them
    for activity in activities:
        first.append(len(numbers))
        held = activity.peak_link_demand.links
        if not len(held):  # it is no task
            continue
        for flow in activity.flows:
            if flow is None:
                numbers.append(-1)
                continue
            number = different.setdefault((id(flow), id(held)), len(kept))
            if number == len(kept):
                kept.append((flow, held))
            numbers.append(number)
    return SlotFlows(np.array(first, np.int64), np.array(numbers, np.int64), *_flows(kept))


def _flows(kept: Sequence[tuple[Flow, Ints]]) -> tuple[Records, Records]:
    """Return flows with the links that are held with them, and their loads."""
    place, link = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for flow, held in kept:
        place.append(np.arange(len(held)) if flow.links is held else np.searchsorted(held, flow.links))
        link.append(flow.links)
    load = offsets(np.array([len(flow.links) for flow, _ in kept], np.int64)).tolist()
    flows = [
        (one.latency, one.size, one.bound, one.idle, *ends) for ends, (one, _) in zip(pairwise(load), kept, strict=True)
    ]
    weight = np.concatenate([np.empty(0), *(flow.weights for flow, _ in kept)])
    loads = _records(LOAD, load[-1], place=np.concatenate(place), link=np.concatenate(link), weight=weight)
    return np.array(flows, FLOW), loads
