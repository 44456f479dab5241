"""In which order DeepSpeed's ZeRO-3 gathers parameters module by module, frees them, and reduces their gradients by buckets.

The order of modules in a microbatch, forward and backward, is known from the first one (the trace). Before a module runs, its
parameters are gathered if they are not there, the compute stream waits for all gathers so far, and the next parameters of the
trace are asked for in one more gather. Behind a module its parameters are freed, unless they are needed again soon. Source:
DeepSpeed runtime/zero/partitioned_param_coordinator.py (fetch_sub_module, release_sub_module) and stage3.py
(reduce_independent_p_g_buckets_and_remove_grads).

A module is here an operator and what it runs. A bias counts with its weight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from clustersim.config.workload import DeepSpeed
from clustersim.model.head import LOGITS
from clustersim.model.operator import Steps
from clustersim.parallel.stages import Stage, modules

IN_FLIGHT = 3
"""Reductions under way at once: the host waits for the oldest when more than two are behind it (max_param_reduce_events)."""


class TracedModule(NamedTuple):
    """One place in the trace of a microbatch."""

    steps: Steps
    """What runs."""
    name: tuple[int, int]
    """Which parameters it needs: their layer, and their place in it."""
    needs: int
    """How many they are; 0: none, or they are always there."""
    makes: int
    """Of how many the gradient is complete behind it."""


class Moment(NamedTuple):
    """One thing that happens in a pass."""

    what: str
    """gather: parameters are asked for; arrive: all that were asked for are waited for; run: a module computes; reduce: a bucket
    of gradients leaves."""
    parameters: int
    """How many of them."""
    steps: Steps
    """What runs."""
    held: int
    """Parameters that are gathered, or on their way, by then."""


def persistent(stage: Stage, setting: DeepSpeed) -> int:
    """Return how many parameters of a stage are small enough to stay on every rank; they are gathered after each update."""
    own = ((stage.owned(op) + stage.frozen_in(op), n) for layer, n in stage.layers for op in layer.operators)
    return sum(parameters * count for parameters, count in own if parameters <= setting.param_persistence_threshold)


def moments(stage: Stage, setting: DeepSpeed, letter: str) -> list[Moment]:
    """Return the steps of a forward (`F`) or backward (`B`) pass of the only stage of a pipeline, in order."""
    forward, backward = (list(_trace(stage, setting, one)) for one in "FB")
    found = list(_played([*forward, *backward], setting))
    turn = [place for place, one in enumerate(found) if one.what == "run"][len(forward) - 1] + 1
    return found[:turn] if letter == "F" else found[turn:]


def _trace(stage: Stage, setting: DeepSpeed, letter: str) -> Iterator[TracedModule]:
    """Yield the modules of a pass; steps of equal layers are one object."""
    layers = [layer for layer, count in stage.layers for _ in range(count)]
    known = {id(layer): list(modules(layer, letter)) for layer in layers}
    places = range(len(layers))
    for place in places if letter == "F" else reversed(places):
        for i, steps, complete in known[id(layers[place])]:
            op = layers[place].operators[i]
            weights = op.parameters + op.frozen
            needs = weights if weights > setting.param_persistence_threshold else 0
            name = (0, 0) if op.name == LOGITS and stage.borrowed else (place, i)
            yield TracedModule(steps, name, needs, stage.owned(op) if complete else 0)


def _played(trace: Sequence[TracedModule], setting: DeepSpeed) -> Iterator[Moment]:
    """Yield the steps of a microbatch."""
    gathered, bucket = _Gathered(trace, setting), 0
    for place, one in enumerate(trace):
        yield from gathered.fetch(place)
        yield Moment("run", 0, one.steps, gathered.held)
        if bucket and bucket + one.makes > setting.reduce_bucket_size:
            yield Moment("reduce", bucket, (), gathered.held)
            bucket = 0
        bucket += one.makes
        gathered.release(place)
    if bucket:
        yield Moment("reduce", bucket, (), gathered.held)


class _Gathered:
    """The parameters that are gathered or on their way, and the queue of those to come."""

    def __init__(self, trace: Sequence[TracedModule], setting: DeepSpeed) -> None:
        self.trace, self.setting = trace, setting
        self.queue = deque((place, one) for place, one in enumerate(trace) if one.needs)
        self.there: dict[tuple[int, int], int] = {}
        self.seen: dict[tuple[int, int], int] = {}  # the last place for which the queue was asked for them
        self.held = self.coming = 0
        self.before = [0, *accumulate(one.needs for one in trace)]
        self.next = self._next()

    def _next(self) -> list[int]:
        """Return for each module the place of the next one that needs the same parameters, the end where there is none."""
        found, last = [len(self.trace)] * len(self.trace), dict[tuple[int, int], int]()
        for place in range(len(self.trace) - 1, -1, -1):
            name = self.trace[place].name
            found[place] = last.get(name, len(self.trace))
            last[name] = place
        return found

    def fetch(self, place: int) -> Iterator[Moment]:
        """Yield the gather of what a module lacks, the wait for all that is on its way, and the gather of what comes next."""
        one = self.trace[place]
        yield from self.gather([one] if one.needs and one.name not in self.there else [])
        if self.coming:
            yield Moment("arrive", self.coming, (), self.held)
            self.coming = 0
        while self.queue and self.queue[0][0] <= place:
            self.queue.popleft()
        yield from self.gather(self.ahead())

    def ahead(self) -> list[TracedModule]:
        """Return the modules to come whose parameters are asked for now: those of one bucket, as far as there is room."""
        room = min(self.setting.max_live_parameters - self.held, self.setting.prefetch_bucket_size)
        found: dict[tuple[int, int], TracedModule] = {}
        filled = 0
        while self.queue and filled < room:
            place, one = self.queue.popleft()
            self.seen[one.name] = place
            if one.name not in self.there and one.name not in found:
                found[one.name] = one
                filled += one.needs
        return list(found.values())

    def gather(self, wanted: Iterable[TracedModule]) -> Iterator[Moment]:
        """Yield the gather of the parameters of modules, if there are any."""
        new = {one.name: one.needs for one in wanted}
        if new:
            self.there |= new
            parameters = sum(new.values())
            self.held += parameters
            self.coming += parameters
            yield Moment("gather", parameters, (), self.held)

    def release(self, place: int) -> None:
        """Free the parameters of a module, unless they are needed soon or the queue was asked for them once more."""
        one, following = self.trace[place], self.next[place]
        between = self.before[following] - self.before[place + 1]
        soon = following < len(self.trace) and between < self.setting.max_reuse_distance
        if one.needs and not soon and self.seen.get(one.name, -1) <= place:
            self.held -= self.there.pop(one.name)
