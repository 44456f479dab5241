"""Transfers as fluids on shared links, in SimPy's time.

An `Activity` alternates computation with transfers. While the bounds of everything that holds a link fit into it, nothing
can be slowed down, so an activity is one time-out, however many transfers it has. When a newcomer could overfill one of
its links, the activities that hold that link are woken: each is found at the point it has reached and goes on transfer by
transfer, with max-min fair rates solved anew for the connected component of every change. Both ways give the same times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

import numpy as np
import simpy

from clustersim.engine.maxmin import Floats, Ints, solve

Loads = tuple[tuple[int, float], ...]

_FITS = 1 + 1e-9
_SAME = 1e-12  # relative change of a rate that is no change
_MANY = 64  # with more transfers under way, all rates are solved at once: to find the touched part would take longer
_LAST = 2  # SimPy priority: after everything else that happens at the same time


class Move(NamedTuple):
    """One phase of a transfer: `latency` seconds, then `size` bytes at no more than `bound` bytes/s.

    `loads` are (link, bytes over the link for each byte of `size`); links that can never be short are left out.
    """

    kind: str
    latency: float
    size: float
    bound: float
    loads: tuple[tuple[int, float], ...]

    @property
    def idle(self) -> float:
        """Seconds on an idle fabric."""
        return self.latency + (self.size / self.bound if self.size else 0.0)


class Segment(NamedTuple):
    """`compute` seconds, then one move or none."""

    compute: float
    move: Move | None


Carried = dict[tuple[tuple[str, str, str], int], float]
"""Bytes by ((family, op, algorithm), group cell)."""


class Activity:
    """A fixed sequence of segments that can be started any number of times.

    carried: bytes of the collectives and messages inside, for the link report.
    """

    __slots__ = ("carried", "compute", "ends", "idle", "links", "segments")

    NONE: ClassVar[Activity]

    def __init__(self, segments: Iterable[Segment], carried: Carried | None = None) -> None:
        self.segments = tuple(segments)
        self.carried = carried or {}
        self.compute = sum(s.compute for s in self.segments)
        self.ends: list[float] = []  # idle time at which each segment's computation and move end
        now = 0.0
        peak: dict[int, float] = {}
        for compute, move in self.segments:
            now += compute
            self.ends.append(now)
            if move is not None:
                now += move.idle
                for link, weight in move.loads:
                    peak[link] = max(peak.get(link, 0.0), move.bound * weight)
            self.ends.append(now)
        self.idle = now
        self.links = peak


Activity.NONE = Activity(())


class _Run:
    """An activity under way. `index` counts half segments: even computes, odd moves; -1 while it sleeps."""

    __slots__ = (
        "activity",
        "done",
        "index",
        "lands",
        "loads",
        "marks",
        "rate",
        "remaining",
        "since",
        "started",
        "version",
    )

    def __init__(self, activity: Activity, started: float, done: Callable[[list[float] | None], None]) -> None:
        self.activity, self.started, self.done = activity, started, done
        self.index = -1
        self.marks: list[float] | None = None  # when each half segment ended, once awake
        self.version = 0
        self.rate = 0.0
        self.remaining = 0.0
        self.since = 0.0
        self.lands = float("inf")
        self.loads: tuple[tuple[int, float], ...] = ()


class Fabric:
    """The links of a cluster. capacity: bytes/s of each link that can be short."""

    def __init__(self, env: simpy.Environment, capacity: Iterable[float]) -> None:
        self.env = env
        self.capacity = list(capacity)
        self.limit = [c * _FITS for c in self.capacity]
        self.limits = np.array(self.capacity)
        self.reserved = [0.0] * len(self.capacity)
        self.asleep = np.zeros(len(self.capacity))  # the part of `reserved` that sleeping activities hold
        self.moving: dict[_Run, None] = {}
        self.armed = 0
        self.arrays: dict[int, tuple[Loads, Ints, Floats]] = {}
        self.holders: list[dict[_Run, None]] = [{} for _ in self.capacity]
        self.flowing: list[dict[_Run, None]] = [{} for _ in self.capacity]
        self.dirty: set[int] = set()
        self.solves = 0

    def start(self, activity: Activity, done: Callable[[list[float] | None], None]) -> None:
        """Start `activity` now; call `done` at its end with the ends of its half segments (None: as if idle)."""
        if not activity.links:
            self._after(activity.idle, lambda: done(None))
            return
        run = _Run(activity, self.env.now, done)
        tight = [link for link, peak in activity.links.items() if self.reserved[link] + peak > self.limit[link]]
        for link in tight:
            for other in [r for r in self.holders[link] if r.index < 0]:
                self._wake(other)
        for link, peak in activity.links.items():
            self.reserved[link] += peak
            self.holders[link][run] = None
        if tight:
            run.marks = []
            self._enter(run, 0)
        else:
            self._rest(run, 1.0)
            self._after(activity.idle, lambda: self._finish(run) if run.index < 0 else None)

    def _after(self, delay: float, call: Callable[[], None]) -> None:
        event = simpy.Timeout(self.env, delay)
        event.callbacks.append(lambda _: call())

    def _rest(self, run: _Run, sign: float) -> None:
        """Add what a run holds to what sleepers hold, or with sign -1 take it away."""
        for link, peak in run.activity.links.items():
            self.asleep[link] += sign * peak

    def _finish(self, run: _Run) -> None:
        if run.index < 0:
            self._rest(run, -1.0)
        for link, peak in run.activity.links.items():
            del self.holders[link][run]
            self.reserved[link] = self.reserved[link] - peak if self.holders[link] else 0.0
        run.done(run.marks)

    def _wake(self, run: _Run) -> None:
        """Put a sleeping run where it would be by now and let it go on half segment by half segment."""
        self._rest(run, -1.0)
        elapsed = self.env.now - run.started
        ends = run.activity.ends
        index = next((i for i, end in enumerate(ends) if end > elapsed), len(ends) - 1)
        run.marks = [run.started + end for end in ends[:index]]
        begun = ends[index - 1] if index else 0.0
        self._enter(run, index, elapsed - begun)

    def _enter(self, run: _Run, index: int, gone: float = 0.0) -> None:
        """Begin half segment `index`, of which `gone` seconds have already passed at the idle rate."""
        if index == len(run.activity.ends):
            self._finish(run)
            return
        run.index = index
        segment = run.activity.segments[index // 2]
        if index % 2 == 0:
            self._later(run, max(segment.compute - gone, 0.0), lambda: self._end(run))
            return
        move = segment.move
        if move is None or not move.size:
            self._later(run, max((move.latency if move else 0.0) - gone, 0.0), lambda: self._end(run))
            return
        run.remaining = move.size - max(gone - move.latency, 0.0) * move.bound
        if gone >= move.latency:
            self._flow(run, move)
        else:
            self._later(run, move.latency - gone, lambda: self._flow(run, move))

    def _later(self, run: _Run, delay: float, call: Callable[[], None]) -> None:
        run.version += 1
        version = run.version
        self._after(delay, lambda: call() if run.version == version else None)

    def _end(self, run: _Run) -> None:
        assert run.marks is not None
        run.marks.append(self.env.now)
        self._enter(run, run.index + 1)

    def _flow(self, run: _Run, move: Move) -> None:
        run.loads, run.rate, run.since, run.lands = move.loads, 0.0, self.env.now, float("inf")
        if not move.loads:
            self._later(run, run.remaining / move.bound, lambda: self._end(run))
            return
        self.moving[run] = None
        for link, _ in move.loads:
            self.flowing[link][run] = None
        self._touch(move.loads)

    def _land(self, run: _Run) -> None:
        del self.moving[run]
        for link, _ in run.loads:
            del self.flowing[link][run]
        self._touch(run.loads)
        self._end(run)

    def _touch(self, loads: Iterable[tuple[int, float]]) -> None:
        """Solve the touched links once, after all that happens at this time."""
        if not self.dirty:
            event = simpy.Event(self.env)
            event._ok, event._value = True, None
            event.callbacks.append(lambda _: self._solve())
            self.env.schedule(event, priority=_LAST)  # type: ignore[arg-type]
        self.dirty.update(link for link, _ in loads)

    def _solve(self) -> None:
        self.solves += 1
        runs = list(self.moving) if len(self.moving) > _MANY else self._component()
        self.dirty.clear()
        now = self.env.now
        for run, rate in zip(runs, self._rates(runs), strict=True):
            if abs(rate - run.rate) > _SAME * run.rate:
                run.remaining -= run.rate * (now - run.since)
                run.rate, run.since = rate, now
                run.lands = now + max(run.remaining, 0.0) / rate
        self._arm()

    def _arm(self) -> None:
        """Set the one timer of all moving transfers to the first that lands."""
        self.armed += 1
        if self.moving:
            version, first = self.armed, min(run.lands for run in self.moving)
            self._after(max(first - self.env.now, 0.0), lambda: self._due(first) if self.armed == version else None)

    def _due(self, time: float) -> None:
        for run in [run for run in self.moving if run.lands <= time]:
            self._land(run)

    def _rates(self, runs: list[_Run]) -> list[float]:
        """Return the max-min fair rates of what flows together, on what the sleeping activities leave of the links."""
        if not runs:
            return []
        parts = [self._loads(run) for run in runs]
        variable = np.repeat(np.arange(len(runs)), [len(links) for _, links, _ in parts])
        links, place = np.unique(np.concatenate([links for _, links, _ in parts]), return_inverse=True)
        weight = np.concatenate([weights for _, _, weights in parts])
        bound = np.array([self._move(run).bound for run in runs])
        rates: list[float] = solve(variable, place, weight, bound, self.limits[links] - self.asleep[links]).tolist()
        return rates

    def _loads(self, run: _Run) -> tuple[Loads, Ints, Floats]:
        """Return the loads of a run as arrays, made once for each move; the loads are kept so that their id stays theirs."""
        key = id(run.loads)
        if key not in self.arrays:
            links, weights = zip(*run.loads, strict=True)
            self.arrays[key] = run.loads, np.array(links), np.array(weights)
        return self.arrays[key]

    def _component(self) -> list[_Run]:
        """Return what flows in the connected part of the fabric that has changed."""
        runs: dict[_Run, None] = {}
        links: set[int] = set()
        todo = sorted(self.dirty)
        while todo:
            link = todo.pop()
            if link in links:
                continue
            links.add(link)
            for run in self.flowing[link]:
                if run not in runs:
                    runs[run] = None
                    todo.extend(other for other, _ in run.loads)
        return list(runs)

    @staticmethod
    def _move(run: _Run) -> Move:
        move = run.activity.segments[run.index // 2].move
        assert move is not None
        return move
