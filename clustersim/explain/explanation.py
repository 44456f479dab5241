"""Explanation of a step: its critical path, its bottleneck link, and exact effects of changes.

Every what-if is a separate simulation, whose step is that of `run` with the changed file. No file can express the links with
unlimited rate that show a bottleneck.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clustersim.calibration.constants import Constant, constants_of
from clustersim.calibration.machine import Machine
from clustersim.calibration.sensitivity import sensitivities
from clustersim.config.yaml import Document
from clustersim.costs.bill import rates
from clustersim.costs.figures import Figures, load
from clustersim.engine.player import run_step
from clustersim.errors import ClustersimError, InputError, OutOfMemoryError
from clustersim.optimization.neighbours import NIC, NVLINK, WhatIf, what_ifs
from clustersim.parallel.job import Job
from clustersim.parallel.options import change_words
from clustersim.question import StepQuestion
from clustersim.report.path_shares import healthy_links, healthy_rates, undirected
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
        """Return `name`, `scope`, `value`, `key`, `source`, and `spread`, `sensitivity`, `effect` in logarithms, as JSON data."""
        item = self.constant
        data = {"name": item.name, "scope": item.scope, "value": item.value, "key": next(iter(item.keys))}
        return {**data, "spread": self.spread, "sensitivity": self.slope, "effect": self.effect, "source": self.source}


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
    """What-ifs, the shortest step first, and last the impossible ones."""
    rests_on: tuple[RestsOn, ...]
    """The constants with the largest possible effect on the step, the largest first."""

    @property
    def step_time(self) -> float:
        """Seconds of the unchanged step."""
        return float(self.summary["step_time_s"])

    def facts(self) -> dict[str, Any]:
        """Return `critical_path`, `bottlenecks`, `rests_on`, `what_ifs` and the step as JSON data; keys carry their units."""
        step, question = self.step_time, self.question.of_what_ifs
        return {
            **{key: self.summary[key] for key in ("name", "cluster", "parallelism", "step_time_s")},
            **{key: self.summary[key] for key in ("critical_path_s", "critical_path")},
            "bottlenecks": [
                {**item.share, "what_if": item.what_if, "step_time_s": item.step_time, "gain_s": step - item.step_time}
                for item in self.bottlenecks
            ],
            "rests_on": [item.facts() for item in self.rests_on],
            "what_ifs": [_facts(item, step, question) for item in self.outcomes],
        }


def _facts(change: WhatIf, step: float, question: StepQuestion) -> dict[str, Any]:
    """Return `name`, `changes`, `step_time_s`, `gain_s`, `usd`, … of a what-if as JSON data. step: seconds of the run's step."""
    gain = None if change.step_time is None else step - change.step_time
    return {
        "name": change.name,
        "step_time_s": change.step_time,
        "gain_s": gain,
        "changes": dict(change.changes),
        "free": change.free,
        "usd": change.usd,
        "note": change.reason,
        "flags": shlex.join(change_words(change.changes)),
        "run": shlex.join(question.changed(change.changes).words) if change.changes else None,
    }


