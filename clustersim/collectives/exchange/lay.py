"""The loads of an exchange among all ranks of a group, without a way for each of its n² pairs.

Pairs inside a node are routed one by one. What leaves a node is three parts, each summed up on its own: from every GPU to its
NIC (or that of the receiver's rail, by PXN), from every NIC to its GPU, and between NICs from class to class (`classes.py`).
"""

from __future__ import annotations

import numpy as np

from clustersim.collectives.exchange.classes import Side, paired
from clustersim.collectives.exchange.ends import BLOCK, Ends, crossed, others, runs
from clustersim.collectives.exchange.ledger import Ledger
from clustersim.collectives.exchange.ways import lay, sample, wait
from clustersim.collectives.loads import Loads
from clustersim.collectives.model import Exchange
from clustersim.topology.alike import Alike, Stretch
from clustersim.topology.model import Floats, Ints, Mask, Topology

MANY = 1 << 20
"""Pairs of classes from which on ways between NICs are laid stretch by stretch, where they fall apart into such."""


def exchanged(topology: Topology, ranks: Ints, exchange: Exchange) -> Loads:
    """Return the loads of an exchange in groups of GPUs `ranks` (groups, n).

    Raises TooManyWaysError when the routing tells too many pairs apart.
    """
    alike = topology.alike()
    ledger = Ledger(topology, alike, len(ranks))
    senders, receivers = (_ends(topology, ranks, weight) for weight in (exchange.sent, exchange.received))
    odd_senders, odd_receivers = alike.odd[senders.gpu], alike.odd[receivers.gpu]
    _inside(ledger, senders, receivers)
    _apart(ledger, senders.only(odd_senders), receivers)
    _apart(ledger, senders.only(~odd_senders), receivers.only(odd_receivers))
    _legs(ledger, alike, senders.only(~odd_senders), receivers.only(~odd_receivers))
    return ledger.close()


def _ends(topology: Topology, ranks: Ints, weight: Floats) -> Ends:
    groups, n = ranks.shape
    gpu = ranks.ravel()
    found = Ends(np.repeat(np.arange(groups), n), gpu // topology.gpus_per_node, gpu, np.tile(weight, groups))
    return found.only(found.weight > 0).ordered()


def _inside(ledger: Ledger, senders: Ends, receivers: Ends) -> None:
    """Lay the pairs of one node."""
    nodes = ledger.topology.nodes
    for i, j in crossed(*(ends.key * nodes + ends.node for ends in (senders, receivers))):
        other = senders.gpu[i] != receivers.gpu[j]
        _lay(ledger, senders.only(i[other]), receivers.only(j[other]))


def _apart(ledger: Ledger, senders: Ends, receivers: Ends) -> None:
    """Lay the pairs of different nodes one by one."""
    ledger.check(int(runs(receivers.key, senders.key)[1].sum()))
    for i, j in crossed(senders.key, receivers.key):
        other = senders.node[i] != receivers.node[j]
        _lay(ledger, senders.only(i[other]), receivers.only(j[other]))


def _lay(ledger: Ledger, source: Ends, destination: Ends) -> None:
    routes = ledger.topology.route(source.gpu, destination.gpu)
    ledger.wait(source.key, routes.latency)
    ledger.lay(routes, source.key, source.weight * destination.weight, spans=ledger.nics_of(routes))


def _legs(ledger: Ledger, alike: Alike, senders: Ends, receivers: Ends) -> None:
    """Lay what goes from node to node."""
    rails, nodes = alike.source.shape[1], ledger.topology.nodes
    rail = np.tile(np.arange(rails), len(senders.gpu))
    out = senders.only(np.repeat(np.arange(len(senders.gpu)), rails))
    out = out._replace(key=out.key * rails + rail)
    into = receivers._replace(key=receivers.key * rails + alike.rail[receivers.gpu]).ordered()
    received, there = others(into, out, nodes)
    sent, here = others(senders, into._replace(key=into.key // rails), nodes)
    far, near = np.flatnonzero(there >= 0), np.flatnonzero(here >= 0)
    up = _leg(ledger, out.only(far), rails, into.gpu[there[far]], received[far], alike.leaves)
    down = _leg(ledger, into.only(near), rails, senders.gpu[here[near]], sent[near], alike.enters)
    out, rail, into = out.only(far), rail[far], into.only(near)
    if not len(out.key) or not len(into.key):
        return
    place = ledger.place[0][alike.up[out.gpu, rail]], ledger.place[1][alike.down[into.gpu]]
    number = alike.source[out.gpu, rail], alike.destination[into.gpu]
    pairs = paired(Side(out, number[0], place[0], up), Side(into, number[1], place[1], down), rails)
    stretches = alike.stretches() if pairs.ways > MANY else ()
    if not stretches:
        ledger.check(pairs.ways)
        lay(ledger, pairs, ledger.between, timed=True)
        return
    most = _most(ledger, out.key // rails, up) + _most(ledger, into.key // rails, down)
    for stretch in stretches:
        from_, to = alike.start[out.gpu, rail], alike.to[into.gpu]
        parts = paired(
            _side(out, stretch, stretch.source, from_, place[0]),
            _side(into, stretch, stretch.destination, to, place[1]),
            rails,
        )
        part = np.zeros(ledger.links, bool)
        part[alike.base + stretch.first : alike.base + stretch.end] = True
        ledger.check(parts.ways)
        most += lay(ledger, parts, part, timed=False)
    if not sample(ledger, pairs, most):
        ledger.check(pairs.ways)
        for i, j, _ in pairs.blocks():
            wait(ledger, pairs, i, j)


def _most(ledger: Ledger, group: Ints, seconds: Floats) -> Floats:
    """Return the most seconds of each group."""
    most = np.zeros(len(ledger.latency))
    np.maximum.at(most, group, seconds)
    return most


def _side(ends: Ends, stretch: Stretch, number: Ints, endpoint: Ints, place: Ints) -> Side:
    """Return one side of a stretch; who is in one scope meets on none of its links, as if on one node."""
    scoped = ends if stretch.scope is None else ends._replace(node=stretch.scope[endpoint])
    return Side(scoped, number[endpoint], place, np.zeros(len(endpoint)))


def _leg(ledger: Ledger, ends: Ends, rails: int, other: Ints, factor: Floats, part: Mask) -> Floats:
    """Lay what crosses the links in `part` on the ways from or to `other` GPUs, and return the seconds on them."""
    seconds: list[Floats] = []
    for first in range(0, len(other), BLOCK):
        own, far = ends.only(slice(first, first + BLOCK)), other[first : first + BLOCK]
        outwards = part is ledger.alike.leaves
        routes = ledger.topology.route(*((own.gpu, far) if outwards else (far, own.gpu)))
        ledger.lay(routes, own.key // rails, own.weight * factor[first : first + BLOCK], part)
        way = np.repeat(np.arange(len(far)), np.diff(routes.start))
        kept = part[routes.links]
        latency = ledger.topology.latency[routes.links] * routes.share
        seconds.append(np.asarray(np.bincount(way[kept], latency[kept], len(far)), np.float64))
    return np.concatenate(seconds or [factor[:0]])
