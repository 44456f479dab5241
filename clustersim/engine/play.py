"""A job is folded on the links that prove to be short, and on no others.

Every link that the simulation knows tells ranks apart, also one that is never full. So it begins without those that cost
classes, and then looks whether the transfers, as they were under way, could have filled one of them. If none could, they moved
as they would have with all links: a max-min solution that keeps within a limit stays the solution when that limit is added,
and the ranks of a class stay alike. If some could, they come in, and the step is simulated again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clustersim.engine.overfull import overfull
from clustersim.engine.network import network
from clustersim.engine.plan import Draft, Plan, bind
from clustersim.engine.simulate import Record, simulate
from clustersim.engine.traffic import Mask

_WORTH = 2
"""Leaving links out must at least halve the classes: a simulation that proves wrong is time lost."""


def play(drafted: Draft, fold: bool = True, progress: Callable[[float], None] = lambda _: None) -> tuple[Plan, Record]:
    """Return what was simulated, and the record. `fold` off simulates every rank on all links that could be short."""
    whole = network(drafted.demand, drafted.seeds, fold)
    kept: Mask = np.zeros(len(drafted.demand.links), bool)
    while fold:
        net = network(drafted.demand, drafted.seeds, fold, kept)
        if _WORTH * len(net.cells.ranks.first) > len(whole.cells.ranks.first):
            break
        planned = bind(drafted, net)
        record = simulate(planned.programs, net, planned.members, progress)
        short = overfull(drafted.demand, net.cells, record) & ~kept
        if not short.any():
            return planned, record
        kept |= short
    planned = bind(drafted, whole)
    return planned, simulate(planned.programs, whole, planned.members, progress)
