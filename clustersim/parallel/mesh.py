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


@dataclass(frozen=True, slots=True)
class Mesh:
    """The degrees of a split; rank = (((pp·DP + dp)·EP + ep)·CP + cp)·TP + tp."""

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
        """Return the rank at these coordinates, with ep and cp 0."""
        return int(self.ranks[pp, dp, 0, 0, tp])

    def coordinates(self, rank: Ints | int) -> tuple[Ints, ...]:
        """Return the coordinates of ranks in the order of `AXES`."""
        return tuple(np.asarray(axis, np.int64) for axis in np.unravel_index(rank, self.shape))

    def groups(self, *axes: str) -> Ints:
        """Return the groups over one or more of "pp", "dp", "ep", "cp", "tp", in this order, as an array (groups, size)."""
        inner = [AXES.index(axis) for axis in axes]
        size = math.prod(self.shape[axis] for axis in inner)
        return np.moveaxis(self.ranks, inner, range(-len(inner), 0)).reshape(-1, size)

    def embedding(self) -> Ints:
        """Return the groups of first and last stage that share a tied embedding, an array (groups, 2); none if pp is 1."""
        if self.pp == 1:
            return np.empty((0, 2), np.int64)
        return self.groups("pp")[:, [0, -1]]

    def p2p(self) -> Ints:
        """Return the pairs of ranks that send activations to the next stage, an array ((pp - 1)·ranks per stage, 2)."""
        lanes = self.groups("pp")
        return np.stack([lanes[:, :-1].ravel(), lanes[:, 1:].ravel()], axis=1)
