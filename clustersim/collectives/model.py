"""What a collective algorithm says, in two forms that tests hold against each other: steps for the proof, bytes for the fabric.

Each file of `algorithms/` is one `Algorithm`, as a module: `OPS`, `steps` and `phases`. Elsewhere a class that derives from
`Algorithm` is one.

A source or destination below zero is a switch that adds what comes in and copies what goes out: `node_switch(j)` joins the
GPUs of node j (NVLS), `network_switch(r)` the NICs of rail r of all nodes (SHARP). It holds nothing at first. Node j are the
positions j·levels[0] … (j + 1)·levels[0] - 1, and a position's rail is its place in there.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np

from clustersim import plugins
from clustersim.arrays import Floats, Ints
from clustersim.collectives.skew import OPS as SKEWED
from clustersim.collectives.skew import checked
from clustersim.errors import InputError, shown
from clustersim.model.operator import CollectiveOp
from clustersim.model.router import ExpertRouter

ROOM = "clustersim.collectives"


class Step(NamedTuple):
    """One rank sends one chunk to another, which adds it to its own or overwrites it. All steps of a round happen at once."""

    round: int
    """When; rounds follow one another."""
    source: int
    """The rank that sends, or a switch (below zero)."""
    destination: int
    """The rank that receives, or a switch."""
    chunk: int
    """Which part of the array."""
    reduce: bool
    """It is added to the destination's own; else it replaces it."""
    relay: bool = False
    """The source passes on what it last received of the chunk, not what it has since added up."""


class Group(NamedTuple):
    """The ranks of a communicator by position 0 … n-1."""

    n: int
    """How many."""
    levels: tuple[int, ...]
    """Fan-outs from the innermost level outwards, their product is n: (8, 240) is 240 nodes of 8 ranks each. Digit l of
    position p is p // prod(levels[:l]) % levels[l]."""
    shares: tuple[float, ...] = ()
    """The parts of all rows of a dispatch, combine or all_to_all that belong to the experts of each position, with the sum 1;
    empty when all have as many."""
    router: ExpertRouter | None = None
    """How a router chooses the experts of the rows of a dispatch or combine; None: each row is a token of its own."""
    sizes: tuple[int, ...] = ()
    """Positions of each node, one node after the other, where nodes hold different numbers; `levels` are then (1, n)."""


class Phase(NamedTuple):
    """A part of a collective that moves at one rate."""

    rounds: float
    """Dependent steps, each of which pays the latency of the slowest pair."""
    source: Ints
    """Position that sends, of each pair (pairs,)."""
    destination: Ints
    """Position that receives (pairs,)."""
    fraction: Floats
    """Bytes of each pair for each byte of S, the size of the collective as nccl-tests counts it (pairs,)."""

    def pairs(self) -> Phase:
        """Return the phase itself; an AllPairs writes its pairs down."""
        return self


class AllPairs(NamedTuple):
    """A phase in which every position sends to every other: position i sends `sent[i]`·`received[j]`·S bytes to position j.

    As a Phase it has n² equal pairs, which need not be listed.
    """

    rounds: float
    """As of a Phase."""
    sent: Floats
    """By position that sends (n,)."""
    received: Floats
    """By position that receives (n,)."""

    def pairs(self) -> Phase:
        """Return the same as a Phase; pairs without bytes are left out."""
        n = len(self.sent)
        shift, source = np.divmod(np.arange(n * (n - 1), dtype=np.int64), n)
        destination = (source + shift + 1) % n
        fraction = self.sent[source] * self.received[destination]
        kept = fraction > 0
        return Phase(self.rounds, source[kept], destination[kept], fraction[kept])


OPERATIONS = frozenset({*get_args(CollectiveOp), "send"})
"""All that can be asked of an algorithm."""


