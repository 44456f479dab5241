"""The link that a collective keeps busiest on an idle fabric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clustersim.collectives.loads import loads
from clustersim.collectives.model import Exchange, Ints, Phase
from clustersim.topology.model import Topology


class Busiest(NamedTuple):
    """A link, how many others are as busy, its bytes for each byte of the collective's size, its bytes/s.

    `rate`: bytes/s of the collective's size that all links together give it.
    """

    link: int
    others: int
    weight: float
    capacity: float
    rate: float


def busiest(topology: Topology, ranks: Ints, phases: Sequence[Phase | Exchange]) -> Busiest:
    """Return the link that one group of GPUs `ranks` (n,) uses for longest, over all phases in turn; of equals the first.

    Raises InputError as `loads` does.
    """
    total, seconds = np.zeros(len(topology.capacity)), 0.0
    for phase in phases:
        found = loads(topology, ranks[None], phase)
        own = np.bincount(found.link, found.weight, len(total))
        used = own > 0
        seconds += float((own[used] / topology.capacity[used]).max())
        total += own
    busy = np.divide(total, topology.capacity, out=np.zeros_like(total), where=total > 0)
    alike = np.flatnonzero(busy >= busy.max() * (1 - 1e-9))
    link = int(alike[0])
    return Busiest(link, len(alike) - 1, float(total[link]), float(topology.capacity[link]), 1 / seconds)
