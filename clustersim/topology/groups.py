"""The cables of a dragonfly by arithmetic.

Local cable s(s-1)/2 + r of a group joins its routers r < s. Global cable (k(k-1)/2 + i)·copies + c is the c-th one between
groups i < k; in group i it is port c·(groups-1) + k-i-1, in group k port c·(groups-1) + groups-(k-i)-1, and port x is on
router x // h: the relative arrangement of Camarero, Vallejo and Beivide (2014).
Links: local up, local down, global up, global down; up is from the router or group with the smaller number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clustersim.topology.alike import Classes
from clustersim.topology.detours import Detours
from clustersim.topology.lattice import triangle
from clustersim.topology.model import Ints, Mask


@dataclass(frozen=True, slots=True)
class Groups:
    """a routers a group, p endpoints and h global ports a router; minimal paths: local, global, local."""

    a: int
    p: int
    h: int
    groups: int

    @property
    def copies(self) -> int:
        """Global cables between two groups."""
        return self.a * self.h // (self.groups - 1) if self.groups > 1 else 0

    @property
    def local_cables(self) -> int:
        """Cables inside groups."""
        return self.groups * (self.a * (self.a - 1) // 2)

    @property
    def global_cables(self) -> int:
        """Cables between groups."""
        return self.groups * (self.groups - 1) // 2 * self.copies

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints; parallel global cables take turns by source and destination."""
        here, there = source // self.p, destination // self.p
        i, k = here // self.a, there // self.a
        columns = np.full((len(here), 3), -1, np.int64)
        far = np.flatnonzero(i != k)
        leave, enter = here.copy(), there.copy()
        if len(far):
            copy = (source[far] + destination[far]) % self.copies
            low, high = np.minimum(i, k)[far], np.maximum(i, k)[far]
            cable = (high * (high - 1) // 2 + low) * self.copies + copy
            first = 2 * self.local_cables
            columns[far, 1] = first + cable + np.where(i[far] < k[far], 0, self.global_cables)
            below, above = self._ends(cable)
            leave[far], enter[far] = np.where(i[far] < k[far], [below, above], [above, below])
        columns[:, 0] = self._local(here, np.where(i == k, there, leave))
        columns[far, 2] = self._local(enter[far], there[far])
        return columns

    def classes(self, endpoint: Ints) -> Classes:
        """Return the routers of endpoints, and which of the parallel cables they would begin with."""
        found = endpoint // self.p * max(self.copies, 1) + endpoint % max(self.copies, 1)
        return found, found

    def _local(self, here: Ints, there: Ints) -> Ints:
        """Return the link between routers of one group, -1 from a router to itself."""
        r, s = here % self.a, there % self.a
        low, high = np.minimum(r, s), np.maximum(r, s)
        cable = here // self.a * (self.a * (self.a - 1) // 2) + high * (high - 1) // 2 + low
        return np.where(r == s, -1, cable + np.where(r < s, 0, self.local_cables))

    def _ends(self, cable: Ints) -> tuple[Ints, Ints]:
        """Return the routers of global cables in the lower and in the higher group."""
        pair, copy = np.divmod(cable, max(self.copies, 1))
        low, high = triangle(pair)
        base = copy * (self.groups - 1)
        near, far = base + high - low - 1, base + self.groups - (high - low) - 1
        return low * self.a + near // self.h, high * self.a + far // self.h

    def wires(self) -> tuple[Ints, Ints]:
        """Return the routers that each link leads from and to."""
        group, pair = np.divmod(np.arange(self.local_cables), max(self.a * (self.a - 1) // 2, 1))
        low, high = (group * self.a + end for end in triangle(pair))
        below, above = self._ends(np.arange(self.global_cables))
        return np.concatenate([low, high, below, above]), np.concatenate([high, low, above, below])

    def ends(self, link: int) -> tuple[str, str]:
        """Return the two routers of a link by name."""
        cables = self.local_cables if link < 2 * self.local_cables else self.global_cables
        downward, cable = divmod(link - (0 if link < 2 * self.local_cables else 2 * self.local_cables), cables)
        one = np.array([cable])
        if link < 2 * self.local_cables:
            group, pair = np.divmod(one, self.a * (self.a - 1) // 2)
            low, high = (group * self.a + end for end in triangle(pair))
        else:
            low, high = self._ends(one)
        names = name(int(low[0])), name(int(high[0]))
        return names[::-1] if downward else names

    def without(self, dead: Mask) -> Detours:
        """Return the paths around dead links. Raises UnreachableError when a router is cut off."""
        return Detours.around(self, dead, self.wires(), self.p, name)


def name(router: int) -> str:
    """Return the name of a router."""
    return f"router[{router}]"