@runtime_checkable
class Algorithm(Protocol):
    """A collective algorithm, for groups of two or more ranks. Derive from it: only `phases` has no default.

    A module with the three is one too.
    """

    OPS: frozenset[str] = OPERATIONS
    """The operations that it can do; the default is all."""

    def phases(self, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
        """Return the traffic of each phase: bytes over pairs of ranks.

        They are those of `steps`, over the same pairs and in as many rounds. Raises InputError for a group that it cannot do.
        """
        ...

    def steps(self, op: str, group: Group) -> Iterator[Step]:
        """Yield the chunks that each rank sends in each round, for `proof.check`. The default has nothing to prove.

        `proof.py` plays them from the precondition of the collective to its postcondition. An algorithm that cuts its chunks
        finer to keep a chain or a tree busy is proved uncut: the pieces of a chunk follow it on its way.
        """
        return iter(())


class FunctionAlgorithm(Algorithm):
    """A plain function `phases(op, group)` that says nothing of its operations and steps."""

    def __init__(self, find: Callable[[str, Group], tuple[Phase | AllPairs, ...]]) -> None:
        self.find = find

    def phases(self, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
        """Return the phases of `op` over a group."""
        return self.find(op, group)


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


def phases(name: str, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
    """Return the phases, one after the other, in which the algorithm does `op` over `group`; none for a single rank.

    S of a Phase is the whole array for all_reduce, all_gather, reduce_scatter, broadcast and reduce, and the bytes that
    one rank sends, its own share included, for all_to_all (nccl-tests, doc/PERFORMANCE.md). With shares a position sends
    share j of S to position j in all_to_all and dispatch, and position j sends share j of S to each one in combine. The
    root is position 0. The arrays are shared and read-only. Raises UnknownNameError for an unknown algorithm, InputError for an
    operation or a group it cannot do.
    """
    shares = checked(group.shares, group.n) if op in SKEWED else ()
    spelled = plugins.spelled(ROOM, name)  # a short name may mean another function tomorrow
    return _phases(spelled, op, group._replace(n=int(group.n), levels=tuple(map(int, group.levels)), shares=shares))


@lru_cache(maxsize=64)
def _phases(name: str, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
    with plugins.blaming(ROOM, name):
        return _built(name, algorithm(name), op, group)


def algorithm(name: str) -> Algorithm:
    """Return the algorithm of a name: a module, an object of a class that is named, or a function made to fit.

    A function `phases` stands for its module where that is an Algorithm. Raises UnknownNameError, and InputError for a module
    that says which operations it can do and has no steps.
    """
    found = plugins.load(ROOM, name, "phases")
    with plugins.blaming(ROOM, name):
        found = found() if isinstance(found, type) else found
        if isinstance(found, Algorithm):
            return found
        home = inspect.getmodule(found)
        if isinstance(home, Algorithm) and home.phases is found:
            return home
        if home is not None and "OPS" in vars(home):
            lacks = "its module has OPS, but not both phases and steps beside it"
            raise TypeError(f"{lacks}; write a class that derives from clustersim.collectives.model.Algorithm")
        return FunctionAlgorithm(found)


def _built(name: str, own: Algorithm, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
    if op not in own.OPS:
        raise InputError(f"{name} cannot do {op}, only {', '.join(sorted(own.OPS))}; {op} is done by {_able(op)}")
    if group.n < 1 or math.prod(group.levels) != group.n:
        raise InputError(f"levels {group.levels} of a group must multiply to its {group.n} ranks")
    if group.n == 1:
        return ()
    found = own.phases(op, group)
    if plugins.outside(ROOM, name):
        found = tuple(map(partial(_sane, n=group.n), found))
        if not any(map(_moves, found)):
            raise ValueError("no phase moves any bytes")
    for phase in found:
        for array in phase[1:]:
            array.flags.writeable = False
    return found


def _sane(phase: Phase | AllPairs, n: int) -> Phase | AllPairs:
    """Return a phase from outside as arrays of one length. Raises ValueError for what no group of n ranks can do."""
    if not isinstance(phase, (Phase, AllPairs)):
        raise TypeError(f"a phase is a Phase or an AllPairs, not {shown(phase)}")
    dense = isinstance(phase, AllPairs)
    ranks = [np.arange(n)] * 2 if dense else [np.array(part) for part in phase[1:3]]
    amounts = [np.array(part, np.float64) for part in (phase[1:] if dense else phase[3:])]
    if not 0 < float(phase.rounds) < math.inf:
        raise ValueError(f"rounds are {phase.rounds}; a phase has a finite number above 0")
    if any(part.ndim != 1 or part.shape != ranks[0].shape for part in (*amounts, *ranks)):
        raise ValueError("the arrays of a phase are not of one length")
    if any(not np.isfinite(part).all() or (part < 0).any() for part in amounts):
        raise ValueError("fractions are not all finite and at least 0")
    if any(part.dtype.kind not in "iu" or (part >= n).any() for part in ranks):
        raise ValueError(f"ranks are not all whole numbers below {n}")
    if dense:
        return AllPairs(float(phase.rounds), *amounts)
    source, destination = (part.astype(np.int64) for part in ranks)
    return Phase(float(phase.rounds), source, destination, *amounts)


def _moves(phase: Phase | AllPairs) -> bool:
    """Return whether a phase carries any bytes, without writing down the pairs of an AllPairs."""
    if isinstance(phase, AllPairs):
        return bool(phase.sent.any() and phase.received.any())
    return bool(phase.fraction.any())


def _able(op: str) -> str:
    able = [name for name in sorted(plugins.names(ROOM)) if op in algorithm(name).OPS]
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
    """Yield a reduce_scatter from the steps of an all_gather whose last round is `last`: the same pairs back, added up."""
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
