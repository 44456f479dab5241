"""Which GPUs the network between the nodes cannot tell apart, so that the routes of all pairs follow from those of a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, Mask

ClassNumbers = tuple[Ints, Ints]
"""A number for each endpoint as a source, and one as a destination."""


class RouteSegment(NamedTuple):
    """A part of the routes between NICs that depends on less than the whole: which of its links a route crosses
    depends on the numbers `source` and `destination` of its two endpoints alone, and it crosses none if both are in one `scope`.
    """

    first: int
    """The first of its links."""
    end: int
    """The link after its last."""
    source: Ints
    """By endpoint that sends."""
    destination: Ints
    """By endpoint that receives."""
    scope: Ints | None
    """By endpoint; all NICs of a node on one rail share a number. None: their node."""


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
    """Return what is known of a router that says nothing: every pair is one of its own."""
    one, none = np.zeros(gpus, np.int64), np.zeros(links, bool)
    two = one[:, np.newaxis]
    return EndpointClasses(one, two, one, two, one, none, none, np.ones(gpus, bool), two, one, 0, tuple)
