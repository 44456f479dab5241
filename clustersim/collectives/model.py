"""The interface of collective algorithms: steps on chunks for the proof, and phases of bytes for the fabric.

Tests compare both forms. Each file of `algorithms/` is one `Algorithm` as a module with `OPS`, `steps` and `phases`; outside
code derives a class from `Algorithm`.

A negative source or destination is a switch that adds what arrives and copies what leaves: `node_switch(j)` joins the GPUs of
node j (NVLS), `network_switch(r)` the NICs of rail r of all nodes (SHARP). It is empty at first. Node j has the positions
j·levels[0] … (j + 1)·levels[0] - 1; the rail of a position is its index in the node.
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
from clustersim.errors import InputError, shown
from clustersim.model.operator import CollectiveOp
from clustersim.model.router import ExpertRouter

ROOM = "clustersim.collectives"
SKEWED = ("all_to_all", "dispatch", "combine")
"""Operations with shares of rows. dispatch is an all_to_all and combine its reverse; the names are DeepEP's."""
OPERATIONS = frozenset({*get_args(CollectiveOp), "send"})
"""All operations that an algorithm can have."""
NETWORK = -(1 << 40)
"""Positions up to and including this negative number are network switches, those above it node switches."""


class Step(NamedTuple):
    """One rank sends one chunk to another, which adds it to its own or overwrites it. All steps of a round happen at once."""

    round: int
    """Index of the round. Rounds follow one another; all steps of a round happen at once."""
    source: int
    """Rank that sends, or a switch (negative)."""
    destination: int
    """Rank that receives, or a switch (negative)."""
    chunk: int
    """Index of the part of the array that is sent."""
    reduce: bool
    """Whether the chunk is added to the destination's own; otherwise it replaces it."""
    relay: bool = False
    """Whether the source sends the chunk as it last received it, without what it added since."""


class Group(NamedTuple):
    """The ranks of a communicator by position 0 … n-1."""

    n: int
    """Number of ranks."""
    levels: tuple[int, ...]
    """Fan-outs from the innermost level outwards, with product n: (8, 240) is 240 nodes of 8 ranks each. Digit l of position p
    is p // prod(levels[:l]) % levels[l]."""
    shares: tuple[float, ...] = ()
    """Share of all rows of a dispatch, combine or all_to_all that belong to the experts of each position, with sum 1. Empty if
    all shares are equal."""
    router: ExpertRouter | None = None
    """Model of how a router chooses the experts of each row of a dispatch or combine. None: each row is a token of its own."""
    sizes: tuple[int, ...] = ()
    """Number of positions of each node, where nodes differ; `levels` are then (1, n)."""
    rings: tuple[tuple[int, ...], ...] = ()
    """Orders of a node's positions along its links, where only some pairs have links. Empty: one ring in the order of
    positions."""


class Phase(NamedTuple):
    """Part of a collective in which all pairs move their bytes at the same time, in proportion to their fractions."""

    rounds: float
    """Number of dependent steps. Each adds the latency of the slowest pair."""
    source: Ints
    """Position that sends in each pair (pairs,)."""
    destination: Ints
    """Position that receives in each pair (pairs,)."""
    fraction: Floats
    """Bytes of each pair per byte of S, the size of the collective as nccl-tests counts it (pairs,)."""

    def pairs(self) -> Phase:
        """Return the phase itself."""
        return self


class AllPairs(NamedTuple):
    """Phase in which every position sends to every other: position i sends `sent[i]`·`received[j]`·S bytes to position j.

    Stands for up to n² pairs, which are not stored.
    """

    rounds: float
    """Number of dependent steps, as in Phase."""
    sent: Floats
    """Weight of each position as a sender (n,)."""
    received: Floats
    """Weight of each position as a receiver (n,)."""

    def pairs(self) -> Phase:
        """Return the equivalent Phase with one entry per pair, without pairs that have no bytes."""
        n = len(self.sent)
        shift, source = np.divmod(np.arange(n * (n - 1), dtype=np.int64), n)
        destination = (source + shift + 1) % n
        fraction = self.sent[source] * self.received[destination]
        moving = fraction > 0
        return Phase(self.rounds, source[moving], destination[moving], fraction[moving])


