"""Jobs of one plan signature: their programs differ in kernels and in the sizes of collectives alone, as with other microbatches.

What was compiled for one of them serves the others: its graph, and which tasks take as long as each other. Only what tasks of
each kind take is found anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from clustersim.engine.compile import Activities, Plan, Work
from clustersim.engine.fabric import Activity
from clustersim.engine.instruction import Compute, Instruction, Launch, Send
from clustersim.engine.network import GroupPlans, Network
from clustersim.model.operator import Collective, Steps


class PlanSignature(NamedTuple):
    """The signature of a job's plan on its network, and what differs between jobs of one signature."""

    key: Hashable
    """Equal for jobs whose plans differ in kernels and in sizes of collectives alone."""
    items: tuple[Steps, ...]
    """What passes compute, in order of appearance …"""
    calls: tuple[Collective, ...]
    """… and all collectives and messages, by family."""


def plan_signature(work: Work, network: Network) -> PlanSignature | None:
    """Return the signature of a job's plan; None where hosts may be late, as times decide then who waits for what."""
    if work.hosts:
        return None
    items: dict[int, tuple[int, Steps]] = {}
    calls = {call: place for place, call in enumerate(network.plans)}

    def bare(line: Instruction) -> tuple[object, ...]:
        if isinstance(line, Compute):
            place, _ = items.setdefault(id(line.items), (len(items), line.items))
            return line.kind, line.stage, place, *line[3:]
        return (line.stage, calls[line.collective], *line[2:]) if isinstance(line, Send | Launch) else line

    def all_bare(lines: Sequence[Instruction]) -> tuple[tuple[object, ...], ...]:
        return tuple(map(bare, lines))

    scripts = tuple(
        (
            all_bare(one.begin),
            tuple((key, all_bare(lines)) for key, lines in one.steps.items()),
            tuple((key, all_bare(lines)) for key, lines in one.special.items()),
            all_bare(one.finish),
        )
        for one in work.scripts
    )
    sizes: dict[tuple[str, float], int] = {}  # two of one size may take as long, and not of two
    carried = tuple(
        (call.group, call.op, sizes.setdefault((call.group, call.size), len(sizes)), _carried(plans))
        for call, plans in network.plans.items()
    )
    return PlanSignature(
        (network.cells.key, work.job.sms_beside, work.job.memory_beside, scripts, carried),
        tuple(own for _, own in items.values()),
        tuple(calls),
    )


def _carried(plans: GroupPlans) -> tuple[tuple[object, ...], ...]:
    """Return what decides which groups take as long as each other, whatever the size."""
    return tuple(
        (types, one.algorithm, one.rate, one.latency if len(plans) > 1 else one.latency is None)
        for types, one in plans.items()
    )


class Rebinding:
    """Binds to a job what was bound to another of its signature."""

    def __init__(self, plan: Plan, before: PlanSignature, work: Work, network: Network, now: PlanSignature) -> None:
        """plan, before: of the other job. work, network, now: of this one."""
        self.before = plan
        self.activities = Activities.of(work, network)
        self.items: Mapping[int, Steps] = dict(zip(map(id, before.items), now.items, strict=True))
        self.calls: Mapping[Collective, Collective] = dict(zip(before.calls, now.calls, strict=True))
        self.plan = plan._replace(network=network, sources=self.activities.sources, calls=self.activities.calls)
        self.fits = True
        """Whether all that passes compute has its collectives at equal places, so far."""

    def __call__(self, activity: Activity) -> Activity:
        """Return the activity in the place of one of the other job."""
        if (source := self.before.sources.get(activity)) is not None:
            made = self.activities.work(
                self.items[id(source.items)], source.speed, source.cells, source.families, source.extra
            )
            self.fits &= list(self.plan.sources[made].flows) == [self.calls[call] for call in source.flows]
            return made
        if (call := self.before.calls.get(activity)) is not None:
            return self.activities.transfer(self.calls[call[0]], call[1])
        return activity
