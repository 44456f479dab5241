"""A job is folded on only the links that prove to be bottlenecks.

Every link in a simulation separates ranks, even if it is never full. So the simulation starts without links that cost classes,
and then checks whether the transfers, at their simulated times, could have filled one of them. If none could, they moved as with
all links: a max-min solution that respects a limit remains the solution when the limit is added, and the ranks of a class remain
equivalent. If some could, these links are added, and the step is simulated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from clustersim.arrays import Mask
from clustersim.engine.compile import Work, bound, demand_of
from clustersim.engine.fold.refinement import Partition
from clustersim.engine.fold.saturation import saturated_links
from clustersim.engine.network import Demand, folded
from clustersim.engine.player import SIMPY, Player
from clustersim.engine.record import Record
from clustersim.topology.model import Topology

MIN_CLASSES_TO_FOLD = 64
"""Number of classes below which simulating all links is faster than finding the necessary ones."""

MIN_FOLDING_GAIN = 2
"""Reduction factor of classes and links that is worth a simulation that may have to be repeated."""


PlayedSteps = tuple[Sequence[Record], ...]
"""All steps of each job that were in progress, in which bottleneck links are searched."""
JobsPlayer = Callable[[Partition, Mask], PlayedSteps]
"""Simulates jobs on the cells that they fold to with some of `Demand.links`."""


def play(
    work: Work,
    topology: Topology,
    fold: bool = True,
    progress: Callable[[float], None] = lambda _: None,
    player: Player = SIMPY,
) -> Record:
    """Simulate one step of a job. `fold` off simulates every rank, on all links that could be short."""
    if (known := player.replay_cached(work.seconds)) is not None:
        return known
    demand = demand_of([work], topology)
    every: Mask = np.ones(len(demand.links), bool)

    def simulated(cells: Partition, kept: Mask) -> PlayedSteps:
        own = player if kept is every else replace(player, structure=None)  # else it holds for these times alone
        [plan] = bound([work], demand, cells, kept)
        return ((own.step(plan, progress),),)

    [[record]] = adapted(demand, every, simulated, fold)
    return record


def adapted(
    demand: Demand, every: Mask, simulated: JobsPlayer, fold: bool = True, kept: Mask | None = None
) -> PlayedSteps:
    """Simulate jobs with only the links that prove to be short, or with all links if that takes less time.

    every: mask of all links. kept: links to start with (default: none).
    """
    whole = folded(demand, every, fold)
    kept = ~every if kept is None else kept
    # leaving links out may save time where there are many classes: a simulation that needs more links is repeated
    many = fold and len(whole.ranks.first) > MIN_CLASSES_TO_FOLD
    while many and MIN_FOLDING_GAIN * int(kept.sum()) < len(kept):
        cells = folded(demand, kept)
        if MIN_FOLDING_GAIN * len(cells.ranks.first) > len(whole.ranks.first):
            break
        found = simulated(cells, kept)
        short = saturated_links(demand, [steps[0].plan.network for steps in found], found) & ~kept
        if not short.any():
            return found
        kept = kept | short
    return simulated(whole, every)
