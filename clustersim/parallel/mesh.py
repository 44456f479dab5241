"""Which rank does what: one array of ranks whose axes are pp, dp, ep, cp, tp; groups are slices of it.

The order is Megatron's default `tp-cp-ep-dp-pp` (megatron/core/parallel_state.py): tp peers are neighbours, pipeline
stages are farthest apart. A job has one mesh for the dense part of the model, whose ep is 1, and one for the experts, whose tp
are their slices and whose dp are the copies of an expert ("MoE parallel folding"). cp is 1 until it is split.
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
    """Pipeline stages."""
    dp: int
    """Copies of the dense part; on the mesh of experts, of each expert."""
    cp: int = 1
    """Context-parallel degree."""
    ep: int = 1
    """Ranks among which experts are divided; 1 on the mesh of the dense part."""

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
        """Return the rank at these coordinates."""
        return int(self.ranks[pp, dp, 0, 0, tp])

    def coordinates(self, rank: Ints | int) -> tuple[Ints, ...]:
        """Return the coordinates of ranks in the order of `AXES`."""
        return tuple(np.asarray(axis, np.int64) for axis in np.unravel_index(rank, self.shape))

    def groups(self, *axes: str) -> Ints:
        """Return the groups over one or more of "pp", "dp", "ep", "cp", "tp", in this order, as (number of groups, size)."""
        inner = [AXES.index(axis) for axis in axes]
        size = math.prod(self.shape[axis] for axis in inner)
        return np.moveaxis(self.ranks, inner, range(-len(inner), 0)).reshape(-1, size)

    def embedding(self) -> Ints:
        """Return the groups that share a tied embedding, first and last stage, as (tp·dp·ep, 2); none when pp is 1."""
        if self.pp == 1:
            return np.empty((0, 2), np.int64)
        return self.groups("pp")[:, [0, -1]]

    def p2p(self) -> Ints:
        """Return the pairs of ranks that hand activations on to the next stage as ((pp - 1)·tp·dp·ep, 2)."""
        lanes = self.groups("pp")
        return np.stack([lanes[:, :-1].ravel(), lanes[:, 1:].ravel()], axis=1)
