"""The mapping of ranks: one array of ranks whose axes are pp, dp, ep, cp, tp; groups are slices of it.

The order is Megatron's default `tp-cp-ep-dp-pp` (megatron/core/parallel_state.py): tp peers are neighbours, pipeline stages are
farthest apart. A job has two meshes ("MoE parallel folding"): in the mesh of the dense part ep is 1; in the mesh of the experts
tp counts slices of an expert and dp its copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from clustersim.arrays import Ints

AXES = ("pp", "dp", "ep", "cp", "tp")
"""Axes of the mesh, from the slowest to the fastest in the order of ranks."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Parallel degrees of a job. Coordinates (pp, dp, ep, cp, tp) belong to rank (((pp·DP + dp)·EP + ep)·CP + cp)·TP + tp."""

    tp: int
    """Tensor-parallel degree."""
    pp: int
    """Number of pipeline stages."""
    dp: int
    """Number of copies of the dense part; on the mesh of experts, of each expert."""
    cp: int = 1
    """Context-parallel degree."""
    ep: int = 1
    """Number of ranks over which experts are divided; 1 on the mesh of the dense part."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Degrees in the order of `AXES`."""
        return self.pp, self.dp, self.ep, self.cp, self.tp

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.pp * self.dp * self.ep * self.cp * self.tp

    @property
    def ranks(self) -> Ints:
        """All ranks as one array of `shape`."""
        return np.arange(self.size, dtype=np.int64).reshape(self.shape)

    def rank(self, dp: int, pp: int, tp: int) -> int:
        """Return the rank at the coordinates dp, pp and tp, with ep and cp 0."""
        return int(self.ranks[pp, dp, 0, 0, tp])

    def coordinates(self, rank: Ints | int) -> tuple[Ints, ...]:
        """Return the coordinates of one rank or an array of ranks: an array like `rank` for each of `AXES`."""
        return tuple(np.asarray(axis, np.int64) for axis in np.unravel_index(rank, self.shape))

    def groups(self, *axes: str) -> Ints:
        """Return all groups of ranks that differ only in their coordinates on `axes`, an array (groups, size).

        axes: one or more of "pp", "dp", "ep", "cp", "tp". In a group the last of them varies fastest.
        """
        inner = [AXES.index(axis) for axis in axes]
        size = math.prod(self.shape[axis] for axis in inner)
        return np.moveaxis(self.ranks, inner, range(-len(inner), 0)).reshape(-1, size)

    def embedding(self) -> Ints:
        """Return the pairs (rank of the first stage, rank of the last stage) that share a tied embedding, an array (pairs, 2).
        There are none if pp is 1."""
        if self.pp == 1:
            return np.empty((0, 2), np.int64)
        return self.groups("pp")[:, [0, -1]]

    def p2p(self) -> Ints:
        """Return the pairs (rank, its next rank in the pipeline), an array ((pp - 1)·ranks per stage, 2)."""
        lanes = self.groups("pp")
        return np.stack([lanes[:, :-1].ravel(), lanes[:, 1:].ravel()], axis=1)
