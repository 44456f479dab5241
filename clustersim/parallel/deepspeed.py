"""Order in which DeepSpeed's ZeRO-3 gathers parameters module by module, frees them, and reduces gradients by buckets.

The order of modules in a microbatch, forward and backward, is known from the first one (the trace). Before a module runs, its
missing parameters are gathered, the compute stream waits for all gathers so far, and one more gather fetches the next parameters
of the trace. After a module its parameters are freed, unless they are needed again soon. Source: DeepSpeed
runtime/zero/partitioned_param_coordinator.py (fetch_sub_module, release_sub_module) and stage3.py
(reduce_independent_p_g_buckets_and_remove_grads).

A module here is an operator with its kernels. A bias is part of its weight's tensor.
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
    """One operator as it runs in a forward or backward pass of the trace."""

    steps: Steps
    """Kernels and collectives of the module."""
    name: tuple[int, int]
    """Identifier of the module's parameters: (index of the layer, index of the operator in it). Modules that share parameters
    have the same one."""
    needs: int
    """Number of parameters to gather; 0 if the module has none, or they are always gathered."""
    makes: int
    """Number of parameters whose gradient is complete after the module."""


class Moment(NamedTuple):
    """One event in a pass, such as the start of a gather."""

    what: str
    """Kind of event. gather: a gather of parameters starts; arrive: the pass waits for all gathers; run: a module computes;
    reduce: the reduction of a bucket of gradients starts."""
    parameters: int
    """Number of parameters of a gather, arrive or reduce; 0 for a run."""
    steps: Steps
    """Kernels and collectives of a run; () for other events."""
    live: int
    """Number of parameters, except persistent ones, that are gathered or being gathered after this event."""


def persistent(stage: Stage, setting: DeepSpeed) -> int:
    """Return the number of a stage's parameters that every rank keeps because their tensors are small. Passes do not gather them;
    each weight update does."""
    sizes = ((stage.owned(op) + stage.frozen_in(op), count) for layer, count in stage.layers for op in layer.operators)
    return sum(parameters * count for parameters, count in sizes if parameters <= setting.param_persistence_threshold)


def moments(stage: Stage, setting: DeepSpeed, letter: str) -> list[Moment]:
    """Return the events of a pass of `stage`, which has the whole model, in order.

    letter: `F` for a forward, `B` for a backward pass. Parameters that the forward pass keeps are not gathered again.
    """
    forward, backward = (list(_trace(stage, setting, direction)) for direction in "FB")
    events = list(_events([*forward, *backward], setting))
    turn = [index for index, event in enumerate(events) if event.what == "run"][len(forward) - 1] + 1
    return events[:turn] if letter == "F" else events[turn:]


def _trace(stage: Stage, setting: DeepSpeed, letter: str) -> Iterator[TracedModule]:
    """Yield the modules of a forward (`F`) or backward (`B`) pass in order. Equal layers share one steps object."""
    layers = [layer for layer, count in stage.layers for _ in range(count)]
    known = {id(layer): list(modules(layer, letter)) for layer in layers}
    indices = range(len(layers))
    for index in indices if letter == "F" else reversed(indices):
        for i, steps, complete in known[id(layers[index])]:
            op = layers[index].operators[i]
            weights = op.parameters + op.frozen
            needs = weights if weights > setting.param_persistence_threshold else 0
            name = (0, 0) if op.name == LOGITS and stage.reused else (index, i)
            yield TracedModule(steps, name, needs, stage.owned(op) if complete else 0)


def _events(trace: Sequence[TracedModule], setting: DeepSpeed) -> Iterator[Moment]:
    """Yield gather, arrive, run and reduce events of one forward and backward pass over `trace`. Releases show only in `live`."""
    gathered, bucket = _Gathered(trace, setting), 0
    for index, module in enumerate(trace):
        yield from gathered.fetch(index)
        yield Moment("run", 0, module.steps, gathered.live_parameters)
        if bucket and bucket + module.makes > setting.reduce_bucket_size:
            yield Moment("reduce", bucket, (), gathered.live_parameters)
            bucket = 0
        bucket += module.makes
        gathered.release(index)
    if bucket:
        yield Moment("reduce", bucket, (), gathered.live_parameters)


class _Gathered:
    """State of gathers during a trace: live parameters (gathered or being gathered), and the queue of modules to be gathered.

    live: {name of a module: its number of live parameters}. live_parameters: their sum. not_awaited: number of parameters for
    which the pass has not waited yet. requested: {name of a module: index of the last module with these parameters that has left
    the queue}. parameters_before: number of parameters of all modules before each index of the trace.
    """

    def __init__(self, trace: Sequence[TracedModule], setting: DeepSpeed) -> None:
        self.trace, self.setting = trace, setting
        self.queue = deque((index, module) for index, module in enumerate(trace) if module.needs)
        self.live: dict[tuple[int, int], int] = {}
        self.requested: dict[tuple[int, int], int] = {}
        self.live_parameters = self.not_awaited = 0
        self.parameters_before = [0, *accumulate(module.needs for module in trace)]
        self.next = self._next()

    def _next(self) -> list[int]:
        """Return, for each module, the index of the next module with the same parameters; the length of the trace if none."""
        following, last = [len(self.trace)] * len(self.trace), dict[tuple[int, int], int]()
        for index in range(len(self.trace) - 1, -1, -1):
            name = self.trace[index].name
            following[index] = last.get(name, len(self.trace))
            last[name] = index
        return following

    def fetch(self, index: int) -> Iterator[Moment]:
        """Yield the events before the module at `index` runs. They are a gather of its missing parameters, the wait for all
        gathers, and a gather for the modules after it."""
        module = self.trace[index]
        yield from self.gather([module] if module.needs and module.name not in self.live else [])
        if self.not_awaited:
            yield Moment("arrive", self.not_awaited, (), self.live_parameters)
            self.not_awaited = 0
        while self.queue and self.queue[0][0] <= index:
            self.queue.popleft()
        yield from self.gather(self.ahead())

    def ahead(self) -> list[TracedModule]:
        """Remove the next modules from the queue and return those whose gather starts now.

        They fill about one prefetch bucket, or less if the limit on live parameters is closer. Modules that are gathered already
        are removed but not returned.
        """
        limit = min(self.setting.max_live_parameters - self.live_parameters, self.setting.prefetch_bucket_size)
        chosen: dict[tuple[int, int], TracedModule] = {}
        filled = 0
        while self.queue and filled < limit:
            index, module = self.queue.popleft()
            self.requested[module.name] = index
            if module.name not in self.live and module.name not in chosen:
                chosen[module.name] = module
                filled += module.needs
        return list(chosen.values())

    def gather(self, modules: Iterable[TracedModule]) -> Iterator[Moment]:
        """Yield one gather of the parameters of all `modules`; nothing if there are no modules."""
        new = {module.name: module.needs for module in modules}
        if new:
            self.live |= new
            parameters = sum(new.values())
            self.live_parameters += parameters
            self.not_awaited += parameters
            yield Moment("gather", parameters, (), self.live_parameters)

    def release(self, index: int) -> None:
        """Free the parameters of the module at `index`. They stay if a module within `max_reuse_distance` parameters needs them,
        or a later module with them has left the queue."""
        module, following = self.trace[index], self.next[index]
        distance = self.parameters_before[following] - self.parameters_before[index + 1]
        soon = following < len(self.trace) and distance < self.setting.max_reuse_distance
        if module.needs and not soon and self.requested.get(module.name, -1) <= index:
            self.live_parameters -= self.live.pop(module.name)
