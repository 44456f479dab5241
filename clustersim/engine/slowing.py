"""Computation slowed by communication: while both run, it proceeds with the remaining share of its GPU.

A collective or message on a separate stream takes a share of its rank's SMs while it runs, and a share of the memory bandwidth.
Memory-bound kernels lose the larger of the two, others the share of SMs. With S and B the integrals of these losses over time, m
and f the parts of a pass in memory-bound kernels and others, a pass that began at t and would end at n ends at e, where

    e = n + f · (S(e) - S(t)) + m · (B(e) - B(t)).

The computation of a pass is assumed to be spread evenly over it. Ranks in lock-step end with the slowest of them. This file has
the constants and the processes of SimPy; `_loop.c` has functions of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial

import simpy

from clustersim.engine.fabric import Done
from clustersim.engine.times import Losses

LEAST = 1e-14
"""Shares up to this are rounding errors of sums, and count as 0."""
MOST = 1 - 1 / 128
"""Largest share of a GPU's SMs, and of its memory bandwidth, that communication takes at one time: a pass keeps about one SM."""
Shares = tuple[float, float]
"""(value for kernels that are not memory-bound, value for memory-bound ones): a share of SMs and one of memory bandwidth, the
parts of a pass in such kernels, or the integrals of the shares that they lose, in seconds."""


class _RankShares:
    """Shares of a rank's SMs and memory bandwidth that communication takes, and their integrals over time.

    demand: sums of the requested shares. taken: shares that computation loses. integral: integrals of `taken` up to `time`.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env, self.changed = env, env.event()
        """Event of the next change of `taken`."""
        self.demand = self.taken = self.integral = (0.0, 0.0)
        self.time = 0.0

    def until_now(self) -> Shares:
        """Return the integrals of `taken` from the start of the simulation to now, in seconds."""
        past, self.time = self.env.now - self.time, self.env.now
        self.integral = self.integral[0] + self.taken[0] * past, self.integral[1] + self.taken[1] * past
        return self.integral

    def take(self, share: Shares, sign: int) -> None:
        """Add a task's shares of SMs and memory bandwidth to the demand (sign 1), or remove them (-1)."""
        self.until_now()
        self.demand = sms, memory = self.demand[0] + sign * share[0], self.demand[1] + sign * share[1]
        # memory-bound kernels lose the larger of the two shares; a rest remains of SMs and of bandwidth
        self.taken = _taken(sms), _taken(max(sms, memory))
        changed, self.changed = self.changed, self.env.event()
        changed.succeed()

    def make_up(self, parts: Shares, left: float) -> Generator[simpy.Event, object, None]:
        """Compute what a pass has lost, `left` seconds at full speed, at the remaining speed, as a SimPy process.

        parts: parts of the pass in kernels that are not memory-bound and in memory-bound ones.
        """
        while left > 0.0:
            begun, speed = self.env.now, 1.0 - _inner(parts, self.taken)
            timer = self.env.timeout(left / speed)
            yield timer | self.changed
            if timer.processed:  # `left` may keep a rounding error
                return
            left -= speed * (self.env.now - begun)


class SlowedFabric:
    """Extends computation in SimPy's time while communication takes SMs and memory bandwidth of its rank."""

    def __init__(self, env: simpy.Environment, losses: Losses) -> None:
        self.env, self.losses = env, losses
        self.ranks: dict[int, _RankShares] = defaultdict(lambda: _RankShares(env))
        self.longer: dict[int, float] = {}
        """{first of the events that start together: seconds by which communication made them longer}"""

    def begin(self, event: int, tasks: Iterable[tuple[int, int]], kind: Sequence[int], idle: float, done: Done) -> Done:
        """Begin the activity that `tasks`, pairs (task, rank), run together. Return the function to call at its unslowed end.

        event: first of their events. kind: kind of each task, as in `Tasks.kind`. idle: seconds of the activity if nothing slows
        it. done: called when all ranks have made up for the computation that they lost.
        """
        takers, passes = [], []
        for task, rank in tasks:
            rank_state, task_kind = self.ranks[rank], kind[task]
            if self.losses.taking[task]:
                takers.append((rank_state, (float(self.losses.sms[task_kind]), float(self.losses.memory[task_kind]))))
            if self.losses.losing[task] and idle:
                part = min(float(self.losses.compute[task_kind]) / idle, 1.0)
                memory = min(float(self.losses.bound[task_kind]) / idle, part)
                passes.append((rank_state, (part - memory, memory)))
        for rank_state, share in takers:
            rank_state.take(share, 1)
        integrals = [rank_state.until_now() for rank_state, _ in passes]

        def end(segment_ends: list[float] | None) -> None:
            """Stop taking shares, and call `done` when the ranks have made up for what they lost."""
            for rank_state, share in takers:
                rank_state.take(share, -1)
            lost = []
            for (rank_state, part), (sms, memory) in zip(passes, integrals, strict=True):
                now = rank_state.until_now()
                lost.append((rank_state, part, _inner(part, (now[0] - sms, now[1] - memory))))
            delays = [self.env.process(rank_state.make_up(part, left)) for rank_state, part, left in lost if left > 0.0]
            if delays:
                self.env.process(self._end_late(event, delays, partial(done, segment_ends)))
            else:
                done(segment_ends)

        return end

    def _end_late(
        self, event: int, delays: Sequence[simpy.Process], follows: Callable[[], None]
    ) -> Generator[simpy.Event, object, None]:
        """Call `follows` when all processes `delays` have ended, and record the delay of the event, as a SimPy process."""
        since = self.env.now
        yield self.env.all_of(delays)
        self.longer[event] = self.env.now - since
        follows()


def _taken(demand: float) -> float:
    """Return the share that communication takes for a demand: at most MOST, and 0 for demands up to LEAST."""
    return min(demand, MOST) if demand > LEAST else 0.0


def _inner(parts: Shares, share: Shares) -> float:
    """Return the scalar product of two pairs: the part of a pass, or the seconds of it, that is lost."""
    return parts[0] * share[0] + parts[1] * share[1]
