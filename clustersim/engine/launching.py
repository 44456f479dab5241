"""How a job's host keeps up with its GPUs: in time, behind, or waiting for them before each pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from clustersim.engine.instruction import Compute, Drain, Instruction, Launch, Send
from clustersim.engine.program import UPDATE
from clustersim.engine.script import Script
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


def launching(job: Job, scripts: Sequence[Script], seconds: Sequence[Seconds], hosts: Sequence[Launcher]) -> Launching:
    """Return how the host launches the passes of these scripts. seconds, hosts: by node type, empty without delays."""
    if not any(host.late for host in hosts):
        return Launching("prompt")
    if hosts[0].synchronised(job):
        return Launching("synchronised")
    both = [(own, host) for own, host in zip(seconds, hosts, strict=True) if own]
    different = {(id(script.text), script.row[:1]): script for script in scripts}.values()
    starts = [_start(script, own, host) for own, host in both for script in different]
    known = [start for start in starts if start is not None]
    return Launching("prompt", max(known)) if len(known) == len(starts) else Launching("ahead")


class _Row(NamedTuple):
    """A pass: seconds to launch it, seconds to run it, and the delay by launches if both start together."""

    launch: float
    run: float
    delay: float


def _start(script: Script, seconds: Seconds, host: Launcher) -> float | None:
    """Return the delay of a rank's first pass by its host, in seconds; None if later passes may be delayed.

    A host that waits for its GPU inside passes may delay all of them. Otherwise, if no pass takes longer to launch than to run,
    the host's lead after the first pass only grows, and a pass waits only if its delay exceeds that lead.
    """
    if not script.row:
        return 0.0
    text = script.text
    if any(isinstance(line, Drain) for line in text.lines()):
        return None
    rows = [_row(lines, seconds, host) for lines in chain(text.steps.values(), text.special.values())]
    begun = _row(next(script.passes()), seconds, host)
    lead = begun.delay + begun.run - begun.launch
    prompt = all(row.launch <= row.run and row.delay <= lead for row in rows)
    return begun.delay if prompt else None


def _row(lines: Iterable[Instruction], seconds: Seconds, host: Launcher) -> _Row:
    """Return launch, run and delay of a pass, with collectives and messages of 0 s."""
    queue, run = LaunchQueue(), 0.0
    for item in _items(lines):
        took = seconds[item] if isinstance(item, Kernel) else 0.0
        queue.run(host.seconds(item), took)
        run += took
    return _Row(queue.launched, run, queue.over - run)


def _items(lines: Iterable[Instruction]) -> Iterator[Kernel | Collective]:
    """Yield the kernels and collectives that the host launches in lines of a script, without the optimizer's."""
    for line in lines:
        if isinstance(line, Compute) and line.kind not in UPDATE:
            yield from (item for item in line.items if isinstance(item, Kernel | Collective))
        elif isinstance(line, Send | Launch):
            yield line.collective


class Launches:
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
