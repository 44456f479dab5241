"""Interface of a fabric: the route between endpoints, and the endpoints that are equivalent to the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.errors import InputError

ClassNumbers = tuple[Ints, Ints]
"""A class number for each endpoint as a source, and one as a destination."""


class RouteSegment(NamedTuple):
    """A part of the routes between NICs whose links depend only on one number of the source and one of the destination."""

    first: int
    """First link of the part."""
    end: int
    """Last link of the part, plus 1."""
    source: Ints
    """Number of each endpoint as a source (endpoints,)."""
    destination: Ints
    """Number of each endpoint as a destination (endpoints,)."""
    scope: Ints | None
    """Scope of each endpoint: a route within one scope crosses none of these links. NICs of a node on one rail share a scope.
    None: the node."""


class EndpointClasses(NamedTuple):
    """Dependence of each part of a route from GPU s to GPU d in another node.

    Links of s and its NIC depend only on s and the rail of d, links of d and its NIC only on d, and all others only on the
    classes `source[s, rail[d]]` and `destination[d]`.
    """

    rail: Ints
    """Rail by which each GPU is reached (GPUs,)."""
    source: Ints
    """Class of each GPU as a sender to a rail (GPUs, rails)."""
    destination: Ints
    """Class of each GPU as a receiver (GPUs,)."""
    up: Ints
    """Uplink of the NIC that each GPU uses towards a rail (GPUs, rails)."""
    down: Ints
    """Downlink of the NIC by which each GPU is reached (GPUs,)."""
    leaves: Mask
    """Links of the sending GPU and its NIC (links,)."""
    enters: Mask
    """Links of the receiving GPU and its NIC (links,)."""
    unknown: Mask
    """GPUs for which none of this holds, because live NICs at both ends determine the NIC (GPUs,)."""
    start: Ints
    """Endpoint that a GPU uses towards a rail (GPUs, rails)."""
    to: Ints
    """Endpoint by which a GPU is reached (GPUs,)."""
    base: int
    """Number of the link that is link 0 of `segments`."""
    segments: Callable[[], Sequence[RouteSegment]]
    """Function that returns the segments of the routes between NICs, or none."""


def no_symmetry(gpus: int, links: int) -> EndpointClasses:
    """Return the classes of a router without known symmetry: every GPU is `unknown`, so no two are equivalent."""
    zero, no_links = np.zeros(gpus, np.int64), np.zeros(links, bool)
    column, unknown = zero[:, np.newaxis], np.ones(gpus, bool)
    return EndpointClasses(zero, column, zero, column, zero, no_links, no_links, unknown, column, zero, 0, tuple)


class UnreachableError(InputError):
    """Dead links leave no route between two endpoints."""


def no_route_error(a: str, b: str) -> UnreachableError:
    """Return the error for two endpoints, named `a` and `b`, without a route."""
    what = f"no route is left from {a} to {b}"
    return UnreachableError(f"the network is partitioned: {what}; let a link live or degrade it")


@runtime_checkable
class Hops(Protocol):
    """Routes between endpoints (NICs), on arrays of pairs. Subclasses must define `__call__`; all else has defaults.

    Links are numbered from 0 through the `ranges` of the `BuiltFabric`; -1 means no link.
    """

    __slots__ = ()

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links of each pair in order, one row per pair (pairs, width); -1 fills shorter paths.

        If `BuiltFabric.paths` exceeds 1, a row holds that many paths of equal width; those whose first link is not -1 share the
        bytes of the pair evenly.
        """

    def spread(self, source: Ints, destination: Ints) -> tuple[Ints, Floats | None]:
        """Return the links of each pair, and the share of its bytes that crosses each (both: pairs, width).

        None, the default, means all bytes, or with several `BuiltFabric.paths` an even share for each path.
        """
        return self(source, destination), None

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return a number for each endpoint as a source and as a destination: paths depend only on these two.

        An all-to-all uses one path from class to class. The default gives each endpoint its own class: correct for every fabric,
        but slow for a large one. Usually the endpoints of one leaf are one class.
        """
        return endpoint, endpoint

    def segments(self) -> Sequence[RouteSegment]:
        """Return segments of the routes (see RouteSegment); none by default."""
        return ()

    def above(self) -> Sequence[tuple[Ints, Ints]] | None:
        """Return (upward links, downward links) above each endpoint for each level (each: endpoints).

        All bytes on an upward link come from the endpoints below it, all bytes on a downward one go to them, and no route crosses
        other links. None, the default, means that this does not hold.
        """
        return None

    @property
    def ports(self) -> int:
        """Number of NIC ports that are links of their own: first all upward ones, then all downward ones, before other links."""
        return 0

    def without(self, dead: Mask) -> Hops:
        """Return the routes that avoid the links in a mask.

        Raises UnreachableError if a pair has none left; the default always does, because it knows only one route.
        """
        raise no_route_error("one end of a dead link of the fabric", "the other, as its kind knows one route only")


class NoHops(Hops):
    """Routes without links, through an ideal crossbar; all endpoints are equivalent."""

    __slots__ = ()

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return a matrix without columns (pairs, 0)."""
        return np.empty((len(source), 0), np.int64)

    def classes(self, endpoint: Ints) -> ClassNumbers:
        """Return class 0 for each endpoint, as a source and as a destination."""
        return endpoint * 0, endpoint * 0


@dataclass(frozen=True, slots=True)
class FunctionHops(Hops):
    """Routes from a plain function, with all other defaults."""

    find: Callable[[Ints, Ints], Ints]
    """Function from endpoints to links, as `Hops.__call__`."""

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from each source to its destination (pairs, width)."""
        return self.find(source, destination)
