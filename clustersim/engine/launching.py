"""How a job's host keeps up with its GPUs: in time, behind, or waiting for them before each pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal, NamedTuple

from clustersim.engine.fabric import HOST
from clustersim.engine.program import (
    COMPUTE,
    READY,
    SYNCHRONISE,
    UPDATE,
    Launches,
    Layout,
    Program,
    Task,
    Wait,
)
from clustersim.model.kernel import Kernel
from clustersim.model.operator import Collective, Steps
from clustersim.parallel.host import Launcher, LaunchQueue
from clustersim.parallel.job import Job

Seconds = Mapping[Kernel, float]


class Launching(NamedTuple):
    """How the host launches the passes of a job.

    prompt: launches are in time, except for the first kernels of the step, for which GPUs wait `start` seconds. synchronised:
    launches begin when a pass starts, because the host waits for its GPU before each pass. ahead: pass after pass, whatever the
    GPU does.
    """

    mode: Literal["prompt", "synchronised", "ahead"]
    start: float = 0.0


def launching(job: Job, scripts: Sequence[Program], seconds: Sequence[Seconds], hosts: Sequence[Launcher]) -> Launching:
    """Return how the host launches the passes of these scripts. seconds, hosts: by node type, empty without delays."""
    if not any(host.late for host in hosts):
        return Launching("prompt")
    if hosts[0].synchronised(job):
        return Launching("synchronised")
    both = [(own, host) for own, host in zip(seconds, hosts, strict=True) if own]
    different = {(script.layout, script.row[:1]): script for script in scripts}.values()
    starts = [_start(script, own, host) for own, host in both for script in different]
    known = [start for start in starts if start is not None]
    return Launching("prompt", max(known)) if len(known) == len(starts) else Launching("ahead")


def _start(script: Program, seconds: Seconds, host: Launcher) -> float | None:
    """Return the delay of a rank's first pass by its host, in seconds; None if later passes may be delayed.

    A host that waits for its GPU inside passes may delay all of them. Otherwise, if no pass takes longer to launch than to run,
    the host's lead after the first pass only grows, and a pass waits only if its delay exceeds that lead.
    """
    if not script.row:
        return 0.0
    layout = script.layout
    if layout.synchronised:
        return None
    rows = [_row(tasks, seconds, host) for tasks in chain(layout.steps.values(), layout.special.values())]
    first = next(key for key, microbatch in script.passes() if microbatch >= 0)
    launched, run, delay = _row(layout.parts[first], seconds, host)
    lead = delay + run - launched
    prompt = all(launch <= ran and late <= lead for launch, ran, late in rows)
    return delay if prompt else None


def _row(tasks: Iterable[Task], seconds: Seconds, host: Launcher) -> tuple[float, float, float]:
    """Return the seconds to launch a pass and to run it, with collectives and messages of 0 s, and its delay by launches if both
    start together."""
    queue, run = LaunchQueue(), 0.0
    for item in _items(tasks):
        took = seconds[item] if isinstance(item, Kernel) else 0.0
        queue.run(host.seconds(item), took)
        run += took
    return queue.launched, run, queue.over - run


def _items(tasks: Iterable[Task]) -> Iterator[Kernel | Collective]:
    """Yield the kernels and collectives that the host launches for tasks, without the optimizer's."""
    for task in tasks:
        if task.collective is not None:
            yield task.collective
        elif task.kind not in UPDATE:
            yield from (item for item in task.items if isinstance(item, Kernel | Collective))


def hosted(layout: Layout, launching: Launching) -> Layout:
    """Return a layout with the tasks of a host that launches passes as `launching.mode` says.

    launching.start > 0: the step begins with the wait for its first launches; from then on the host is ahead of the GPU.
    """

    def each(tasks: Sequence[Task]) -> tuple[Task, ...]:
        return tuple(_launched(tasks, launching))

    first = Task(HOST, READY, launches=Launches(start=launching.start))
    start = (first, Task(COMPUTE, "", waits=(Wait(READY),))) if launching.start else ()
    return replace(
        layout,
        begin=(*start, *each(layout.begin)),
        steps={key: each(tasks) for key, tasks in layout.steps.items()},
        special={one: each(tasks) for one, tasks in layout.special.items()},
        finish=each(layout.finish),
    )


def _launched(tasks: Sequence[Task], launching: Launching) -> Iterator[Task]:
    """Yield the tasks of a pass, with those of the host.

    Where the host waits for its GPU before a computation, it begins to launch when that begins, and then is ahead of it. Where it
    launches a computation when it has launched all those before, whatever its GPU does, the computation has to wait for it: with
    GPU and host free at D and H, G the duration of the kernels in a row, and K their duration when launched from 0, it ends at
    max(D + G, H + K), as if it could not start before H + K - G.
    """
    ahead, synchronised = launching.mode == "ahead", launching.mode == "synchronised"
    computing = [task.stream == COMPUTE and bool(task.kind) for task in tasks]
    passes = [place for place, task in enumerate(tasks) if computing[place] and task.kind not in UPDATE]
    behind = [] if launching.mode == "prompt" else passes if ahead else passes[1:]
    last, calls = max(behind, default=0), 0
    for place, task in enumerate(tasks):
        if task.kind == SYNCHRONISE:
            if ahead or place < last:  # else the next pass begins so anyway
                yield task
                calls = 0
        elif not computing[place]:
            yield task
            calls += task.collective is not None
        else:
            own = task._replace(launches=task.launches._replace(calls=calls))
            launches = own._replace(stream=HOST, family=None, waits=())
            if place in behind:
                yield launches._replace(kind=READY)
                yield own._replace(waits=(*task.waits, Wait(READY)))
                yield launches
            elif place < last:
                if task.waits:
                    yield Task(COMPUTE, "", waits=task.waits)
                yield Task(HOST, SYNCHRONISE)
                yield own._replace(waits=(), fresh=True)
                yield launches
            else:
                yield own._replace(fresh=synchronised or task.kind in UPDATE)
            calls = 0


class LaunchTimes:
    """Times when the host has launched the parts of an activity that it starts with. extra: seconds of other launches."""

    def __init__(self, host: Launcher, items: Steps, extra: float) -> None:
        self.host, self.queue = host, LaunchQueue()
        self.extra = extra / (sum(isinstance(item, Kernel) for item in items) or 1)  # spread over them

    def kernel(self, kernel: Kernel, seconds: float) -> None:
        """Launch a kernel."""
        self.queue.run(self.host.seconds(kernel) + self.extra, seconds)

    def call(self, call: Collective) -> float:
        """Launch a collective. Return the time in seconds before which it cannot start; later items wait for it anyway."""
        self.queue.run(self.host.seconds(call), 0.0)
        over, self.queue.over = self.queue.over, 0.0
        return over
