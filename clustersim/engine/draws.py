"""Steps of one job whose GPUs compute faster or slower from step to step: one graph of all ranks, timed anew for each draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.engine.compile import Activities, Source, Speed, Work, plan
from clustersim.engine.fabric import Activity
from clustersim.engine.launching import Seconds
from clustersim.engine.player import Player
from clustersim.engine.record import Record
from clustersim.engine.tasks import Retimed, SlotTimes, TaskKinds
from clustersim.topology.model import Topology

_SAME = 1e-12


def drawn(
    work: Work, topology: Topology, factors: Iterable[Floats], player: Player, anew: bool = False
) -> Iterator[Record | None]:
    """Yield the step of a job for each of `factors`, which multiply the time that each GPU of the cluster computes (GPUs,).

    Every rank is played, as each has a speed of its own. anew: compile each draw, as its times decide where GPUs wait for
    hosts. None: the player cannot prove its times.
    """
    if anew:
        for one in factors:
            [planned] = plan([work], replace(topology, slowdown=topology.slowdown * one), fold=False)
            yield player.step(planned)
        return
    work = work._replace(apart=True)
    [planned] = plan([work], topology, fold=False)
    compiled = player.compiled(planned)
    slots = _slots(compiled.kinds, work.seconds)
    ranks, kinds, usual = len(work.gpus), topology.kind_of(work.gpus).tolist(), topology.slowdown[work.gpus]
    old = list(map(Speed, usual.tolist(), kinds, range(ranks)))
    for one in factors:
        slowdown = usual * one[work.gpus]
        made = compiled.kinds.making(work.seconds, dict(zip(old, map(Speed, slowdown.tolist(), kinds), strict=True)))
        times = None if slots is None else slots.times(slowdown)
        yield player.simulate(compiled, Retimed(compiled.kinds, made, times))


class _Slots(NamedTuple):
    """What slots take where it grows evenly with slowdowns: the most that one of its ranks does; rows of all kinds of slots."""

    base: Floats
    """Idle seconds, those before the first byte and after the last, of each rank that takes part (3, rows)."""
    slope: Floats
    """By how much each grows with the slowdown of that rank (3, rows)."""
    rank: Ints
    """The rank (rows,)."""
    start: Ints
    """Where the rows of each kind begin (kinds,)."""
    of: Ints
    """The kind of each slot of the graph."""

    def times(self, slowdown: Floats) -> SlotTimes:
        """Return what each slot takes when ranks take `slowdown` times as long (ranks,)."""
        each = self.base + self.slope * slowdown[self.rank]
        return SlotTimes(*np.maximum.reduceat(each, self.start, axis=1)[:, self.of])


class _Growth(NamedTuple):
    """How an activity grows with slowdown."""

    number: int
    """Of what ranks do alike."""
    base: Floats
    slope: Floats
    computing: tuple[int, ...]
    """Its segments that compute."""


def _slots(kinds: TaskKinds, seconds: Sequence[Seconds]) -> _Slots | None:
    """Return how the slots of a graph grow with slowdowns; None where one does not do so evenly.

    They do unless ranks wait for a host or compute beside a collective, or ranks that start something together compute
    different kernels in several places.
    """
    written = Activities(seconds, kinds.plan.network, kinds.plan.hosts)
    known: dict[object, _Growth | None] = {}
    each = []
    for activity, source in kinds.first:
        key = id(activity) if source is None else source._replace(speed=Speed(1.0, source.speed.kind)).key
        if key not in known:
            known[key] = _growth(written, activity, source, len(known))
        if (found := known[key]) is None:
            return None
        each.append((found, max(source.speed.rank, 0) if source else 0))
    if not all(_even([each[kind][0] for kind in slot]) for slot in kinds.merged):
        return None
    rows = [each[kind] for slot in kinds.merged for kind in slot]
    base, slope = (np.array([row[0][place] for row in rows]).T for place in (1, 2))
    start = np.cumsum([0, *map(len, kinds.merged)])[:-1]
    return _Slots(base, slope, np.array([rank for _, rank in rows], np.int64), start, kinds.of_slot)


def _growth(written: Activities, activity: Activity, source: Source | None, number: int) -> _Growth | None:
    """Return how an activity grows with slowdown; None if not evenly."""
    if source is None:
        alone = np.array(_times(activity))
        return _Growth(number, alone, 0 * alone, ())
    taken = [written.timed(activity, source._replace(speed=Speed(x, source.speed.kind))) for x in (1.0, 2.0, 4.0)]
    one, two, four = np.array([_times(done) for done in taken])
    computing = tuple(place for place, segment in enumerate(taken[0].segments) if segment.compute or segment.beside)
    even = np.allclose(four, one + 3 * (two - one), rtol=_SAME, atol=0)
    return _Growth(number, 2 * one - two, two - one, computing) if even else None


def _times(activity: Activity) -> tuple[float, float, float]:
    return (activity.idle, *activity.around) if activity.segments else (0.0, 0.0, 0.0)


def _even(together: Sequence[_Growth]) -> bool:
    """Return whether what ranks start together takes as long as that of one of them."""
    first = together[0]
    alike = all(one.number == first.number for one in together)
    once = all(len(one.computing) == 1 and one.computing == first.computing for one in together)
    return alike or (once and all(np.allclose(one.base, first.base, rtol=_SAME, atol=1e-15) for one in together))
