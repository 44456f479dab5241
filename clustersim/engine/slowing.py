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
from collections.abc import Callable, Generator, Sequence
from functools import partial
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


class _RankBeside:
    """What is taken of a rank's SMs and memory, and the integrals of that."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env, self.changed = env, env.event()
        """Succeeds when another share is taken."""
        self.demand = self.taken = self.integral = (0.0, 0.0)
        self.time = 0.0

    def until_now(self) -> Losses:
        """Return the integrals up to now."""
        past, self.time = self.env.now - self.time, self.env.now
        self.integral = self.integral[0] + self.taken[0] * past, self.integral[1] + self.taken[1] * past
        return self.integral

    def take(self, share: Losses, sign: int) -> None:
        """Take a share of the rank, or give it back."""
        self.until_now()
        self.demand = sms, memory = self.demand[0] + sign * share[0], self.demand[1] + sign * share[1]
        # kernels that memory bounds lose the larger of both shares; of neither can all be taken
        self.taken = _taken(sms), _taken(max(sms, memory))
        changed, self.changed = self.changed, self.env.event()
        changed.succeed()

    def make_up(self, part: Losses, left: float) -> Generator[simpy.Event, object, None]:
        """Compute what a pass has lost, `left` seconds alone, at the speed that what is taken leaves it."""
        while left > 0.0:
            begun, speed = self.env.now, 1.0 - _inner(part, self.taken)
            over = self.env.timeout(left / speed)
            yield over | self.changed
            if over.processed:  # and not by what is left, which may be a last digit
                return
            left -= speed * (self.env.now - begun)


class SlowedFabric:
    """Makes computation longer in SimPy's time while communication of its rank takes SMs and memory from it."""

    def __init__(self, env: simpy.Environment, slowing: Slowing) -> None:
        self.env = env
        self.ranks: dict[int, _RankBeside] = defaultdict(lambda: _RankBeside(env))
        self.takes, self.loses = _by_node(slowing.takers), _by_node(slowing.slowed)
        self.more: dict[int, float] = {}
        """By node, how much longer it took."""

    def begin(self, node: int, done: Done) -> Done:
        """Begin a node, and return what is to be called when it would be over alone; `done` is called when it is over."""
        takes = [(self.ranks[rank], share) for rank, share in self.takes.get(node, ())]
        passes = [(self.ranks[rank], part) for rank, part in self.loses.get(node, ())]
        for rank, share in takes:
            rank.take(share, 1)
        before = [rank.until_now() for rank, _ in passes]

        def over(segment_ends: list[float] | None) -> None:
            for rank, share in takes:
                rank.take(share, -1)
            lost = []
            for (rank, part), (sms, memory) in zip(passes, before, strict=True):
                now = rank.until_now()
                lost.append((rank, part, _inner(part, (now[0] - sms, now[1] - memory))))
            late = [self.env.process(rank.make_up(part, left)) for rank, part, left in lost if left > 0.0]
            if late:
                self.env.process(self.made_up(node, late, partial(done, segment_ends)))
            else:
                done(segment_ends)

        return over

    def made_up(
        self, node: int, late: Sequence[simpy.Process], follows: Callable[[], None]
    ) -> Generator[simpy.Event, object, None]:
        """End a node when it has made up for what it lost on all of its ranks."""
        since = self.env.now
        yield self.env.all_of(late)
        self.more[node] = self.env.now - since
        follows()


def _shares(tasks: Sequence[Task]) -> Floats:
    """Return which shares of SMs and of memory's bandwidth each task (n,) takes from the passes beside it, (n, 2)."""
    nothing = 0.0, 0.0
    known = {
        times: max(((one.share, one.memory) for one in times.segments), default=nothing)
        for times in {task.activity.times for task in tasks}
    }
    return np.array([known[one.activity.times] if one.stream not in (COMPUTE, HOST) else nothing for one in tasks])


def _taken(demand: float) -> float:
    return min(demand, MOST) if demand > _NONE else 0.0


def _inner(part: Losses, share: Losses) -> float:
    return part[0] * share[0] + part[1] * share[1]


def _by_node(rows: BesideRows) -> dict[int, list[tuple[int, Losses]]]:
    found: dict[int, list[tuple[int, Losses]]] = {}
    for rank, node, share in zip(*(column.tolist() for column in rows), strict=True):
        found.setdefault(node, []).append((rank, (share[0], share[1])))
    return found
