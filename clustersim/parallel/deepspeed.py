"""Order in which DeepSpeed's ZeRO-3 gathers parameters module by module, frees them, and reduces gradients by buckets.

The order of modules in a microbatch, forward and backward, is known from the first one (the trace). Before a module runs, its
missing parameters are gathered, the compute stream waits for all gathers so far, and one more gather fetches the next parameters
of the trace. After a module its parameters are freed, unless they are needed again soon. Source: DeepSpeed
runtime/zero/partitioned_param_coordinator.py (fetch_sub_module, release_sub_module) and stage3.py
(reduce_independent_p_g_buckets_and_remove_grads).

A module here is an operator with its kernels. A bias counts with its weight.
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
"""Largest number of reductions in progress: with more, the host waits for the oldest one (max_param_reduce_events)."""


class TracedModule(NamedTuple):
    """One module in the trace of a microbatch."""

    steps: Steps
    """Kernels and collectives of the module."""
    name: tuple[int, int]
    """Identifier of the module's parameters: (index of the layer, index of the operator in it)."""
    needs: int
    """Number of parameters to gather; 0 if the module has none, or they are always gathered."""
    makes: int
    """Number of parameters whose gradient is complete after the module."""


class Moment(NamedTuple):
    """One event in a pass."""

    what: str
    """Kind of event. gather: a gather of parameters starts; arrive: the pass waits for all gathers; run: a module computes;
    reduce: the reduction of a bucket of gradients starts."""
    parameters: int
    """Number of parameters gathered or reduced."""
    steps: Steps
    """Kernels and collectives of a `run`."""
    held: int
    """Number of parameters that are gathered, or being gathered, at this event."""


def persistent(stage: Stage, setting: DeepSpeed) -> int:
    """Return the number of a stage's parameters in tensors that every rank keeps, as they are small; updates gather them."""
    own = ((stage.owned(op) + stage.frozen_in(op), n) for layer, n in stage.layers for op in layer.operators)
    return sum(parameters * count for parameters, count in own if parameters <= setting.param_persistence_threshold)


def moments(stage: Stage, setting: DeepSpeed, letter: str) -> list[Moment]:
    """Return the events of a forward (`F`) or backward (`B`) pass of the only stage of a pipeline, in order."""
    forward, backward = (list(_trace(stage, setting, one)) for one in "FB")
    found = list(_played([*forward, *backward], setting))
    turn = [place for place, one in enumerate(found) if one.what == "run"][len(forward) - 1] + 1
    return found[:turn] if letter == "F" else found[turn:]


def _trace(stage: Stage, setting: DeepSpeed, letter: str) -> Iterator[TracedModule]:
    """Yield the modules of a pass; equal layers share their step objects."""
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
    """Yield the events of a pass over the modules of `trace`."""
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
    """Parameters that are gathered or being gathered, and the queue of modules still to be gathered."""

    def __init__(self, trace: Sequence[TracedModule], setting: DeepSpeed) -> None:
        self.trace, self.setting = trace, setting
        self.queue = deque((place, one) for place, one in enumerate(trace) if one.needs)
        self.there: dict[tuple[int, int], int] = {}
        self.seen: dict[tuple[int, int], int] = {}  # index of the last module that requested a gather of the key
        self.held = self.coming = 0
        self.before = [0, *accumulate(one.needs for one in trace)]
        self.next = self._next()

    def _next(self) -> list[int]:
        """Return for each module the index of the next one with the same parameters, or the length of the trace without one."""
        found, last = [len(self.trace)] * len(self.trace), dict[tuple[int, int], int]()
        for place in range(len(self.trace) - 1, -1, -1):
            name = self.trace[place].name
            found[place] = last.get(name, len(self.trace))
            last[name] = place
        return found

    def fetch(self, place: int) -> Iterator[Moment]:
        """Yield the gather of a module's missing parameters, the wait for all gathers, and the gather of the modules after it."""
        one = self.trace[place]
        yield from self.gather([one] if one.needs and one.name not in self.there else [])
        if self.coming:
            yield Moment("arrive", self.coming, (), self.held)
            self.coming = 0
        while self.queue and self.queue[0][0] <= place:
            self.queue.popleft()
        yield from self.gather(self.ahead())

    def ahead(self) -> list[TracedModule]:
        """Return the next modules whose gather starts now: up to one bucket, as far as the limit on live parameters allows."""
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
        """Yield one gather of the parameters of the modules `wanted`, if there are any to gather."""
        new = {one.name: one.needs for one in wanted}
        if new:
            self.there |= new
            parameters = sum(new.values())
            self.held += parameters
            self.coming += parameters
            yield Moment("gather", parameters, (), self.held)

    def release(self, place: int) -> None:
        """Free the parameters of a module, unless they are needed soon or another gather of them is in the queue."""
        one, following = self.trace[place], self.next[place]
        between = self.before[following] - self.before[place + 1]
        soon = following < len(self.trace) and between < self.setting.max_reuse_distance
        if one.needs and not soon and self.seen.get(one.name, -1) <= place:
            self.held -= self.there.pop(one.name)
