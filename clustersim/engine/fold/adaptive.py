"""A job is folded on the links that prove to be short, and on no others.

Every link that the simulation knows tells ranks apart, also one that is never full. So it begins without those that cost
classes, and then looks whether the transfers, as they were under way, could have filled one of them. If none could, they moved
as they would have with all links: a max-min solution that keeps within a limit stays the solution when that limit is added,
and the ranks of a class stay alike. If some could, they come in, and the step is simulated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Mask
from clustersim.engine.compile import Draft, Plan, Work, bound, draft
from clustersim.engine.fold.refinement import Partition
from clustersim.engine.fold.saturation import saturated_links
from clustersim.engine.network import folded
from clustersim.engine.player import SIMPY, Player
from clustersim.engine.record import Record
from clustersim.topology.model import Topology

MIN_CLASSES_TO_FOLD = 64
"""So few classes are simulated sooner than it is found out which links they need."""

MIN_FOLDING_GAIN = 2
"""How many times fewer classes and links are worth a simulation that may prove wrong."""


class PlayedJobs(NamedTuple):
    """Steps of jobs that were simulated on some links."""

    plans: tuple[Plan, ...]
    records: tuple[Sequence[Record], ...]
    """Of each job, all steps that were under way, in which links are looked for that could have been short."""


JobsPlayer = Callable[[Partition, Mask], PlayedJobs | None]
"""Simulates jobs on the cells that they fold to with some of `Demand.links`; None where their times cannot be proved."""


def play(
    work: Work,
    topology: Topology,
    fold: bool = True,
    progress: Callable[[float], None] = lambda _: None,
    player: Player = SIMPY,
) -> tuple[Plan, Record] | None:
    """Simulate one step of a job. `fold` off simulates every rank, on all links that could be short.

    Returns None where the player cannot prove its times.
    """
    if (known := player.replay_cached(work.seconds)) is not None:
        return known
    drafted = draft([work], topology)
    every: Mask = np.ones(len(drafted.demand.links), bool)

    def simulated(cells: Partition, kept: Mask) -> PlayedJobs | None:
        own = player if kept is every else replace(player, structure=None)  # else it holds for these times alone
        [plan] = bound(drafted, cells, kept)
        record = own.step(plan, progress)
        return None if record is None else PlayedJobs((plan,), ((record,),))

    found = adapted(drafted, every, simulated, fold)
    return None if found is None else (found.plans[0], found.records[0][0])


def adapted(
    drafted: Draft, every: Mask, simulated: JobsPlayer, fold: bool = True, kept: Mask | None = None
) -> PlayedJobs | None:
    """Simulate jobs on the links that prove to be short, or on all of them where that is sooner done.

    every: all of the links. kept: those to begin with, if not with none. Returns None where no times could be proved.
    """
    whole = folded(drafted.demand, every, fold)
    kept = ~every if kept is None else kept
    while fold and _worth(whole, kept):
        cells = folded(drafted.demand, kept)
        if MIN_FOLDING_GAIN * len(cells.ranks.first) > len(whole.ranks.first):
            break
        found = simulated(cells, kept)
        if found is None:
            break
        short = saturated_links(drafted.demand, [plan.network for plan in found.plans], found.records) & ~kept
        if not short.any():
            return found
        kept = kept | short
    return simulated(whole, every)


def _worth(whole: Partition, kept: Mask) -> bool:
    """Return whether it may pay to leave links out: a simulation that proves wrong is time lost."""
    return len(whole.ranks.first) > MIN_CLASSES_TO_FOLD and MIN_FOLDING_GAIN * int(kept.sum()) < len(kept)
