"""Computation that communication beside it slows: as long as both run, it goes at the part of its GPU that is left.

A collective or message on a stream of its own takes a share of its rank's SMs while it runs, and a share of its memory's
bandwidth. Kernels that memory bounds lose the larger of both, others that of the SMs. With S and B the integrals of these
losses over time, m and f the parts of a pass that are kernels which memory bounds and others, a pass that began at t and would
end at n ends at e, where

    e = n + f · (S(e) - S(t)) + m · (B(e) - B(t)).

The computation of a pass is taken to be spread evenly over it. Ranks in lock-step end with the slowest of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import simpy

from clustersim.arrays import Floats, Ints, distinct
from clustersim.engine.fabric import HOST
from clustersim.engine.graph import StepGraph
from clustersim.engine.program import COMPUTE, UPDATE, Task, computing
from clustersim.engine.tasks import Tasks

_SAME = 1e-14  # of the step, by which its times may still change when they are taken to be found
ROUNDS = 100
"""Each round is right for longer than the one before, and leaves a share of the change elsewhere: some ten are enough."""
MOST = 1 - 1 / 128
"""Of a GPU's SMs and of its memory's bandwidth that may be taken at one time: a pass keeps about one SM."""
Done = Callable[[list[float] | None], None]
Losses = tuple[float, float]


class BesideRows(NamedTuple):
    """Ranks and nodes, a row each, and two shares: what communication takes of SMs and of the memory's bandwidth, or the parts
    of a pass that are kernels which memory does not bound, and which it does."""

    rank: Ints
    node: Ints
    share: Floats


_NOBODY = BesideRows(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 2)))


class Slowing:
    """Who takes what from whom in a graph, by the times of its tasks. takers: what communicates; slowed: what computes."""

    def __init__(self, graph: StepGraph, tasks: Tasks) -> None:
        self.nodes, shares = len(graph.slot), tasks.once(_shares)
        if not shares.any():
            self.takers = self.slowed = _NOBODY
            return
        rank, node, _, task, *_ = graph.occurrences
        taken = shares[task]
        some = np.flatnonzero(taken.any(axis=1))
        self.takers = BesideRows(rank[some], node[some], taken[some])
        passes = tasks.once(computing) & np.array([one.kind not in UPDATE for one in tasks.alike], bool)
        own = np.flatnonzero(passes[task] & np.isin(rank, rank[some]))
        seconds = tasks.times.idle[graph.arrays[2][node[own]]]
        known = seconds > 0
        part = np.minimum(np.divide(tasks.compute[task[own]], seconds, out=np.zeros(len(own)), where=known), 1.0)
        memory = np.divide(tasks.memory[task[own]], seconds, out=np.zeros(len(own)), where=known)
        if not shares[:, 1].any():  # all lose alike
            memory[:] = 0.0
        memory = np.minimum(memory, part)
        self.slowed = BesideRows(rank[own], node[own], np.stack([part - memory, memory], axis=1))

    def __bool__(self) -> bool:
        return len(self.takers.node) > 0 and len(self.slowed.node) > 0

    def more(self, seconds: Floats, starts: Floats, ends: Floats) -> Floats:
        """Return by how much longer than `seconds` each node takes, given when all begin, and when what communicates ends."""
        found = np.zeros(self.nodes)
        takers, slowed = self.takers, self.slowed
        for rank in distinct(takers.rank).tolist():
            mine, own = takers.rank == rank, slowed.rank == rank
            time = np.concatenate([starts[takers.node[mine]], ends[takers.node[mine]]])
            order = np.argsort(time, kind="stable")
            asked = np.cumsum(np.concatenate([takers.share[mine], -takers.share[mine]])[order], axis=0)
            level, time = np.minimum(np.maximum.accumulate(asked, axis=1), MOST), time[order]
            taken = np.zeros((len(time), 2))
            np.cumsum(level[:-1] * np.diff(time)[:, None], axis=0, out=taken[1:])
            for part in np.unique(slowed.share[own], axis=0):
                nodes = slowed.node[own & (slowed.share == part).all(axis=1)]
                begun, alone, lost = starts[nodes], starts[nodes] + seconds[nodes], taken @ part
                done = alone - np.interp(begun, time, lost)
                np.maximum.at(found, nodes, _inverse(done, time - lost, time) - alone)
        return found

    def found(
        self, seconds: Floats, ends: Callable[[Floats], Floats], starts: Callable[[Floats], Floats]
    ) -> Floats | None:
        """Return by how much longer each node takes than `seconds`, None if the rounds do not end.

        ends: of nodes, by what they take; starts: by their ends.
        """
        more = np.zeros(len(seconds))
        for _ in range(ROUNDS):
            over = ends(seconds + more)
            before, more = more, self.more(seconds, starts(over), over)
            if np.abs(more - before).max(initial=0.0) <= _SAME * over.max(initial=0.0):
                return more
        return None


def _inverse(value: Floats, values: Floats, times: Floats) -> Floats:
    """Return when a function has a value that has these at these times, grows between them, and by 1 a second outside."""
    before, after = np.minimum(value - values[0], 0.0), np.maximum(value - values[-1], 0.0)
    found: Floats = np.interp(value, values, times) + before + after
    return found


class _LatePass:
    """A pass that would be over on a rank, had it lost nothing: the seconds that are left to do alone."""

    __slots__ = ("left", "node", "part", "version")

    def __init__(self, node: int, part: Losses, left: float) -> None:
        self.node, self.part, self.left = node, part, left
        self.version = 0


class _RankBeside:
    """What is taken of a rank's SMs and memory, its integrals, and the passes that make up for what they have lost."""

    __slots__ = ("asked", "integral", "late", "share", "time")

    def __init__(self) -> None:
        self.asked = self.share = self.integral = (0.0, 0.0)
        self.time = 0.0
        self.late: dict[int, _LatePass] = {}

    def until(self, now: float) -> Losses:
        """Return the integrals up to now."""
        past, self.time = now - self.time, now
        for one in self.late.values():
            one.left -= (1.0 - _inner(one.part, self.share)) * past
        self.integral = self.integral[0] + self.share[0] * past, self.integral[1] + self.share[1] * past
        return self.integral


