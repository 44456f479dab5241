"""What every collective algorithm provides, in two forms that tests hold against each other.

Each file of this folder is one algorithm and has

    OPS: frozenset[str]                                   the collectives it can do
    def steps(op, group) -> Iterator[Step]                what each rank sends in each round, on chunks
    def phases(op, group) -> tuple[Phase | Exchange, ...] the same as bytes over pairs of ranks, for the fluid fabric

for a group of two or more ranks. `steps` is proved against the pre- and postcondition of the collective (`proof.py`);
`phases` must carry the same bytes over the same pairs and count the same rounds. An algorithm that cuts its chunks
finer to keep a chain or a tree busy is proved uncut: the pieces of a chunk follow it on its way.

A source or destination below zero is a switch that adds what comes in and copies what goes out: `node_switch(j)` joins the
GPUs of node j (NVLS), `network_switch(r)` the NICs of rail r of all nodes (SHARP). It holds nothing at first. Node j are the
positions j·levels[0] … (j + 1)·levels[0] - 1, and a position's rail is its place in there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim import plugins
from clustersim.collectives.skew import OPS as SKEWED
from clustersim.collectives.skew import checked
from clustersim.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROOM = "clustersim.collectives"


class Step(NamedTuple):
    """In round `round`, rank `source` sends chunk `chunk` to `destination`, which adds it to its own or overwrites it.

    All steps of a round happen at once. Either end may be a switch, below zero. `relay`: the source passes on what it last
    received of the chunk, not what it has since added up.
    """

    round: int
    source: int
    destination: int
    chunk: int
    reduce: bool
    relay: bool = False


class Group(NamedTuple):
    """The ranks of a communicator by position 0 … n-1.

    `levels` are fan-outs from the innermost level outwards, their product is n: (8, 240) is 240 nodes of 8 ranks each.
    Digit l of position p is p // prod(levels[:l]) % levels[l]. `shares` are the parts of all rows of a dispatch, combine or
    all_to_all that belong to the experts of each position, with the sum 1; empty when all have as many.
    """

    n: int
    levels: tuple[int, ...]
    shares: tuple[float, ...] = ()


class Phase(NamedTuple):
    """A part of a collective that moves at one rate.

    Position `source[i]` sends `fraction[i]`·S bytes to position `destination[i]`, S being the size of the collective as
    nccl-tests counts it. The phase has `rounds` dependent steps, each of which pays the latency of the slowest pair.
    """

    rounds: float
    source: Ints
    destination: Ints
    fraction: Floats

    def pairs(self) -> Phase:
        """Return the phase itself, as an Exchange returns its pairs."""
        return self


class Exchange(NamedTuple):
    """A phase in which every position sends to every other: position i sends `sent[i]`·`received[j]`·S bytes to position j.

    As a Phase it has n² pairs, which nobody needs to write down: they are alike.
    """

    rounds: float
    sent: Floats
    received: Floats

    def pairs(self) -> Phase:
        """Return the same as a Phase; pairs without bytes are left out."""
        n = len(self.sent)
        shift, source = np.divmod(np.arange(n * (n - 1), dtype=np.int64), n)
        destination = (source + shift + 1) % n
        fraction = self.sent[source] * self.received[destination]
        kept = fraction > 0
        return Phase(self.rounds, source[kept], destination[kept], fraction[kept])


NETWORK = -(1 << 40)
"""Positions from here downwards are switches between nodes."""


def node_switch(node: int) -> int:
    """Return the position that stands for the switches inside a node."""
    return -1 - node


def network_switch(rail: int) -> int:
    """Return the position that stands for the switches between nodes on a rail."""
    return NETWORK - rail


def nodes_of(group: Group) -> tuple[int, int]:
    """Return (positions of a node, nodes)."""
    inside = group.levels[0] if group.levels else 1
    return inside, group.n // inside


def phases(algorithm: str, op: str, group: Group) -> tuple[Phase | Exchange, ...]:
    """Return the phases, one after the other, in which `algorithm` does `op` over `group`; none for a single rank.

    S of a Phase is the whole array for all_reduce, all_gather, reduce_scatter, broadcast and reduce, and the bytes that
    one rank sends, its own share included, for all_to_all (nccl-tests, doc/PERFORMANCE.md). With shares a position sends
    share j of S to position j in all_to_all and dispatch, and position j sends share j of S to each one in combine. The
    root is position 0. The arrays are shared and read-only. Raises UnknownNameError for an unknown algorithm, InputError for an
    operation or a group it cannot do.
    """
    shares = checked(group.shares, group.n) if op in SKEWED else ()
    return _phases(algorithm, op, Group(int(group.n), tuple(map(int, group.levels)), shares))


@lru_cache(maxsize=64)
def _phases(algorithm: str, op: str, group: Group) -> tuple[Phase | Exchange, ...]:
    build = plugins.load(ROOM, algorithm, "phases")
    can = operations(build)
    if can is not None and op not in can:
        raise InputError(f"{algorithm} cannot do {op}, only {', '.join(sorted(can))}; {op} is done by {_able(op)}")
    if group.n < 1 or math.prod(group.levels) != group.n:
        raise InputError(f"levels {group.levels} of a group must multiply to its {group.n} ranks")
    if group.n == 1:
        return ()
    found: tuple[Phase | Exchange, ...] = build(op, group)
    for phase in found:
        for array in phase[1:]:
            array.flags.writeable = False
    return found


def operations(build: Callable[..., object]) -> frozenset[str] | None:
    """Return the OPS of the module that defines an algorithm's function, None when it declares none."""
    return getattr(sys.modules.get(getattr(build, "__module__", "")), "OPS", None)


def _able(op: str) -> str:
    able = [name for name in sorted(plugins.names(ROOM)) if op in plugins.load(ROOM, name, "OPS")]
    return ", ".join(able) or "none of the algorithms"


def digits(group: Group, level: int) -> tuple[Ints, int, int]:
    """Return (digit `level` of every position, the stride between neighbours of that level, its fan-out)."""
    stride, fan = math.prod(group.levels[:level]), group.levels[level]
    return np.arange(group.n, dtype=np.int64) // stride % fan, stride, fan


def neighbours(group: Group, level: int) -> Ints:
    """Return, for every position, the next one in the ring over digit `level`, its other digits kept."""
    digit, stride, fan = digits(group, level)
    return np.arange(group.n, dtype=np.int64) + ((digit + 1) % fan - digit) * stride


def backwards(steps: Iterable[Step], last: int) -> Iterator[Step]:
    """Yield a reduce_scatter from the steps of an all_gather whose last round is `last`: the same ways back, added up."""
    for step in steps:
        yield Step(last - step.round, step.destination, step.source, step.chunk, reduce=True)


def merged(rounds: float, *parts: tuple[Ints, Ints, float]) -> Phase:
    """Return the phase of several lists (sources, destinations, fraction) of pairs; those without bytes are left out."""
    parts = tuple(part for part in parts if part[2])
    source, destination = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    return Phase(rounds, source, destination, np.repeat([part[2] for part in parts], [len(part[0]) for part in parts]))


def uniform(rounds: float, source: Ints, destination: Ints, fraction: float) -> Phase:
    """Return a phase in which every pair carries the same fraction."""
    return Phase(rounds, source, destination, np.full(len(source), fraction))
