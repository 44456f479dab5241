"""Which GPUs the network between the nodes cannot tell apart, so that the ways of all pairs follow from those of a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, Mask

Classes = tuple[Ints, Ints]


class Stretch(NamedTuple):
    """A part of the ways between NICs that depends on less than the whole: the links from `first` to before `end`.

    Which of them a way crosses depends on the numbers `source` and `destination` of its two endpoints alone, and none if both are
    in one `scope`. A scope is a number by endpoint that all NICs of a node on one rail share, None for their node.
    """

    first: int
    end: int
    source: Ints
    destination: Ints
    scope: Ints | None


class Alike(NamedTuple):
    """The parts of a way from GPU s to GPU d of another node, and what each depends on.

    Links of s and its NIC (`leaves` marks them) depend on s and the rail of d alone, links of d and its NIC (`enters`) on d
    alone, and all others on the classes `source[s, rail[d]]` and `destination[d]` alone. rail, destination: (GPUs,). source:
    (GPUs, rails). up: link of the NIC by which s leaves towards a rail (GPUs, rails); down: that by which d is entered (GPUs,).
    odd: GPUs of which all this does not hold, as what lives at both ends chooses their NIC. stretches: how the ways fall apart
    further, if they do; their links are counted from `base`, and `start` (GPUs, rails) and `to` (GPUs,) are the endpoints.
    """

    rail: Ints
    source: Ints
    destination: Ints
    up: Ints
    down: Ints
    leaves: Mask
    enters: Mask
    odd: Mask
    start: Ints
    to: Ints
    base: int
    stretches: Callable[[], Sequence[Stretch]]


def classes(hops: Callable[[Ints, Ints], Ints], endpoint: Ints) -> Classes:
    """Return a number for each endpoint as a source and as a destination: paths depend on these two alone.

    What says nothing of it (no method `classes`) may tell all endpoints apart.
    """
    said: Callable[[Ints], Classes] | None = getattr(hops, "classes", None)
    return said(endpoint) if said else (endpoint, endpoint)


def strange(gpus: int, links: int) -> Alike:
    """Return what is known of a router that says nothing: every pair is one of its own."""
    one, none = np.zeros(gpus, np.int64), np.zeros(links, bool)
    two = one[:, np.newaxis]
    return Alike(one, two, one, two, one, none, none, np.ones(gpus, bool), two, one, 0, tuple)
