"""Explanation of a step: its critical path, its bottleneck link, and exact effects of changes.

Every what-if is a separate simulation. A what-if that a file can express gives the step of `run` with the changed file. Two
cannot be expressed: passes whose inputs are ready at once, and links with unlimited rate.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clustersim.calibration.constants import Constant, constants_of
from clustersim.calibration.machine import Machine
from clustersim.calibration.sensitivity import sensitivities
from clustersim.config.overrides import parted
from clustersim.config.yaml import Document
from clustersim.engine.compile import Work
from clustersim.engine.player import play
from clustersim.engine.program import PassMessage, Program, Task
from clustersim.engine.script import layouts
from clustersim.errors import ClustersimError, InputError, OutOfMemoryError
from clustersim.explain.what_ifs import ALL_OVERLAP, NIC, NVLINK, OVERLAP, WhatIf, free, what_ifs
from clustersim.parallel.job import Job
from clustersim.parallel.options import change_words
from clustersim.question import StepQuestion
from clustersim.report.path_shares import cable, sound_links, sound_rates
from clustersim.simulation import Progress, Simulator, StepResult, silent
from clustersim.topology.build import build
from clustersim.topology.model import Topology

CONSTANTS = 5
"""Largest number of constants that are named."""
ENOUGH = 1e6
"""Factor on the rate of a link that must not limit anything."""
BOTTLENECKS = 3
"""Largest number of links that are named: those that limit the critical path longest."""
FASTER = {"nic": NIC, "nvlink": NVLINK}
"""{tier: what-if of faster links} of tiers from which NCCL derives its own rates."""
_SOUND = 1 - 1e-9
_PLACE = re.compile(r"^.{1,4096}?(:\d+:\d+| \(command line\)): ", re.DOTALL)


class Bottleneck(NamedTuple):
    """A link that limits the critical path, and the step time without the limit of this link and its equals."""

    share: Mapping[str, Any]
    """Row of the critical path by link."""
    step_time: float
    """Seconds of that step."""
    what_if: str = ""
    """The what-if that gives that step, because NCCL's own rates depend on NICs and NVLinks. Empty: links have unlimited rate."""


class RestsOn(NamedTuple):
    """A constant that a step depends on, and its possible effect on the step."""

    constant: Constant
    spread: float
    """Standard deviation of its logarithm on this machine."""
    source: str
    """Source of the spread."""
    slope: float
    """d log(step) / d log(constant)."""

    @property
    def effect(self) -> float:
        """Standard deviation of the logarithm of the step due to this constant."""
        return self.spread * abs(self.slope)

    def facts(self) -> dict[str, Any]:
        """Return the explanation as plain data; spreads are standard deviations of logarithms."""
        one = self.constant
        said = {"name": one.name, "scope": one.scope, "value": one.value, "key": next(iter(one.keys))}
        return {**said, "spread": self.spread, "sensitivity": self.slope, "effect": self.effect, "source": self.source}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of a step's time."""

    question: StepQuestion
    """The explained run."""
    summary: Mapping[str, Any]
    """Summary of the run."""
    bottlenecks: tuple[Bottleneck, ...]
    """The links without which the step would be shortest, the first one first."""
    outcomes: tuple[WhatIf, ...]
    """What-ifs, the shortest step first; then those that no file can express, and last the impossible ones."""
    rests_on: tuple[RestsOn, ...]
    """The constants with the largest possible effect on the step, the largest first."""

    @property
    def step_time(self) -> float:
        """Seconds of the unchanged step."""
        return float(self.summary["step_time_s"])

    def facts(self) -> dict[str, Any]:
        """Return the explanation as plain data; keys carry their units."""
        step, question = self.step_time, self.question.of_what_ifs
        return {
            **{key: self.summary[key] for key in ("name", "cluster", "parallelism", "step_time_s")},
            **{key: self.summary[key] for key in ("critical_path_s", "critical_path")},
            "bottlenecks": [
                {**one.share, "what_if": one.what_if, "step_time_s": one.step_time, "gain_s": step - one.step_time}
                for one in self.bottlenecks
            ],
            "rests_on": [one.facts() for one in self.rests_on],
            "what_ifs": [_facts(one, step, question) for one in self.outcomes],
        }


