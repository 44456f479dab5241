"""Node and NIC of each GPU; GPUs and NICs are both numbered node after node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from clustersim.arrays import Ints, distinct, divide, entries, offsets


@dataclass(frozen=True, slots=True, eq=False)
class Numbering:
    """Numbering of the GPUs and NICs of a cluster."""

    width: int
    """GPUs per node; 0 if nodes differ in GPUs, NICs, or the NICs of their GPUs."""
    first: Ints
    """First GPU of each node, followed by the number of GPUs (nodes + 1,)."""
    nic: Ints
    """NIC of each GPU; the first GPU of a node has its first NIC, and every NIC has a GPU (GPUs,)."""
    first_nic: Ints
    """First NIC of each node (nodes,)."""
    node: Ints | None = None
    """Node of each GPU, if `width` is 0 (GPUs,)."""
    before: Numbering | None = None
    """Numbering before nodes died; None if none has."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.first) - 1

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return len(self.nic)

    @property
    def widths(self) -> tuple[int, ...]:
        """Distinct numbers of GPUs per node, ascending."""
        return (self.width,) if self.width else tuple(distinct(np.diff(self.first)).tolist())

    @property
    def built(self) -> Numbering:
        """Numbering used in names of links: the one before nodes died."""
        return self.before or self

    def node_of(self, gpus: Ints) -> Ints:
        """Return the node of each of `gpus`."""
        return divide(gpus, self.width)[0] if self.node is None else self.node[gpus]

    def split(self, gpus: Ints) -> tuple[Ints, Ints]:
        """Return (node, index in the node) of each GPU."""
        if self.node is None:
            return divide(gpus, self.width)
        node = self.node[gpus]
        return node, gpus - self.first[node]

    def common_width(self, gpus: int | None = None) -> int:
        """Return the greatest common divisor of the GPUs per node, over the nodes of the first `gpus` GPUs (default: all)."""
        if self.width:
            return self.width
        last = self.nodes if gpus is None else int(np.searchsorted(self.first, min(gpus, self.gpus)))
        return int(np.gcd.reduce(np.diff(self.first)[: max(last, 1)]))

    def place(self, kind: str, number: int) -> tuple[int, int]:
        """Return (node, index in the node) of the GPU (kind `gpu`) or NIC (`nic`, `ports`) with a number."""
        first = self.first[:-1] if kind == "gpu" else self.first_nic
        node = int(np.searchsorted(first, number, "right")) - 1
        return node, number - int(first[node])

    def gpus_of(self, nodes: Ints) -> Ints:
        """Return all GPUs of `nodes`, one node after the other."""
        return entries(self.first, nodes)

    def in_next_node(self, gpus: Ints) -> Ints:
        """Return for each GPU the one at the same index (or the last index) in the next node; the first node follows the last."""
        node, local = self.split(gpus)
        node = (node + 1) % self.nodes
        gpu_in_next: Ints = self.first[node] + np.minimum(local, np.diff(self.first)[node] - 1)
        return gpu_in_next

    def owners(self) -> Ints:
        """Return the first GPU of each NIC (NICs,)."""
        first_gpu = np.empty(int(self.nic.max()) + 1, np.int64)
        first_gpu[self.nic[::-1]] = np.arange(self.gpus)[::-1]  # among several writes to one index the last one wins
        return first_gpu

    def only(self, nodes: Ints) -> Numbering:
        """Return the numbering of the given nodes only; NICs keep their numbers."""
        return _numbering(self.width, np.diff(self.first)[nodes], self.nic[self.gpus_of(nodes)], self.built)


def numbered(runs: Iterable[tuple[int, int, Ints]]) -> Numbering:
    """Return the numbering of consecutive runs of nodes (number of nodes, NICs per node, at least 1, NIC of each GPU)."""
    counts, nics, nic_of = zip(*runs, strict=True)
    starts = np.split(offsets(np.repeat(nics, counts))[:-1], np.cumsum(counts)[:-1])
    nic = [(start[:, np.newaxis] + local_nics).ravel() for start, local_nics in zip(starts, nic_of, strict=True)]
    equal = len(set(nics)) == 1 and all(np.array_equal(local_nics, nic_of[0]) for local_nics in nic_of)
    gpus = np.repeat([len(local_nics) for local_nics in nic_of], counts)
    return _numbering(len(nic_of[0]) if equal else 0, gpus, np.concatenate(nic))


def _numbering(width: int, gpus: Ints, nic: Ints, before: Numbering | None = None) -> Numbering:
    """Return a numbering. gpus: number of GPUs of each node. nic: NIC of each GPU. width, before: as in Numbering."""
    first, node = offsets(gpus), None if width else np.repeat(np.arange(len(gpus)), gpus)
    return Numbering(width, first, nic, nic[first[:-1]], node, before)
