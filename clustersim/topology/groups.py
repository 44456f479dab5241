"""Cables between groups of switches, equally many for every pair of groups, as in a dragonfly and a Dragonfly+."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.config.fabric import Dragonfly, DragonflyPlus
from clustersim.hardware.constants import FIBRE
from clustersim.topology.detours import directed
from clustersim.topology.lattice import pair_ends, pair_number
from clustersim.topology.specs import NodeSpecs


class GlobalCables(NamedTuple):
    """Cables by the relative arrangement of Camarero, Vallejo and Beivide (2014).

    The c-th cable between groups i < k is port c·(groups-1) + k-i-1 of group i, and port c·(groups-1) + groups-(k-i)-1 of group
    k. Port x is on switch x // h of its group. Pairs of groups are numbered k(k-1)/2 + i.
    """

    groups: int
    switches: int
    """Switches per group that have such cables."""
    h: int
    """Ports to other groups per switch."""

    @property
    def pairs(self) -> int:
        """Number of pairs of groups."""
        return self.groups * (self.groups - 1) // 2

    @property
    def copies(self) -> int:
        """Number of cables between two groups."""
        return self.switches * self.h // (self.groups - 1) if self.groups > 1 else 0

    def ends(self, pair: Ints, copy: Ints) -> tuple[Ints, Ints]:
        """Return (switch in the lower group, switch in the higher group) of cable number `copy` of each pair of groups.

        Switches are numbered group after group.
        """
        low, high = pair_ends(pair)
        port = copy * (self.groups - 1)
        below, above = (port + high - low - 1) // self.h, (port + self.groups - (high - low) - 1) // self.h
        return low * self.switches + below, high * self.switches + above

    def cross(self, source: Ints, destination: Ints, copy: Ints, lanes: int) -> tuple[Ints, Ints, Ints]:
        """Return (link, switch in the group `source`, switch in the group `destination`) of cable `copy` of each pair of groups.

        Each pair has `lanes` links with equally many cables, numbered pair by pair, first all towards the higher group. Source
        and destination must differ.
        """
        pair = pair_number(np.minimum(source, destination), np.maximum(source, destination))
        backward = source > destination
        link = (backward * self.pairs + pair) * lanes + copy * lanes // self.copies
        return link, *directed(backward, *self.ends(pair, copy))


def delays(cluster: NodeSpecs, spec: Dragonfly | DragonflyPlus) -> tuple[float, float]:
    """Return the latency in seconds of a link inside a group and between groups. Raises ConfigError without three lengths."""
    lengths = spec.link.cable or (0.0, 0.0, 0.0)
    if len(lengths) != 3:
        what = f"{len(lengths)} cable lengths; give three: to the NIC, inside a group, between groups"
        raise cluster.error(("fabric", "link", "cable"), f"fabric.link.cable: {what}")
    return spec.switch_latency + FIBRE * lengths[1], spec.switch_latency + FIBRE * lengths[2]