def _facts(one: WhatIf, step: float, question: StepQuestion) -> dict[str, Any]:
    gain = None if one.step_time is None else step - one.step_time
    return {
        "name": one.name,
        "step_time_s": one.step_time,
        "gain_s": gain,
        "changes": dict(one.changes),
        "free": free(one.changes),
        "note": one.reason,
        "flags": shlex.join(change_words(one.changes)),
        "run": shlex.join(question.changed(one.changes).words) if one.changes else None,
    }


def explained(question: StepQuestion, progress: Progress = silent, known: StepResult | None = None) -> Explanation:
    """Return the explanation of a run. Raises InputError for errors in its files.

    known: its result, if it was already simulated.
    """
    document = question.document
    progress("the run as it is")
    simulator = Simulator(known.topology if known else build(document))
    result = known or simulator.run(question.job, **question.options())
    changed = question.of_what_ifs
    found = [
        _no_bubble(changed, simulator, result.job, progress),
        *_overlaps_said(
            [_played(changed, one, simulator, progress) for one in what_ifs(document, result.job)], result.record.end
        ),
    ]
    links = list(_bottlenecks(changed, result, simulator, found, progress))
    return Explanation(
        question,
        result.summary,
        tuple(sorted(links, key=lambda one: one.step_time)[:BOTTLENECKS]),
        tuple(sorted(found, key=lambda one: (one.step_time is None, not one.changes, one.step_time or 0.0))),
        _rests_on(question.machine, document, result.job, simulator, progress),
    )


def _rests_on(
    measured: Path | None, cluster: Document, job: Job, simulator: Simulator, progress: Progress
) -> tuple[RestsOn, ...]:
    """Return the constants that affect a step most, each with its spread, on the measured machine if there is one."""
    progress("what it rests on")
    constants = constants_of(cluster, job)
    slopes = sensitivities(cluster, job, constants, simulator)
    machine = Machine.read(measured) if measured else None
    spreads = machine.spreads(constants) if machine else {}
    found = [
        RestsOn(one, *spreads.get(one.name, (one.spread, one.source)), slopes[one.name])
        for one in constants
        if slopes[one.name]
    ]
    return tuple(sorted(found, key=lambda one: -one.effect)[:CONSTANTS])


def _played(question: StepQuestion, what: WhatIf, simulator: Simulator, progress: Progress) -> WhatIf:
    """Simulate a what-if, on the same cluster if the cluster does not change."""
    if what.reason:
        return what
    progress(what.name)
    changed = question.changed(what.changes)
    try:
        of_cluster = parted(what.changes)[0]
        seconds = _seconds(simulator.like(changed.cluster) if of_cluster else simulator, changed)
    except OutOfMemoryError as error:
        return what._replace(reason=f"does not fit: {_short(error).partition('; ')[0]}")
    except InputError as error:
        return what._replace(reason=f"does not apply: {_short(error)}")
    return what._replace(step_time=seconds)


def _seconds(
    simulator: Simulator, question: StepQuestion, rewritten: Callable[[Work], Work] = lambda work: work
) -> float:
    """Return the seconds of a run's step. rewritten: function that changes the work of its job."""
    job = simulator.placed(question.job)
    work, _, _ = simulator.prepare(job, np.arange(job.mesh.size), ignore_memory=question.ignore_memory)
    return play(rewritten(work), simulator.cluster, question.fold, question.engine).end


def _short(error: ClustersimError) -> str:
    """Return an error message without its position in a generated file."""
    return _PLACE.sub("", str(error))


# What-ifs that no file can express.