@runtime_checkable
class Algorithm(Protocol):
    """Collective algorithm for groups of two or more ranks. Subclasses must define `phases`; `OPS` and `steps` have defaults.

    A module with these three names is an Algorithm too.
    """

    OPS: frozenset[str] = OPERATIONS
    """Operations that the algorithm supports; all by default."""

    def phases(self, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
        """Return the phases of `op`: bytes over pairs of ranks.

        They have the same pairs, bytes and number of rounds as `steps`. Raises InputError for an unsupported group.
        """
        ...

    def steps(self, op: str, group: Group) -> Iterator[Step]:
        """Yield the chunks that each rank sends in each round, for `proof.check`. By default yields none, so that nothing is
        proved.

        `proof.py` runs them from the precondition of the collective to its postcondition. An algorithm that uses smaller chunks
        to fill a chain or a tree is proved with whole chunks: the pieces of a chunk take the same way.
        """
        return iter(())


class FunctionAlgorithm(Algorithm):
    """Algorithm made of a plain function `phases(op, group)`, with all operations and no steps."""

    def __init__(self, find: Callable[[str, Group], tuple[Phase | AllPairs, ...]]) -> None:
        self.find = find

    def phases(self, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
        """Return the phases that the function returns for `op` and `group`."""
        return self.find(op, group)


def checked_shares(shares: tuple[float, ...], n: int) -> tuple[float, ...]:
    """Return `shares` of all rows for `n` positions, or () if all are equal. Raises InputError unless they are `n` with sum 1."""
    if not shares:
        return ()
    if len(shares) != n or not min(shares) >= 0 or not abs(math.fsum(shares) - 1) < 1e-9:
        raise InputError(
            f"the shares of a group are one number of 0 or more for each of its {n} ranks, with the sum 1; "
            f"these are {len(shares)} with the sum {math.fsum(shares):g}"
        )
    return shares if max(shares) > min(shares) else ()


def node_switch(node: int) -> int:
    """Return the (negative) position that stands for the switches inside node number `node`."""
    return -1 - node


def network_switch(rail: int) -> int:
    """Return the (negative) position that stands for the switches between nodes on rail number `rail`."""
    return NETWORK - rail


def nodes_of(group: Group) -> tuple[int, int]:
    """Return (positions per node, number of nodes); the innermost level of a group is its nodes."""
    inside = group.levels[0] if group.levels else 1
    return inside, group.n // inside


def node_pairs(group: Group) -> tuple[Ints, Ints]:
    """Return two arrays (pairs,), sources and destinations, of all ordered pairs of different ranks on the same node."""
    inside, nodes = nodes_of(group)
    shift, rank = np.divmod(np.arange(inside * (inside - 1), dtype=np.int64), inside)
    first = np.arange(nodes)[:, None] * inside
    return (first + rank).ravel(), (first + (rank + shift + 1) % inside).ravel()


def phases(name: str, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
    """Return the phases in which an algorithm runs `op` over `group`, in order; none for a single rank.

    S of a Phase is the whole array for all_reduce, all_gather, reduce_scatter, broadcast and reduce. For all_to_all, dispatch
    and combine it is the bytes that one rank sends, its own share included (nccl-tests, doc/PERFORMANCE.md). With shares, a
    position sends share j of S to position j in all_to_all and dispatch, and position j sends share j of S to each position in
    combine. The root is position 0. The arrays are shared and read-only. Raises UnknownNameError for an unknown algorithm,
    InputError for an unsupported operation or group.
    """
    shares = checked_shares(group.shares, group.n) if op in SKEWED else ()
    spelled = plugins.spelled(ROOM, name)  # a short name may mean another function after a plug-in is registered
    return _phases(spelled, op, group._replace(n=int(group.n), levels=tuple(map(int, group.levels)), shares=shares))


@lru_cache(maxsize=64)
def _phases(name: str, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
    """Return the phases of an algorithm by its full name. An error in outside code names the algorithm."""
    with plugins.blaming(ROOM, name):
        return _checked_phases(name, algorithm(name), op, group)


def algorithm(name: str) -> Algorithm:
    """Return the algorithm of a name: a module, an object of a named class, or a wrapped function.

    A function called `phases` stands for its module if that is an Algorithm. Raises UnknownNameError for an unknown name, and
    InputError for a module with operations but without steps.
    """
    loaded = plugins.load(ROOM, name, "phases")
    with plugins.blaming(ROOM, name):
        loaded = loaded() if isinstance(loaded, type) else loaded
        if isinstance(loaded, Algorithm):
            return loaded
        home = inspect.getmodule(loaded)
        if isinstance(home, Algorithm) and home.phases is loaded:
            return home
        if home is not None and "OPS" in vars(home):
            lacks = "its module has OPS, but not both phases and steps"
            raise TypeError(f"{lacks}; write a class that derives from clustersim.collectives.model.Algorithm")
        return FunctionAlgorithm(loaded)


def _checked_phases(name: str, chosen: Algorithm, op: str, group: Group) -> tuple[Phase | AllPairs, ...]:
    """Return the checked phases of `chosen`, with read-only arrays. Raises InputError for an unsupported operation or group."""
    if op not in chosen.OPS:
        raise InputError(
            f"{name} cannot do {op}, only {', '.join(sorted(chosen.OPS))}; {op} is done by {_supporting(op)}"
        )
    if group.n < 1 or math.prod(group.levels) != group.n:
        raise InputError(f"levels {group.levels} of a group must multiply to its {group.n} ranks")
    if group.n == 1:
        return ()
    result = chosen.phases(op, group)
    if plugins.outside(ROOM, name):
        result = tuple(map(partial(_sane, n=group.n), result))
        if not any(map(_moves, result)):
            raise ValueError("no phase moves any bytes")
    for phase in result:
        for array in phase[1:]:
            array.flags.writeable = False
    return result


def _sane(phase: Phase | AllPairs, n: int) -> Phase | AllPairs:
    """Return a phase from outside code with copied arrays. Raises ValueError or TypeError if it is invalid for n ranks."""
    if not isinstance(phase, (Phase, AllPairs)):
        raise TypeError(f"a phase is a Phase or an AllPairs, not {shown(phase)}")
    all_pairs = isinstance(phase, AllPairs)
    ranks = [np.arange(n)] * 2 if all_pairs else [np.array(part) for part in phase[1:3]]
    amounts = [np.array(part, np.float64) for part in (phase[1:] if all_pairs else phase[3:])]
    if not 0 < float(phase.rounds) < math.inf:
        raise ValueError(f"rounds are {phase.rounds}; a phase has a finite number above 0")
    if any(part.ndim != 1 or part.shape != ranks[0].shape for part in (*amounts, *ranks)):
        raise ValueError("the arrays of a phase are not of one length")
    if any(not np.isfinite(part).all() or (part < 0).any() for part in amounts):
        raise ValueError("fractions are not all finite and at least 0")
    if any(part.dtype.kind not in "iu" or (part >= n).any() for part in ranks):
        raise ValueError(f"ranks are not all whole numbers below {n}")
    if all_pairs:
        return AllPairs(float(phase.rounds), *amounts)
    source, destination = (part.astype(np.int64) for part in ranks)
    return Phase(float(phase.rounds), source, destination, *amounts)


def _moves(phase: Phase | AllPairs) -> bool:
    """Return whether a phase carries any bytes."""
    if isinstance(phase, AllPairs):
        return bool(phase.sent.any() and phase.received.any())
    return bool(phase.fraction.any())


def _supporting(op: str) -> str:
    """Return the names of the algorithms that support an operation, as text for a message."""
    supporting = [name for name in sorted(plugins.names(ROOM)) if op in algorithm(name).OPS]
    return ", ".join(supporting) or "none of the algorithms"


def digits(group: Group, level: int) -> tuple[Ints, int, int]:
    """Return (digit `level` of every position (n,), stride between neighbours of that level, fan-out of the level)."""
    stride, fan = math.prod(group.levels[:level]), group.levels[level]
    return np.arange(group.n, dtype=np.int64) // stride % fan, stride, fan


def neighbours(group: Group, level: int) -> Ints:
    """Return for each position the next position in the ring over digit `level`, with its other digits unchanged (n,)."""
    digit, stride, fan = digits(group, level)
    return np.arange(group.n, dtype=np.int64) + ((digit + 1) % fan - digit) * stride


def halves(op: str, copies: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps of `op` from its half that copies, the steps of an all_gather or a broadcast.

    A reduce_scatter or reduce has these steps in reverse order and direction, and adds; an all_reduce is the reverse, then the
    copies.
    """
    steps = list(copies)
    last = max((step.round for step in steps), default=0)
    if op not in ("all_gather", "broadcast"):
        for step in steps:
            yield Step(last - step.round, step.destination, step.source, step.chunk, reduce=True)
    if op not in ("reduce_scatter", "reduce"):
        start = last + 1 if op == "all_reduce" else 0
        yield from (step._replace(round=start + step.round) for step in steps)


def merged(rounds: float, *parts: tuple[Ints, Ints, float]) -> Phase:
    """Return one phase of several parts (sources, destinations, fraction of S per pair), without parts of fraction 0."""
    parts = tuple(part for part in parts if part[2])
    source, destination = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    return Phase(rounds, source, destination, np.repeat([part[2] for part in parts], [len(part[0]) for part in parts]))


def uniform(rounds: float, source: Ints, destination: Ints, fraction: float) -> Phase:
    """Return a phase in which each pair (source[i], destination[i]) carries the same fraction of S."""
    return Phase(rounds, source, destination, np.full(len(source), fraction))
