"""Computation slowed by communication: while both run, it proceeds with the remaining share of its GPU.

A collective or message on a separate stream takes a share of its rank's SMs while it runs, and a share of the memory bandwidth.
Memory-bound kernels lose the larger of the two, others the share of SMs. With S and B the integrals of these losses over time, m
and f the parts of a pass in memory-bound kernels and others, a pass that began at t and would end at n ends at e, where

    e = n + f · (S(e) - S(t)) + m · (B(e) - B(t)).

The computation of a pass is taken to be spread evenly over it. Ranks in lock-step end with the slowest of them. Here are the
constants, and the same for SimPy; the loop has it in its own functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial

import simpy

from clustersim.engine.fabric import Done
from clustersim.engine.times import Losses

LEAST = 1e-14
"""Smaller shares are rounding errors of sums."""
MOST = 1 - 1 / 128
"""Largest share of a GPU's SMs and of its memory's bandwidth that may be taken at one time: a pass keeps about one SM."""
Shares = tuple[float, float]


class _RankBeside:
    """Shares of a rank's SMs and memory bandwidth in use by communication, and their integrals over time."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env, self.changed = env, env.event()
        """Succeeds when another share is taken."""
        self.demand = self.taken = self.integral = (0.0, 0.0)
        self.time = 0.0

    def until_now(self) -> Shares:
        """Return the integrals up to now."""
        past, self.time = self.env.now - self.time, self.env.now
        self.integral = self.integral[0] + self.taken[0] * past, self.integral[1] + self.taken[1] * past
        return self.integral

    def take(self, share: Shares, sign: int) -> None:
        """Take a share of the rank (sign 1), or return it (-1)."""
        self.until_now()
        self.demand = sms, memory = self.demand[0] + sign * share[0], self.demand[1] + sign * share[1]
        # kernels that memory bounds lose the larger of both shares; of neither can all be taken
        self.taken = _taken(sms), _taken(max(sms, memory))
        changed, self.changed = self.changed, self.env.event()
        changed.succeed()

    def make_up(self, part: Shares, left: float) -> Generator[simpy.Event, object, None]:
        """Compute a pass's lost part, `left` seconds when alone, at the remaining speed."""
        while left > 0.0:
            begun, speed = self.env.now, 1.0 - _inner(part, self.taken)
            over = self.env.timeout(left / speed)
            yield over | self.changed
            if over.processed:  # and not by what is left, which may be a last digit
                return
            left -= speed * (self.env.now - begun)


class SlowedFabric:
    """Extends computation in SimPy's time while communication takes SMs and memory bandwidth of its rank."""

    def __init__(self, env: simpy.Environment, losses: Losses) -> None:
        self.env, self.losses = env, losses
        self.ranks: dict[int, _RankBeside] = defaultdict(lambda: _RankBeside(env))
        self.more: dict[int, float] = {}
        """{first of the events that run together: seconds by which they took longer}"""

    def begin(self, event: int, tasks: Iterable[tuple[int, int]], kind: Sequence[int], idle: float, done: Done) -> Done:
        """Start an event of tasks (task, rank). Return the function to call when it would end alone.

        kind: of each task. idle: seconds of the event if nothing slows it. done: called at its end.
        """
        takes, passes = [], []
        for task, rank in tasks:
            own, which = self.ranks[rank], kind[task]
            if self.losses.taking[task]:
                takes.append((own, (float(self.losses.sms[which]), float(self.losses.memory[which]))))
            if self.losses.losing[task] and idle:
                part = min(float(self.losses.compute[which]) / idle, 1.0)
                memory = min(float(self.losses.bound[which]) / idle, part)
                passes.append((own, (part - memory, memory)))
        for rank_beside, share in takes:
            rank_beside.take(share, 1)
        before = [own.until_now() for own, _ in passes]

        def over(segment_ends: list[float] | None) -> None:
            for rank_beside, share in takes:
                rank_beside.take(share, -1)
            lost = []
            for (rank_beside, part), (sms, memory) in zip(passes, before, strict=True):
                now = rank_beside.until_now()
                lost.append((rank_beside, part, _inner(part, (now[0] - sms, now[1] - memory))))
            late = [self.env.process(own.make_up(part, left)) for own, part, left in lost if left > 0.0]
            if late:
                self.env.process(self.made_up(event, late, partial(done, segment_ends)))
            else:
                done(segment_ends)

        return over

    def made_up(
        self, event: int, late: Sequence[simpy.Process], follows: Callable[[], None]
    ) -> Generator[simpy.Event, object, None]:
        """End an event when all its ranks have made up for their losses."""
        since = self.env.now
        yield self.env.all_of(late)
        self.more[event] = self.env.now - since
        follows()


def _taken(demand: float) -> float:
    """Return the share that communication takes for a demand: at most MOST, and zero up to LEAST."""
    return min(demand, MOST) if demand > LEAST else 0.0


def _inner(part: Shares, share: Shares) -> float:
    """Return the scalar product of two pairs of shares, each of SMs and of memory bandwidth."""
    return part[0] * share[0] + part[1] * share[1]