def _no_bubble(question: StepQuestion, simulator: Simulator, job: Job, progress: Progress) -> WhatIf:
    """Simulate the step with passes that never wait for a message, as if every stage had its inputs at once."""
    name = "no bubble"
    if job.parallelism.pp == 1:
        return WhatIf(name, {}, "there is one pipeline stage, so none waits for another")
    progress(name)
    seconds = _seconds(simulator, question, lambda work: work._replace(scripts=_unawaited(work.scripts)))
    return WhatIf(name, {}, "no file says this: no pass waits for another stage", seconds)


def _unawaited(scripts: Iterable[Program]) -> tuple[Program, ...]:
    """Return scripts that send their messages and never wait for one."""

    def alone(task: Task) -> Task:
        return task._replace(waits=tuple(one for one in task.waits if not isinstance(one, PassMessage)))

    known = {}
    for one in layouts(scripts := tuple(scripts)):
        steps = {key: tuple(map(alone, tasks)) for key, tasks in one.steps.items()}
        special = {key: tuple(map(alone, tasks)) for key, tasks in one.special.items()}
        known[one] = replace(one, steps=steps, special=special)
    return tuple(script._replace(layout=known[script.layout]) for script in scripts)


def _bottlenecks(
    question: StepQuestion, result: StepResult, simulator: Simulator, played: Iterable[WhatIf], progress: Progress
) -> Iterator[Bottleneck]:
    """Yield the step without the limit of each of the links that limit it longest.

    For a tier from which NCCL derives its rates, this is the what-if of faster links, because faster links alone would change
    nothing. Such a tier is included even if transfers wait for NCCL's own rate and not for the links.
    """
    faster = {one.name: one.step_time for one in played if one.step_time is not None}
    shares = [one for one in result.summary["critical_path"]["by_link"] if one["link"]][:BOTTLENECKS]
    known = {cable(name) for share in shares if not share["slow"] for name in share["tiers"]}
    for tier, name in FASTER.items():  # NCCL's rate, derived from a link, keeps transfers below the link's own
        if tier not in known and faster.get(name, result.record.end) < _SOUND * result.record.end:
            shares += filter(None, [sound_links(result.topology, tier)])
    for share in shares:
        tiers = {} if share["slow"] else {cable(name) for name in share["tiers"]}
        name = next((name for tier, name in FASTER.items() if tier in tiers and name in faster), "")
        if name:
            yield Bottleneck(share, faster[name], name)
            continue
        progress(f"without the limit of {share['link']}")
        yield Bottleneck(share, _seconds(simulator.like(_unlimited(result.topology, share)), question))


def _unlimited(topology: Topology, share: Mapping[str, Any]) -> Topology:
    """Return a cluster with unlimited rates of the links in a share: slow ones, in both directions, or all of their tier."""
    capacity = topology.capacity.copy()
    slow, tiers = ({cable(name) for name in share[key]} for key in ("slow_links", "tiers"))
    for tier, sound in zip(topology.tiers, sound_rates(topology).tolist(), strict=True):
        own = capacity[tier.first :][: tier.links]
        if slow:
            own[[cable(f"{tier.name}[{i}]") in slow for i in range(tier.links)]] *= ENOUGH
        elif cable(tier.name) in tiers:
            own[own >= _SOUND * sound] *= ENOUGH
    return replace(topology, capacity=capacity)


def _overlaps_said(played: list[WhatIf], step: float) -> list[WhatIf]:
    """Return what-ifs, with a note if all overlaps together gain less than one of them alone."""
    parts = {one.name: one.step_time for one in played if one.name.startswith(OVERLAP) and one.step_time is not None}
    best = min(parts, key=parts.__getitem__, default="")
    worse = [name for name, seconds in parts.items() if seconds > step * (1 + 1e-9)]
    why = f"{' and '.join(worse)} makes the step longer" if worse else "what overlaps slows each other"
    return [
        one._replace(reason=f"less than {best} alone: {why}")
        if one.name == ALL_OVERLAP and best and (one.step_time or 0.0) > parts[best] * (1 + 1e-9)
        else one
        for one in played
    ]
