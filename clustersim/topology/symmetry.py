"""Which GPUs the network between the nodes cannot tell apart, so that the routes of all pairs follow from those of a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, Mask

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
    """Return what is known of a router that says nothing: every pair is one of its own."""
    one, none = np.zeros(gpus, np.int64), np.zeros(links, bool)
    two = one[:, np.newaxis]
    return EndpointClasses(one, two, one, two, one, none, none, np.ones(gpus, bool), two, one, 0, tuple)
