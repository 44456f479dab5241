"""Kernel launches of a job's host: in time, late, or only after a wait for the GPU."""

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
"""{kernel: its seconds on a nominal GPU}"""


class Launching(NamedTuple):
    """Mode and start of the kernel launches of a job's host."""

    mode: Literal["prompt", "synchronised", "ahead"]
    """prompt: launches are in time, except those of a step's first kernels. synchronised: launches begin when a pass begins, as
    the host waits for its GPU before each pass. ahead: the host launches pass after pass, whatever the GPU does."""
    start: float = 0.0
    """Seconds from the start of a step before which the first kernels are not launched; 0 unless prompt."""


def launching(job: Job, scripts: Sequence[Program], seconds: Sequence[Seconds], hosts: Sequence[Launcher]) -> Launching:
    """Return the launch mode of the host for the passes of `scripts`, and the start of the first launch.

    seconds, hosts: kernel seconds (empty for unused types) and launcher of each node type; () if launches never delay a kernel.
    """
    if not any(host.late for host in hosts):
        return Launching("prompt")
    if hosts[0].synchronised(job):
        return Launching("synchronised")
    distinct_scripts = {(script.layout, script.row[:1]): script for script in scripts}.values()
    types = [(type_seconds, host) for type_seconds, host in zip(seconds, hosts, strict=True) if type_seconds]
    starts = [_start(script, *node_type) for node_type in types for script in distinct_scripts]
    known = [start for start in starts if start is not None]
    return Launching("prompt", max(known)) if len(known) == len(starts) else Launching("ahead")


def _start(script: Program, seconds: Seconds, host: Launcher) -> float | None:
    """Return the seconds by which the host delays a rank's first pass; None if it may delay later passes too.

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
    """Return (seconds to launch a pass, seconds to run it, seconds by which launches delay its end if both begin together).

    Collectives and messages are launched and take 0 s; tasks of the optimizer are left out.
    """
    queue, run = LaunchQueue(), 0.0
    for task in tasks:
        items = () if task.kind in UPDATE else task.items
        for item in (task.collective,) if task.collective is not None else items:
            if isinstance(item, Kernel | Collective):
                item_seconds = seconds[item] if isinstance(item, Kernel) else 0.0
                queue.run(host.seconds(item), item_seconds)
                run += item_seconds
    return queue.launched, run, queue.over - run


def hosted(layout: Layout, launching: Launching) -> Layout:
    """Return a layout with the additional tasks and waits of a host that launches as `launching` describes.

    If launching.start > 0, the step begins with a wait for its first launches; from then on the host is ahead of the GPU.
    """

    def with_host(tasks: Sequence[Task]) -> tuple[Task, ...]:
        """Return the tasks of a pass with those of the host."""
        return tuple(_with_host(tasks, launching))

    first = Task(HOST, READY, launches=Launches(start=launching.start))
    start = (first, Task(COMPUTE, "", waits=(Wait(READY),))) if launching.start else ()
    return replace(
        layout,
        begin=(*start, *with_host(layout.begin)),
        steps={key: with_host(tasks) for key, tasks in layout.steps.items()},
        special={key: with_host(tasks) for key, tasks in layout.special.items()},
        finish=with_host(layout.finish),
    )


def _with_host(tasks: Sequence[Task], launching: Launching) -> Iterator[Task]:
    """Yield the tasks of a pass, with those of the host.

    If the host waits for its GPU before a computation, it begins to launch when the computation begins, and then is ahead of it.
    If it launches the computation right after the earlier ones, whatever its GPU does, the computation waits for the host. Let
    GPU and host be free at D and H, let the kernels take G in a row, and K if their launches begin at 0. Then the computation
    ends at max(D + G, H + K), as if it could not start before H + K - G.
    """
    ahead, synchronised = launching.mode == "ahead", launching.mode == "synchronised"
    computing = [task.stream == COMPUTE and bool(task.kind) for task in tasks]
    passes = [index for index, task in enumerate(tasks) if computing[index] and task.kind not in UPDATE]
    late = [] if launching.mode == "prompt" else passes if ahead else passes[1:]
    last, calls = max(late, default=0), 0
    for index, task in enumerate(tasks):
        if task.kind == SYNCHRONISE:
            if ahead or index < last:  # else the next pass begins with such a wait anyway
                yield task
                calls = 0
        elif not computing[index]:
            yield task
            calls += task.collective is not None
        else:
            computation = task._replace(launches=task.launches._replace(calls=calls))
            launches = computation._replace(stream=HOST, family=None, waits=())
            if index in late:
                yield launches._replace(kind=READY)
                yield computation._replace(waits=(*task.waits, Wait(READY)))
                yield launches
            elif index < last:
                if task.waits:
                    yield Task(COMPUTE, "", waits=task.waits)
                yield Task(HOST, SYNCHRONISE)
                yield computation._replace(waits=(), fresh=True)
                yield launches
            else:
                yield computation._replace(fresh=synchronised or task.kind in UPDATE)
            calls = 0


class LaunchTimes:
    """Times when a host has launched the parts of an activity, if it begins to launch at the activity's start.

    items: kernels and collectives of the activity. extra: seconds of the host's other launches, spread over the kernels.
    """

    def __init__(self, host: Launcher, items: Steps, extra: float) -> None:
        self.host, self.queue = host, LaunchQueue()
        self.extra = extra / (sum(isinstance(item, Kernel) for item in items) or 1)

    def kernel(self, kernel: Kernel, seconds: float) -> None:
        """Launch the next kernel. seconds: of the kernel on its GPU."""
        self.queue.run(self.host.seconds(kernel) + self.extra, seconds)

    def call(self, call: Collective) -> float:
        """Launch a collective. Return the seconds from the activity's start before which it cannot start."""
        self.queue.run(self.host.seconds(call), 0.0)
        earliest, self.queue.over = self.queue.over, 0.0  # later kernels wait for the collective anyway
        return earliest
