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

_NONE = 1e-14
"""A share that is none: what is left of sums of others."""
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


class Slowing(NamedTuple):
    """Which nodes of a graph take SMs and memory from which, by the times of its tasks."""

    takers: BesideRows
    """What communicates …"""
    slowed: BesideRows
    """… and what computes."""

    def __bool__(self) -> bool:
        return len(self.takers.node) > 0 and len(self.slowed.node) > 0

    def beside(self, starts: Floats, ends: Floats) -> tuple[Ints, Ints]:
        """Return nodes that lose while others take from them, and these, a row each, given when all nodes begin and end."""
        slowed, taking = [], []
        for rank in distinct(self.takers.rank).tolist():
            takers = self.takers.node[self.takers.rank == rank]
            losers = self.slowed.node[self.slowed.rank == rank]
            takers = takers[np.argsort(starts[takers], kind="stable")]
            over = np.maximum.accumulate(ends[takers])  # until when those that began so early take
            first = np.searchsorted(over, starts[losers], side="right")
            count = np.maximum(np.searchsorted(starts[takers], ends[losers]) - first, 0)
            loser = np.repeat(losers, count)
            taker = takers[np.repeat(first - np.cumsum(count) + count, count) + np.arange(len(loser))]
            some = ends[taker] > starts[loser]
            slowed.append(loser[some])
            taking.append(taker[some])
        return np.concatenate(slowed), np.concatenate(taking)


_NOBODY = BesideRows(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 2)))
NO_SLOWING = Slowing(_NOBODY, _NOBODY)


def slowing(graph: StepGraph, tasks: Tasks) -> Slowing:
    """Return what communication takes from the computation beside it in a graph."""
    shares = tasks.once(_shares)
    if not shares.any():
        return NO_SLOWING
    rank, node, _, task, *_ = graph.occurrences
    taken = shares[task]
    some = np.flatnonzero(taken.any(axis=1))
    passes = tasks.once(computing) & np.array([one.kind not in UPDATE for one in tasks.alike], bool)
    own = np.flatnonzero(passes[task] & np.isin(rank, rank[some]))
    if not len(own):
        return NO_SLOWING
    seconds = tasks.times.idle[graph.arrays[2][node[own]]]
    known = seconds > 0
    part = np.minimum(np.divide(tasks.compute[task[own]], seconds, out=np.zeros(len(own)), where=known), 1.0)
    memory = np.divide(tasks.memory[task[own]], seconds, out=np.zeros(len(own)), where=known)
    if not shares[:, 1].any():  # all lose alike
        memory[:] = 0.0
    memory = np.minimum(memory, part)
    takers = BesideRows(rank[some], node[some], taken[some])
    return Slowing(takers, BesideRows(rank[own], node[own], np.stack([part - memory, memory], axis=1)))


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
    return min(asked, MOST) if asked > _NONE else 0.0


def _inner(part: Losses, share: Losses) -> float:
    return part[0] * share[0] + part[1] * share[1]


def _by_node(rows: BesideRows) -> dict[int, list[tuple[int, Losses]]]:
    found: dict[int, list[tuple[int, Losses]]] = {}
    for rank, node, share in zip(*(column.tolist() for column in rows), strict=True):
        found.setdefault(node, []).append((rank, (share[0], share[1])))
    return found
