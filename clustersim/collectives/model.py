"""What every collective algorithm provides, in two forms that tests hold against each other.

Each file of this folder is one algorithm and has

    OPS: frozenset[str]                                   the collectives it can do
    def steps(op, n) -> Iterator[Step]                    what each rank sends in each round, on chunks
    def phases(op, group) -> tuple[Phase, ...]            the same as bytes over pairs of ranks, for the fluid fabric

`steps` is proved against the pre- and postcondition of the collective; `phases` must carry the same bytes over the same
pairs and count the same rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Step(NamedTuple):
    """In round `round`, rank `source` sends chunk `chunk` to `destination`, which adds it to its own or overwrites it."""

    round: int
    source: int
    destination: int
    chunk: int
    reduce: bool


class Group(NamedTuple):
    """The ranks of a communicator by position 0 … n-1.

    `levels` are fan-outs from the innermost level outwards, their product is n: (8, 240) is 240 nodes of 8 ranks each.
    """

    n: int
    levels: tuple[int, ...]


class Phase(NamedTuple):
    """A part of a collective that moves at one rate.

    Position `source[i]` sends `fraction[i]`·S bytes to position `destination[i]`, S being the size of the collective as
    nccl-tests counts it. The phase has `rounds` dependent steps, each of which pays the latency of the slowest pair.
    """

    rounds: float
    source: Ints
    destination: Ints
    fraction: Floats
