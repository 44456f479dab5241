"""Slow and dead links, GPUs and nodes, and how long GPUs compute from step to step: jitter and stragglers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.config.topology import Fault, Jitter
from clustersim.config.yaml import Document, Loc
from clustersim.errors import suggest
from clustersim.topology.hops import UnreachableError
from clustersim.topology.model import Topology
from clustersim.topology.routing import GpuRouter, Remaining
from clustersim.units import scaled

_LINK = re.compile(r"([A-Za-z0-9_-]+)\[([0-9]{1,12})\]")
MOST = 1e6
"""How many times as slow a part may be that is not dead."""
DEAD = 1.0
"""Bytes/s of a dead link: no route uses it, and quotients by its capacity stay finite."""


def apply(topology: Topology, faults: Sequence[Fault], document: Document) -> Topology:
    """Return the topology with its faults; dead nodes are left out and the rest numbered anew.

    The slowdown of a GPU multiplies with that of its node. Raises ConfigError for what does not exist, a part that is slowed
    twice or more than a million times, and when dead links leave no route between two nodes.
    """
    if not faults:
        return topology
    parts = _Parts(topology)
    for i, fault in enumerate(faults):
        at: Loc = ("faults", i)
        if sum(x is not None for x in (fault.link, fault.node, fault.gpu)) != 1:
            raise document.error(at, f"faults.{i}: name exactly one of link, node, gpu")
        if fault.link is not None:
            _degrade(parts, fault, document, at)
        else:
            _slow(parts, fault, document, at)
    return _remaining(_rerouted(parts, document), parts, document)


class _Parts:
    """What the faults found so far have left."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.capacity, self.cables, self.slowdown = (
            array.copy() for array in (topology.capacity, topology.cables, topology.slowdown)
        )
        self.dead = np.zeros(topology.nodes, bool)
        self.slowed: dict[tuple[str, int], int] = {}

    def slow(self, kind: str, index: int, document: Document, at: Loc) -> None:
        """Note that fault `at` slows a part. Raises ConfigError when another one does."""
        first = self.slowed.setdefault((kind, index), int(at[1]))
        if first != at[1]:
            name = f"{kind} {index}" if kind in ("node", "gpu") else f"{kind}[{index}]"
            what = f"{name} is slow by faults.{first} already; write one of them, with all that slows it"
            raise document.error(at, f"faults.{at[1]}: {what}")


def _degrade(parts: _Parts, fault: Fault, document: Document, at: Loc) -> None:
    if (fault.rate is None) != fault.dead or fault.slowdown is not None:
        raise document.error(
            at, f"faults.{at[1]}: a link needs a `rate`, its usable bytes/s, or `dead: true`, and nothing else"
        )
    if fault.cables is not None and not fault.dead:
        raise document.error((*at, "cables"), f"faults.{at[1]}.cables counts dead cables; add `dead: true` or drop it")
    for link in _links(parts.topology, str(fault.link), document, (*at, "link")):
        if fault.rate is not None:
            if fault.rate > parts.capacity[link] * (1 + 1e-9):
                full = scaled(parts.capacity[link], "B/s")
                much = f"{scaled(fault.rate, 'B/s')} is no fault of a link of {full}, which is its rate after efficiency and PCIe"
                raise document.error(
                    (*at, "rate"), f"faults.{at[1]}.rate: {much}; write what is left of that, less than {full}"
                )
            if fault.rate * MOST < parts.capacity[link]:
                least = scaled(parts.capacity[link] / MOST, "B/s")
                little = f"{scaled(fault.rate, 'B/s')} is next to nothing; write {least} or more, or `dead: true`"
                raise document.error((*at, "rate"), f"faults.{at[1]}.rate: {little}")
            tier = next(t for t in parts.topology.tiers if t.first <= link < t.first + t.links)
            parts.slow(tier.name, link - tier.first, document, at)
            parts.capacity[link] = fault.rate
            continue
        lost, left = fault.cables or 1, parts.cables[link]
        if lost > left:
            what = f"{fault.link} has {left:g} cables alive, not {lost}"
            raise document.error((*at, "cables" if fault.cables else "link"), f"faults.{at[1]}: {what}; let fewer die")
        parts.capacity[link] = max(parts.capacity[link] * (left - lost) / left, DEAD)
        parts.cables[link] = left - lost


def _links(topology: Topology, text: str, document: Document, at: Loc) -> list[int]:
    match = _LINK.fullmatch(text)
    name, index = (match[1], int(match[2])) if match else (text, 0)
    tiers = [t for t in topology.tiers if t.name == name or t.name in {f"{name}-up", f"{name}-down"}]
    if match is None or not tiers:
        known = [tier.name for tier in topology.tiers]
        raise document.error(
            at, f"{text!r} is no link; write a tier and a number, like {known[0]}[0]; {suggest(name, known)}"
        )
    if index >= tiers[0].links:
        raise document.error(at, f"{text!r} does not exist; {tiers[0].name} has the links 0 to {tiers[0].links - 1}")
    return [tier.first + index for tier in tiers]


