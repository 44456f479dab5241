"""Which node each GPU is of, and which NIC it leaves by: both are numbered node after node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from clustersim.arrays import Ints, divide, entries, offsets


@dataclass(frozen=True, slots=True, eq=False)
class Numbering:
    """The numbers of the GPUs and NICs of a cluster."""

    width: int
    """GPUs of every node; 0 where nodes have different numbers of GPUs or NICs, or other NICs for their GPUs."""
    first: Ints
    """The first GPU of each node, and the number of GPUs (nodes + 1,)."""
    nic: Ints
    """The NIC of each GPU; the first GPU of a node has its first NIC, and every NIC has a GPU (GPUs,)."""
    first_nic: Ints
    """The first NIC of each node (nodes,)."""
    node: Ints | None = None
    """The node of each GPU, where `width` does not tell (GPUs,)."""
    before: Numbering | None = None
    """The numbers before nodes died, if any have."""

    @property
    def nodes(self) -> int:
        """How many."""
        return len(self.first) - 1

    @property
    def gpus(self) -> int:
        """How many."""
        return len(self.nic)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many GPUs nodes have: each number once, ascending."""
        return (self.width,) if self.width else tuple(np.unique(np.diff(self.first)).tolist())

    @property
    def built(self) -> Numbering:
        """The numbers by which links are called: those before nodes died."""
        return self.before or self

    def node_of(self, gpus: Ints) -> Ints:
        """Return the node of each GPU."""
        return divide(gpus, self.width)[0] if self.node is None else self.node[gpus]

    def split(self, gpus: Ints) -> tuple[Ints, Ints]:
        """Return the node of each GPU, and its place there."""
        if self.node is None:
            return divide(gpus, self.width)
        node = self.node[gpus]
        return node, gpus - self.first[node]

    def filled_by(self, gpus: int | None = None) -> int:
        """Return the largest number of GPUs that fills each node of the first `gpus`, usually all: of 4 and 8 it is 4."""
        if self.width:
            return self.width
        last = self.nodes if gpus is None else int(np.searchsorted(self.first, min(gpus, self.gpus)))
        return int(np.gcd.reduce(np.diff(self.first)[: max(last, 1)]))

    def place(self, kind: str, number: int) -> tuple[int, int]:
        """Return the node of a GPU (kind `gpu`) or a NIC (`nic`, `ports`), and its place there."""
        first = self.first[:-1] if kind == "gpu" else self.first_nic
        node = int(np.searchsorted(first, number, "right")) - 1
        return node, number - int(first[node])

    def gpus_of(self, nodes: Ints) -> Ints:
        """Return all GPUs of nodes, one node after the other."""
        return entries(self.first, nodes)

    def in_next_node(self, gpus: Ints) -> Ints:
        """Return a GPU of the next node for each, after the last the first: at the same place, or at the last that there is."""
        node, local = self.split(gpus)
        node = (node + 1) % self.nodes
        found: Ints = self.first[node] + np.minimum(local, np.diff(self.first)[node] - 1)
        return found

    def owners(self) -> Ints:
        """Return the first GPU of each NIC (NICs,)."""
        found = np.empty(int(self.nic.max()) + 1, np.int64)
        found[self.nic[::-1]] = np.arange(self.gpus)[::-1]  # of several writes to one place the last one remains
        return found

    def only(self, nodes: Ints) -> Numbering:
        """Return the numbers of those nodes alone; their NICs keep theirs."""
        return _numbering(self.width, np.diff(self.first)[nodes], self.nic[self.gpus_of(nodes)], self.built)


def numbered(runs: Iterable[tuple[int, int, Ints]]) -> Numbering:
    """Return the numbers of nodes that come one run after the other: how many, NICs of one (at least 1), the NIC of each GPU."""
    counts, nics, nic_of = zip(*runs, strict=True)
    starts = np.split(offsets(np.repeat(nics, counts))[:-1], np.cumsum(counts)[:-1])
    nic = [(start[:, np.newaxis] + own).ravel() for start, own in zip(starts, nic_of, strict=True)]
    equal = len(set(nics)) == 1 and all(np.array_equal(own, nic_of[0]) for own in nic_of)
    gpus = np.repeat([len(own) for own in nic_of], counts)
    return _numbering(len(nic_of[0]) if equal else 0, gpus, np.concatenate(nic))


def _numbering(width: int, gpus: Ints, nic: Ints, before: Numbering | None = None) -> Numbering:
    """Return the numbers, given the GPUs of each node."""
    first, node = offsets(gpus), None if width else np.repeat(np.arange(len(gpus)), gpus)
    return Numbering(width, first, nic, nic[first[:-1]], node, before)
