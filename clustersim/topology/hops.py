"""How a kind of fabric finds the route from endpoint to endpoint, and which endpoints the network cannot tell apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.errors import InputError

ClassNumbers = tuple[Ints, Ints]
"""A number for each endpoint as a source, and one as a destination."""


class RouteSegment(NamedTuple):
    """A part of the routes between NICs: which of its links a route crosses depends on two numbers of its endpoints alone."""

    first: int
    """The first of its links."""
    end: int
    """The link after its last."""
    source: Ints
    """By endpoint, its number when it sends."""
    destination: Ints
    """By endpoint, its number when it receives."""
    scope: Ints | None
    """By endpoint; a route within one scope crosses none of these links. NICs of a node on one rail share it. None: the node."""


class EndpointClasses(NamedTuple):
    """What each part of a route from GPU s to GPU d of another node depends on.

    Links of s and its NIC depend on s and the rail of d alone, links of d and its NIC on d alone, and all others on the classes
    `source[s, rail[d]]` and `destination[d]` alone.
    """

    rail: Ints
    """The rail by which each GPU is entered (GPUs,)."""
    source: Ints
    """Class of each GPU that sends towards a rail (GPUs, rails)."""
    destination: Ints
    """Class of each GPU that receives (GPUs,)."""
    up: Ints
    """Link of the NIC by which a GPU is left towards a rail (GPUs, rails)."""
    down: Ints
    """Link of the NIC by which a GPU is entered (GPUs,)."""
    leaves: Mask
    """Links of the sending GPU and its NIC (links,)."""
    enters: Mask
    """Links of the receiving GPU and its NIC (links,)."""
    unknown: Mask
    """GPUs of which all this does not hold, as what lives at both ends chooses their NIC (GPUs,)."""
    start: Ints
    """The endpoint by which a GPU is left towards a rail (GPUs, rails)."""
    to: Ints
    """The endpoint by which a GPU is entered (GPUs,)."""
    base: int
    """The link from which those of `segments` are counted."""
    segments: Callable[[], Sequence[RouteSegment]]
    """The parts into which the routes between NICs fall, or none."""


def no_symmetry(gpus: int, links: int) -> EndpointClasses:
    """Return the classes of a router without known symmetry: each pair is its own."""
    one, none = np.zeros(gpus, np.int64), np.zeros(links, bool)
    two = one[:, np.newaxis]
    return EndpointClasses(one, two, one, two, one, none, none, np.ones(gpus, bool), two, one, 0, tuple)


class UnreachableError(InputError):
    """Dead links leave no route between two endpoints."""


def apart(a: str, b: str) -> UnreachableError:
    """Return the error of two endpoints without a route."""
    what = f"no route is left from {a} to {b}"
    return UnreachableError(f"the network is partitioned: {what}; let a link live or degrade it")


@runtime_checkable
class Hops(Protocol):
    """The route between endpoints (NICs), on arrays of pairs. Derive from it: only `__call__` has no default.

    Links are numbered from 0 through the `ranges` of the `BuiltFabric`; -1 is no link.
    """

    __slots__ = ()

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links of each pair in order, one row a pair (pairs, width); -1 where a path is shorter.

        Where `BuiltFabric.paths` is more than 1, that many paths of equal width stand side by side in a row; those whose first
        link is not -1 share the bytes of the pair evenly.
        """

    def spread(self, source: Ints, destination: Ints) -> tuple[Ints, Floats | None]:
        """Return the links of each pair, and the part of its bytes that crosses each (both: pairs, width).

        None, the default, stands for what `BuiltFabric.paths` says: all bytes, or an even share for each path.
        """
        return self(source, destination), None

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return a number for each endpoint as a source and as a destination: paths depend on these two alone.

        An all-to-all takes one path from class to class. The default tells all endpoints apart: right for every fabric, and
        slow for a large one. Endpoints of one leaf are usually one class.
        """
        return endpoint, endpoint

    def segments(self) -> Sequence[RouteSegment]:
        """Return the parts of the route that depend on less than the whole; the default knows none."""
        return ()

    def above(self) -> Sequence[tuple[Ints, Ints]] | None:
        """Return the links over each endpoint at each level: those upwards, and those downwards (both: endpoints).

        All bytes on a link upwards come from the endpoints below it, all on one downwards go there, and no way crosses any other
        link. None, the default, stands for ways of which that does not hold.
        """
        return None

    @property
    def ports(self) -> int:
        """Ports of NICs that are links of their own, first upwards, then as many downwards, before all other links."""
        return 0

    def without(self, dead: Mask) -> Hops:
        """Return the routes that cross none of the links of a mask.

        Raises UnreachableError when none is left; the default always does, as it knows one route only.
        """
        raise apart("one end of a dead link of the fabric", "the other, as its kind knows one route only")


@dataclass(frozen=True, slots=True)
class FunctionHops(Hops):
    """A plain function that finds the route, and leaves everything else to the defaults."""

    find: Callable[[Ints, Ints], Ints]
    """Endpoints → links, as `Hops.__call__`."""

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from endpoints to endpoints."""
        return self.find(source, destination)