def _slow(parts: _Parts, fault: Fault, document: Document, at: Loc) -> None:
    topology = parts.topology
    if (fault.slowdown is None) != fault.dead or fault.rate is not None or fault.cables is not None:
        what = "a node or a GPU needs a `slowdown`, like 1.1, or `dead: true`, and nothing else"
        raise document.error(at, f"faults.{at[1]}: {what}")
    key, index, count = ("node", fault.node, topology.nodes) if fault.gpu is None else ("gpu", fault.gpu, topology.gpus)
    if index is None or index >= count:
        raise document.error((*at, key), f"there is no {key} {index}; they are 0 to {count - 1}")
    numbering, one = topology.numbering, np.array([index])
    if fault.slowdown is None:
        parts.dead[one if key == "node" else numbering.node_of(one)] = True
        return
    parts.slow(key, index, document, at)
    parts.slowdown[numbering.gpus_of(one) if key == "node" else one] *= fault.slowdown
    if (most := parts.slowdown.max()) > MOST:
        much = f"a GPU is slowed {most:.3g} times, by its node and by itself; write less than {MOST:g} together, or `dead: true`"
        raise document.error((*at, "slowdown"), f"faults.{at[1]}.slowdown: {much}")


def _rerouted(parts: _Parts, document: Document) -> Topology:
    """Return the topology whose routes avoid links without cables, after a look at both ends of each."""
    topology, dead = parts.topology, parts.cables == 0
    counts = {**topology.counts, **left(topology, np.where(dead, 0.0, parts.capacity)), **_lost(parts)}
    found = replace(topology, capacity=parts.capacity, cables=parts.cables, slowdown=parts.slowdown, counts=counts)
    if not dead.any():
        return found
    if not isinstance(topology.router, GpuRouter):
        raise document.error(
            ("faults",), f"faults: {topology.kind} cannot route around dead links; degrade them by `rate`"
        )
    counts["dead_links"] = int(dead.sum())
    try:
        found = replace(found, router=topology.router.without(dead), counts=counts)
        one_end, other_end = _witnesses(topology, dead, parts.dead)
        found.route(one_end, other_end)
        found.route(other_end, one_end)
    except UnreachableError as error:
        raise document.error(("faults",), f"faults: {error}") from None
    return found


def _lost(parts: _Parts) -> dict[str, float]:
    """Return how many cables died, by direction: `dead_up`, `dead_down`; and how many links are slow: `slow_links`."""
    lost = parts.topology.cables - parts.cables
    found = {"dead_up": 0.0, "dead_down": 0.0}
    for tier in parts.topology.tiers:
        found["dead_down" if tier.name.endswith("-down") else "dead_up"] += float(
            lost[tier.first :][: tier.links].sum()
        )
    each = parts.capacity / np.maximum(parts.cables, 1), parts.topology.capacity / parts.topology.cables
    found["slow_links"] = float(((parts.cables > 0) & (each[0] < each[1] * (1 - 1e-9))).sum())
    return {key: number for key, number in found.items() if number}


def _witnesses(topology: Topology, dead: Mask, gone: Mask) -> tuple[Ints, Ints]:
    """Return the GPUs of nodes that lost a NIC and are not `gone`, and one in another node for each."""
    first = {tier.name: tier.first for tier in topology.tiers}
    if "nic-up" not in first:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    endpoints = first["nic-down"] - first["nic-up"]
    lost = dead[first["nic-up"] :][:endpoints] | dead[first["nic-down"] :][:endpoints]
    numbering = topology.numbering
    nodes = np.unique(numbering.node_of(numbering.owners()[lost]))
    gpus = numbering.gpus_of(nodes[~gone[nodes]])
    return gpus, numbering.in_next_node(gpus)


def _remaining(topology: Topology, parts: _Parts, document: Document) -> Topology:
    """Return the topology as a job sees it that is placed on the nodes that are not dead."""
    if not parts.dead.any():
        return topology
    alive = np.flatnonzero(~parts.dead)
    if not len(alive):
        raise document.error(("faults",), f"faults: all {topology.nodes} nodes are dead; let at least one live")
    gpus = topology.numbering.gpus_of(alive)
    power = {"power": topology.counts["power"] * len(alive) / topology.nodes} if "power" in topology.counts else {}
    left = {**power, "nodes": len(alive), "gpus": len(gpus), "dead_nodes": int(parts.dead.sum())}
    return replace(
        topology,
        numbering=topology.numbering.only(alive),
        slowdown=topology.slowdown[gpus],
        pool=None if topology.pool is None else topology.pool[gpus],
        router=Remaining(topology.router, gpus),
        counts={**topology.counts, **left},
        fanouts=(len(alive),),
    )


# What faults leave of the bisection: of a tree by its tiers, of a written-out graph by its largest flow.


