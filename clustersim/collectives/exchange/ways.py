"""The ways between NICs that stand for those from class to class."""

from __future__ import annotations

import numpy as np

from clustersim.collectives.exchange.classes import Classes, Pairs
from clustersim.collectives.exchange.ends import BLOCK, blocks, ragged, runs
from clustersim.collectives.exchange.ledger import Ledger
from clustersim.topology.model import Floats, Ints, Mask

SAMPLE = 1 << 18
"""Ways that are tried to find one that takes as long as any could."""


def lay(ledger: Ledger, pairs: Pairs, part: Mask, timed: bool) -> Floats:
    """Lay the bytes from class to class on the links in `part`.

    timed: the ledger is told how long whole ways take. Else the most seconds on these links are returned, by group.
    """
    most = np.zeros(len(ledger.latency))
    for i, j, weight in pairs.blocks():
        s, d, met, sure = _slowest(pairs, i, j)
        routes = ledger.topology.route(pairs.one.ends.gpu[s[met]], pairs.two.ends.gpu[d[met]])
        group = pairs.one.key[i[met]] // pairs.rails
        spans = np.concatenate([pairs.one.spans[:, i[met]], pairs.two.spans[:, j[met]]])
        ledger.lay(routes, group, weight[met], part, spans)
        if timed:
            ledger.wait(group, routes.latency)
            wait(ledger, pairs, i[met & ~sure], j[met & ~sure])
        else:
            np.maximum.at(most, group, ledger.seconds(routes, part))
    return most


def _slowest(pairs: Pairs, i: Ints, j: Ints) -> tuple[Ints, Ints, Mask, Mask]:
    """Return for each pair of classes one of its ways between nodes, if there is any, and whether none takes longer."""
    one, two = pairs.one, pairs.two
    s, d, sure = _met(one, two, one.slow[:, i], two.slow[:, j])
    met, rest = sure.copy(), np.flatnonzero(~sure)  # the slowest of both classes are all on one node
    s[rest], d[rest], met[rest] = _met(one, two, one.ends_of(i[rest]), two.ends_of(j[rest]))
    return s, d, met, sure


def _met(one: Classes, two: Classes, sources: Ints, destinations: Ints) -> tuple[Ints, Ints, Mask]:
    """Return an end of either side on different nodes, and whether there are; given those on the first and last node."""
    s, d = sources[0], destinations[0]
    s = np.where(one.ends.node[s] == two.ends.node[d], sources[1], s)
    d = np.where(one.ends.node[s] == two.ends.node[d], destinations[1], d)
    return s, d, one.ends.node[s] != two.ends.node[d]


def wait(ledger: Ledger, pairs: Pairs, i: Ints, j: Ints) -> None:
    """Take note of how long all ways from classes i to classes j take."""
    one, two = pairs.one, pairs.two
    ways = one.size[i] * two.size[j]
    for first, end in blocks(ways):
        p, x = ragged(np.zeros(end - first, np.int64), ways[first:end])
        a, b = i[first:end][p], j[first:end][p]
        s, d = one.start[a] + x // two.size[b], two.start[b] + x % two.size[b]
        far = one.ends.node[s] != two.ends.node[d]
        routes = ledger.topology.route(one.ends.gpu[s[far]], two.ends.gpu[d[far]])
        ledger.wait(one.key[a[far]] // pairs.rails, routes.latency)


def sample(ledger: Ledger, pairs: Pairs, most: Floats) -> bool:
    """Take note of how long some ways take, and return whether the slowest of every group is as slow as it could be.

    most: seconds that no way of a group exceeds.
    """
    sources, destinations = pairs.one.ends, pairs.two.ends
    start, size = runs(destinations.key, sources.key)
    draw = np.random.default_rng(0)
    tried = draw.permutation(np.repeat(np.flatnonzero(size), -(-SAMPLE // len(size))))[:SAMPLE]
    other = start[tried] + draw.integers(size[tried])
    for first in range(0, len(tried), BLOCK):
        a, b = tried[first : first + BLOCK], other[first : first + BLOCK]
        far = sources.node[a] != destinations.node[b]
        routes = ledger.topology.route(sources.gpu[a[far]], destinations.gpu[b[far]])
        ledger.wait(sources.key[a[far]] // pairs.rails, routes.latency)
    return bool((ledger.latency >= most * (1 - 1e-12)).all())