def explained(
    question: StepQuestion, progress: Progress = silent, known: StepResult | None = None, figures: Figures | None = None
) -> Explanation:
    """Return a run's explanation. known: its result, if simulated. figures: prices of what-ifs. Raises InputError."""
    document = question.document
    progress("the run as it is")
    simulator = Simulator(known.topology if known else build(document))
    result = known or simulator.run(question.job, **question.options())
    changed, prices = question.of_what_ifs, figures or load()
    tried = (_simulated(changed, item, simulator, prices, progress) for item in what_ifs(document, result.job))
    outcomes = [*filter(None, tried)]
    links = list(_bottlenecks(changed, result, simulator, outcomes, progress))
    return Explanation(
        question,
        result.summary,
        tuple(sorted(links, key=lambda item: item.step_time)[:BOTTLENECKS]),
        tuple(sorted(outcomes, key=lambda item: (item.step_time is None, item.step_time or 0.0))),
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
    effects = [
        RestsOn(item, *spreads.get(item.name, (item.spread, item.source)), slopes[item.name])
        for item in constants
        if slopes[item.name]
    ]
    return tuple(sorted(effects, key=lambda item: -item.effect)[:CONSTANTS])


def _simulated(
    question: StepQuestion, what: WhatIf, simulator: Simulator, figures: Figures, progress: Progress
) -> WhatIf | None:
    """Return a what-if with its simulated step, or the reason why it has none; None if no job can have its values."""
    if what.reason:
        return what
    progress(what.name)
    changed, old = question.changed(what.changes), simulator.cluster
    try:
        simulator = simulator if what.free else simulator.with_cluster(changed.cluster)
        seconds = _seconds(simulator, changed)
    except OutOfMemoryError as error:
        return what._replace(reason=f"does not fit: {_short(error).partition('; ')[0]}")
    except InputError as error:
        return None if what.free else what._replace(reason=f"does not apply: {_short(error)}")
    return what._replace(step_time=seconds, usd=None if what.free else _dearer(old, simulator.cluster, figures))


def _dearer(old: Topology, new: Topology, figures: Figures) -> float | None:
    """Return the USD by which a cluster's price exceeds another's; None if they are equal, or a price is unknown."""
    before, after = (rates(cluster, figures).capex for cluster in (old, new))
    return None if before is None or after is None else (after - before) or None


def _seconds(simulator: Simulator, question: StepQuestion) -> float:
    """Return the seconds of a run's step."""
    job = simulator.placed(question.job)
    work, _, _ = simulator.prepare(job, np.arange(job.mesh.size), ignore_memory=question.ignore_memory)
    return run_step(work, simulator.cluster, question.fold, question.engine).end


def _short(error: ClustersimError) -> str:
    """Return an error message without its position in a generated file."""
    return _PLACE.sub("", str(error))


def _bottlenecks(
    question: StepQuestion, result: StepResult, simulator: Simulator, outcomes: Iterable[WhatIf], progress: Progress
) -> Iterator[Bottleneck]:
    """Yield the step without the limit of each of the links that limit it longest.

    For a tier from which NCCL derives its rates, this is the what-if of faster links, because faster links alone would change
    nothing. Such a tier is included even if transfers wait for NCCL's own rate and not for the links.
    """
    faster = {row.name: row.step_time for row in outcomes if row.step_time is not None}
    shares = [row for row in result.summary["critical_path"]["by_link"] if row["link"]][:BOTTLENECKS]
    known = {undirected(name) for share in shares if not share["slow"] for name in share["tiers"]}
    for tier, name in FASTER.items():  # NCCL's rate, derived from a link, keeps transfers below the link's own
        if tier not in known and faster.get(name, result.record.end) < _SOUND * result.record.end:
            shares += filter(None, [healthy_links(result.topology, tier)])
    for share in shares:
        tiers = {} if share["slow"] else {undirected(name) for name in share["tiers"]}
        name = next((name for tier, name in FASTER.items() if tier in tiers and name in faster), "")
        if name:
            yield Bottleneck(share, faster[name], name)
            continue
        progress(f"without the limit of {share['link']}")
        yield Bottleneck(share, _seconds(simulator.with_cluster(_unlimited(result.topology, share)), question))


def _unlimited(topology: Topology, share: Mapping[str, Any]) -> Topology:
    """Return the cluster with `ENOUGH` times the rate of a row's slow links, in both directions, or else of its tiers' links."""
    capacity = topology.capacity.copy()
    slow, tiers = ({undirected(name) for name in share[key]} for key in ("slow_links", "tiers"))
    for tier, sound in zip(topology.tiers, healthy_rates(topology).tolist(), strict=True):
        tier_rates = capacity[tier.first :][: tier.links]
        if slow:
            tier_rates[[undirected(f"{tier.name}[{i}]") in slow for i in range(tier.links)]] *= ENOUGH
        elif undirected(tier.name) in tiers:
            tier_rates[tier_rates >= _SOUND * sound] *= ENOUGH
    return replace(topology, capacity=capacity)