class SlowedFabric:
    """Makes computation longer in SimPy's time while communication of its rank takes SMs and memory from it."""

    def __init__(self, env: simpy.Environment, slowing: Slowing) -> None:
        self.env = env
        self.ranks: dict[int, _RankBeside] = defaultdict(_RankBeside)
        self.takes, self.loses = _by_node(slowing.takers), _by_node(slowing.slowed)
        self.more: dict[int, float] = {}
        """By node, how much longer it took."""
        self.waiting: dict[int, tuple[int, float, Callable[[], None]]] = {}
        """Of nodes that make up for it: of how many ranks, since when, and what follows."""

    @property
    def nodes(self) -> Iterable[int]:
        """The nodes that take or lose."""
        return self.takes.keys() | self.loses.keys()

    def begin(self, node: int, done: Done) -> Done:
        """Begin a node, and return what is to be called when it would be over alone; `done` is called when it is over."""
        now, loses = self.env.now, self.loses.get(node, ())
        for rank, share in self.takes.get(node, ()):
            self.change(self.ranks[rank], share, 1)
        passes = [(self.ranks[rank], part, self.ranks[rank].until(now)) for rank, part in loses]

        def over(segment_ends: list[float] | None) -> None:
            for number, share in self.takes.get(node, ()):
                self.change(self.ranks[number], share, -1)
            late = []
            for rank, part, before in passes:
                now = rank.until(self.env.now)
                lost = _inner(part, (now[0] - before[0], now[1] - before[1]))
                if lost > 0.0:
                    late.append((rank, part, lost))
            if not late:
                done(segment_ends)
                return
            self.waiting[node] = len(late), self.env.now, lambda: done(segment_ends)
            for rank, part, lost in late:
                one = rank.late[node] = _LatePass(node, part, lost)
                self.schedule(rank, one)

        return over

    def change(self, rank: _RankBeside, share: Losses, sign: int) -> None:
        """Take a share of a rank, or give it back."""
        rank.until(self.env.now)
        rank.asked = sms, memory = rank.asked[0] + sign * share[0], rank.asked[1] + sign * share[1]
        rank.share = _taken(sms), _taken(max(sms, memory))
        for one in rank.late.values():
            self.schedule(rank, one)

    def schedule(self, rank: _RankBeside, one: _LatePass) -> None:
        """Let a pass end when it has made up for what it lost, if nothing changes."""
        one.version += 1
        version = one.version
        seconds = max(one.left, 0.0) / (1.0 - _inner(one.part, rank.share))
        simpy.Timeout(self.env, seconds).callbacks.append(
            lambda _: self.made_up(rank, one) if one.version == version else None
        )

    def made_up(self, rank: _RankBeside, one: _LatePass) -> None:
        """End a pass on one of its ranks; it is over when all have."""
        rank.until(self.env.now)
        del rank.late[one.node]
        ranks, since, follows = self.waiting.pop(one.node)
        if ranks > 1:
            self.waiting[one.node] = ranks - 1, since, follows
            return
        self.more[one.node] = self.env.now - since
        follows()


def _shares(tasks: Sequence[Task]) -> Floats:
    """Return which shares of SMs and of memory's bandwidth each task (n,) takes from the passes beside it, (n, 2)."""
    nothing = 0.0, 0.0
    known = {
        times: max(((one.share, one.memory) for one in times.segments), default=nothing)
        for times in {task.activity.times for task in tasks}
    }
    return np.array([known[one.activity.times] if one.stream not in (COMPUTE, HOST) else nothing for one in tasks])


def _taken(asked: float) -> float:
    return min(asked, MOST) if asked > _SAME else 0.0


def _inner(part: Losses, share: Losses) -> float:
    return part[0] * share[0] + part[1] * share[1]


def _by_node(rows: BesideRows) -> dict[int, list[tuple[int, Losses]]]:
    found: dict[int, list[tuple[int, Losses]]] = {}
    for rank, node, share in zip(*(column.tolist() for column in rows), strict=True):
        found.setdefault(node, []).append((rank, (share[0], share[1])))
    return found