def left(sound: Topology, capacity: Floats) -> Mapping[str, float]:
    """Return `bisection` and `oversubscription` with links of `capacity` (bytes/s, 0 of a dead one).

    `unfaulted` instead for kinds whose cut is not known link by link, when a link between nodes has a fault.
    """
    first = next((tier.first for tier in sound.tiers if tier.name == "nic-up"), len(capacity))
    if "bisection" not in sound.counts or np.array_equal(sound.capacity[first:], capacity[first:]):
        return {}
    if sound.kind == "explicit":
        return _graph(sound, capacity, first)
    named = [key.removesuffix("_switches") for key in sound.counts if key.endswith("_switches")]
    flat = {"groups", "routers"} & set(sound.counts)
    return {"unfaulted": 1.0} if flat or not named else _tree(sound, capacity, named)


def _tree(sound: Topology, capacity: Floats, named: list[str]) -> Mapping[str, float]:
    """Return the bandwidth of the narrowest tier; each tier keeps the part of its cables that its links still carry."""
    part = min(_part(sound, capacity, "nic"), _part(sound, capacity, "port"))
    ends = sound.counts["nics"] * sound.node.wire * part
    above = [
        sound.counts[f"{up}_cables"] * _rate(sound, name) * _part(sound, capacity, name) for name, up in pairwise(named)
    ]
    return _figures(min(ends, *above, ends) / 2, ends / 2)


def _rate(sound: Topology, name: str) -> float:
    """Return the bytes/s of a cable of a tier without faults."""
    first = next((tier.first for tier in sound.tiers if tier.name == f"{name}-up" and tier.links), None)
    return float(sound.capacity[first] / sound.cables[first]) if first is not None else np.inf


def _part(sound: Topology, capacity: Floats, name: str) -> float:
    """Return the part of a tier's bytes/s that is left, upwards or downwards, whichever is less."""
    links = [
        slice(t.first, t.first + t.links) for t in sound.tiers if t.name in (f"{name}-up", f"{name}-down") and t.links
    ]
    return min((float(capacity[part].sum() / sound.capacity[part].sum()) for part in links), default=1.0)


def _graph(sound: Topology, capacity: Floats, first: int) -> Mapping[str, float]:
    """Return the largest flow from the first half of the nodes to the second (Ford and Fulkerson, 1956)."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    nics = int(sound.counts["nics"])
    half = int(sound.numbering.first_nic[sound.nodes // 2])
    wide = capacity.copy()  # the cables of the NICs, as in a sound graph, and not what PCIe gets through
    wide[first : first + 2 * nics] *= sound.counts["ends"] / max(sound.capacity[first : first + half].sum(), 1.0)
    for link in range(first, len(capacity)):
        a, b = (_end(end, half) for end in sound.ends(link))
        old = graph.get_edge_data(a, b, {"capacity": 0.0})["capacity"]
        graph.add_edge(a, b, capacity=old + float(wide[link]))
    flow = float(nx.maximum_flow_value(graph, "\0first", "\0second")) if half else 0.0
    return _figures(min(flow, sound.counts["bisection"]), float(wide[first : first + half].sum()))


def _end(name: str, half: int) -> str:
    kind, _, number = name.partition("[")
    if kind != "nic":
        return name
    return "\0first" if int(number[:-1]) < half else "\0second"


def _figures(bisection: float, ends: float) -> Mapping[str, float]:
    return {"bisection": bisection, "oversubscription": max(1.0, ends / bisection) if bisection else np.inf}


def factors(jitter: Jitter, gpus: int, draw: int) -> Floats:
    """Return how many times its usual time each GPU computes in one step (gpus,).

    The mean is 1 but for stragglers, each GPU being one with the stated probability, whatever the others are. A draw is the same
    however many are asked for. Lognormal: sigma^2 = ln(1 + cv^2), mu = -sigma^2 / 2. Gamma: shape 1 / cv^2, scale cv^2; with
    cv 1 it is the exponential distribution.
    """
    source = np.random.default_rng([jitter.seed, draw])
    found = np.ones(gpus)
    if jitter.cv:
        found = _drawn(jitter, source, gpus)
    if jitter.stragglers is not None:
        slow = source.random(gpus) < jitter.stragglers.share
        found = np.where(slow, found * jitter.stragglers.slowdown, found)
    return np.maximum(found, LEAST)


LEAST = 1e-6
"""No GPU computes a million times as fast."""


def _drawn(jitter: Jitter, source: np.random.Generator, gpus: int) -> Floats:
    square = jitter.cv**2
    if jitter.distribution == "gamma":
        return source.gamma(1 / square, square, gpus)
    sigma = math.sqrt(math.log1p(square))
    return source.lognormal(-(sigma**2) / 2, sigma, gpus)


def still(jitter: Jitter | None) -> bool:
    """Return whether all steps are alike."""
    return jitter is None or not (jitter.cv or (jitter.stragglers is not None and jitter.stragglers.share))
