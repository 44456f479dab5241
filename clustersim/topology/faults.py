"""Slow and dead links, GPUs and nodes; and variation of GPU speed between steps: jitter and stragglers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from clustersim.arrays import Floats, Ints, Mask, distinct
from clustersim.config.topology import Fault, Jitter
from clustersim.config.yaml import Document
from clustersim.errors import ConfigError, suggest
from clustersim.topology.hops import UnreachableError
from clustersim.topology.model import LinkTier, Topology
from clustersim.topology.routing import GpuRouter, Remaining
from clustersim.topology.shortest import FIRST, SECOND, max_flow
from clustersim.units import scaled

_LINK = re.compile(r"([A-Za-z0-9_-]+)\[([0-9]{1,12})\]")
MAX_SLOWDOWN = 1e6
"""Largest slowdown of a part that is not dead."""
DEAD = 1.0
"""Bytes/s of a dead link: no route uses it, and quotients by its capacity stay finite."""
MIN_SLOWDOWN = 1e-6
"""Smallest slowdown: no GPU computes a million times as fast."""


def apply(topology: Topology, faults: Sequence[Fault], document: Document) -> Topology:
    """Return the topology with its faults; dead nodes are left out and the remaining ones renumbered.

    The slowdown of a GPU multiplies with that of its node. Raises ConfigError for unknown parts, a part that is slowed twice or
    more than a million times, and dead links that leave no route between two nodes.
    """
    if not faults:
        return topology
    parts = _Parts(topology, document)
    for i, fault in enumerate(faults):
        parts.fault = i
        if sum(x is not None for x in (fault.link, fault.node, fault.gpu)) != 1:
            raise parts.error(f"faults.{i}: name exactly one of link, node, gpu")
        if fault.link is not None:
            parts.degrade(fault.link, fault)
        else:
            parts.slow(fault)
    return _remaining(_rerouted(parts), parts)


class _Parts:
    """State of a cluster after its faults: dead and slowed links, GPUs and nodes."""

    def __init__(self, topology: Topology, document: Document) -> None:
        self.topology, self.document = topology, document
        self.capacity, self.cables, self.slowdown = (
            array.copy() for array in (topology.capacity, topology.cables, topology.slowdown)
        )
        self.dead = np.zeros(topology.nodes, bool)
        self.slowed: dict[str, int] = {}
        """The fault that slows a part, by the part's name."""
        self.fault = 0
        """Position of the current fault in the file."""

    def error(self, message: str, *key: str) -> ConfigError:
        """Return an error at the current fault, or at one of its keys."""
        return self.document.error(("faults", self.fault, *key), message)

    def note(self, part: str) -> None:
        """Record that the current fault slows a part. Raises ConfigError if another fault does so too."""
        first = self.slowed.setdefault(part, self.fault)
        if first != self.fault:
            what = f"{part} is slow by faults.{first} already; write one of them, with all that slows it"
            raise self.error(f"faults.{self.fault}: {what}")

    def degrade(self, name: str, fault: Fault) -> None:
        """Set the capacity of link `name`, such as `nic[3]`, to `fault.rate` bytes/s, or remove cables, in each direction named.

        Raises ConfigError if the link does not exist or the fault does not fit it.
        """
        key = f"faults.{self.fault}"
        if (fault.rate is None) != fault.dead or fault.slowdown is not None:
            raise self.error(f"{key}: a link needs a `rate`, its usable bytes/s, or `dead: true`, and nothing else")
        if fault.cables is not None and not fault.dead:
            raise self.error(f"{key}.cables counts dead cables; add `dead: true` or drop it", "cables")
        for tier, index in self._links(name):
            link = tier.first + index
            if fault.rate is not None:
                self._check_rate(fault.rate, float(self.capacity[link]))
                self.note(f"{tier.name}[{index}]")
                self.capacity[link] = fault.rate
                continue
            lost, alive = fault.cables or 1, self.cables[link]
            if lost > alive:
                problem = f"{name} has {alive:g} cables alive, not {lost}; let fewer die"
                raise self.error(f"{key}: {problem}", "cables" if fault.cables else "link")
            self.capacity[link] = max(self.capacity[link] * (alive - lost) / alive, DEAD)
            self.cables[link] = alive - lost

    def _check_rate(self, rate: float, capacity: float) -> None:
        """Raise ConfigError for a fault's rate above a link's capacity, or below a millionth of it (both in bytes/s)."""
        full, least, what = scaled(capacity, "B/s"), scaled(capacity / MAX_SLOWDOWN, "B/s"), ""
        if rate > capacity * (1 + 1e-9):
            what = f"is not a fault of a link of {full}, which is its rate after efficiency and PCIe"
            what += f"; write what is left of that, less than {full}"
        elif rate * MAX_SLOWDOWN < capacity:
            what = f"is next to nothing; write {least} or more, or `dead: true`"
        if what:
            raise self.error(f"faults.{self.fault}.rate: {scaled(rate, 'B/s')} {what}", "rate")

    def _links(self, text: str) -> list[tuple[LinkTier, int]]:
        """Return (tier, index in it) of the link `text` in each direction: `nic[3]` means `nic-up[3]` and `nic-down[3]`.

        Raises ConfigError if there is no such link.
        """
        match = _LINK.fullmatch(text)
        name, index = (match[1], int(match[2])) if match else (text, 0)
        tiers = [t for t in self.topology.tiers if t.name in {name, f"{name}-up", f"{name}-down"}]
        if match is None or not tiers:
            known = [tier.name for tier in self.topology.tiers]
            what = f"is not a link; write a tier and a number, like {known[0]}[0]; {suggest(name, known)}"
            raise self.error(f"{text!r} {what}", "link")
        if index >= tiers[0].links:
            what = f"does not exist; {tiers[0].name} has the links 0 to {tiers[0].links - 1}"
            raise self.error(f"{text!r} {what}", "link")
        return [(tier, index) for tier in tiers]

    def slow(self, fault: Fault) -> None:
        """Slow a GPU or the GPUs of a node, or mark a node as dead; a dead GPU kills its node. Raises ConfigError if invalid."""
        topology, at = self.topology, f"faults.{self.fault}"
        if (fault.slowdown is None) != fault.dead or fault.rate is not None or fault.cables is not None:
            raise self.error(f"{at}: a node or a GPU needs a `slowdown`, like 1.1, or `dead: true`, and nothing else")
        key, count = ("node", topology.nodes) if fault.gpu is None else ("gpu", topology.gpus)
        index = fault.node if fault.gpu is None else fault.gpu
        if index is None or index >= count:
            raise self.error(f"there is no {key} {index}; they are 0 to {count - 1}", key)
        numbering, part = topology.numbering, np.array([index])
        if fault.slowdown is None:
            self.dead[part if key == "node" else numbering.node_of(part)] = True
            return
        self.note(f"{key} {index}")
        self.slowdown[numbering.gpus_of(part) if key == "node" else part] *= fault.slowdown
        if (most := self.slowdown.max()) > MAX_SLOWDOWN:
            what = f"a GPU is slowed {most:.3g} times, by its node and by itself"
            what += f"; write less than {MAX_SLOWDOWN:g} together, or `dead: true`"
            raise self.error(f"{at}.slowdown: {what}", "slowdown")


def _rerouted(parts: _Parts) -> Topology:
    """Return the topology with routes around dead links. Raises ConfigError if GPUs are cut off, or the fabric cannot reroute."""
    topology, document, dead = parts.topology, parts.document, parts.cables == 0
    alive = np.where(dead, 0.0, parts.capacity)
    counts = {**topology.counts, **counts_with_faults(topology, alive), **_fault_counts(parts)}
    rerouted = replace(topology, capacity=parts.capacity, cables=parts.cables, slowdown=parts.slowdown, counts=counts)
    if not dead.any():
        return rerouted
    if not isinstance(topology.router, GpuRouter):
        what = f"{topology.kind} cannot route around dead links; degrade them by `rate`"
        raise document.error(("faults",), f"faults: {what}")
    counts["dead_links"] = int(dead.sum())
    try:
        rerouted = replace(rerouted, router=topology.router.without(dead))
        one_end, other_end = _witnesses(topology, dead, parts.dead)
        rerouted.route(one_end, other_end)
        rerouted.route(other_end, one_end)
    except UnreachableError as error:
        raise document.error(("faults",), f"faults: {error}") from None
    return rerouted


def _fault_counts(parts: _Parts) -> dict[str, float]:
    """Return the numbers above 0 of dead cables by direction (`dead_up`, `dead_down`) and of slow links (`slow_links`)."""
    original, lost_counts = parts.topology, {"dead_up": 0.0, "dead_down": 0.0}
    for tier in original.tiers:
        lost = (original.cables - parts.cables)[tier.span].sum()
        lost_counts["dead_down" if tier.name.endswith("-down") else "dead_up"] += float(lost)
    cable_rates = parts.capacity / np.maximum(parts.cables, 1), original.capacity / original.cables
    lost_counts["slow_links"] = float(((parts.cables > 0) & (cable_rates[0] < cable_rates[1] * (1 - 1e-9))).sum())
    return {key: number for key, number in lost_counts.items() if number}


def _witnesses(topology: Topology, dead: Mask, gone: Mask) -> tuple[Ints, Ints]:
    """Return the GPUs of live nodes with a dead NIC, and for each of them a GPU in another node (both: pairs).

    dead: mask of links. gone: mask of dead nodes. Both are empty without NICs.
    """
    nics = [tier.span for tier in topology.tiers if tier.name in ("nic-up", "nic-down")]
    if not nics:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    numbering, lost = topology.numbering, dead[nics[0]] | dead[nics[1]]
    nodes = distinct(numbering.node_of(numbering.owners()[lost]))
    gpus = numbering.gpus_of(nodes[~gone[nodes]])
    return gpus, numbering.in_next_node(gpus)


def _remaining(topology: Topology, parts: _Parts) -> Topology:
    """Return the topology without dead nodes, the others renumbered. Raises ConfigError if no node is left."""
    if not parts.dead.any():
        return topology
    alive = np.flatnonzero(~parts.dead)
    if not len(alive):
        raise parts.document.error(("faults",), f"faults: all {topology.nodes} nodes are dead; let at least one live")
    gpus = topology.numbering.gpus_of(alive)
    power = {"power": topology.counts["power"] * len(alive) / topology.nodes} if "power" in topology.counts else {}
    counts = {**power, "nodes": len(alive), "gpus": len(gpus), "dead_nodes": int(parts.dead.sum())}
    return replace(
        topology,
        numbering=topology.numbering.only(alive),
        slowdown=topology.slowdown[gpus],
        pool=None if topology.pool is None else topology.pool[gpus],
        router=Remaining(topology.router, gpus),
        counts={**topology.counts, **counts},
        fanouts=(len(alive),),
    )


# The bisection that remains with faults: of a tree by its tiers, of an explicit graph by its largest flow.


def counts_with_faults(sound: Topology, capacity: Floats) -> Mapping[str, float]:
    """Return {`bisection`: bytes/s, `oversubscription`: ratio} with links of `capacity` bytes/s (links,), 0 if dead.

    Return {} without a bisection or a fault between nodes, and {"unfaulted": 1.0} if the kind's cut is not known link by link.
    """
    first = next((tier.first for tier in sound.tiers if tier.name == "nic-up"), len(capacity))
    if "bisection" not in sound.counts or np.array_equal(sound.capacity[first:], capacity[first:]):
        return {}
    if sound.kind == "explicit":
        return _graph_counts(sound, capacity, first)
    named = [key.removesuffix("_switches") for key in sound.counts if key.endswith("_switches")]
    flat = {"groups", "routers"} & set(sound.counts)
    return {"unfaulted": 1.0} if flat or not named else _tree_counts(sound, capacity, named)


def _tree_counts(sound: Topology, capacity: Floats, named: list[str]) -> Mapping[str, float]:
    """Return `bisection` (bytes/s), half the rate of a tree's narrowest tier, and `oversubscription`, NICs' rate over that of it.

    sound: topology without faults. capacity: bytes/s of each link with them, 0 if dead (links,). named: names of the tiers of
    switches, the leaves first. A tier has its rate without faults times the share of its capacity that they leave.
    """
    rate, shares = dict[str, float](), dict[str, float]()
    for tier in sound.tiers:
        if tier.links:
            name, links = tier.name.rpartition("-")[0], tier.span
            rate.setdefault(name, float(sound.capacity[tier.first] / sound.cables[tier.first]))
            shares[name] = min(shares.get(name, 1.0), float(capacity[links].sum() / sound.capacity[links].sum()))
    nic_rate = sound.counts["nics"] * sound.node.wire * min(shares.get("nic", 1.0), shares.get("port", 1.0))
    tier_rates = {name: rate.get(name, np.inf) * shares.get(name, 1.0) for name in named}
    cable_rates = [sound.counts[f"{up}_cables"] * tier_rates[name] for name, up in pairwise(named)]
    return _bandwidth_counts(min(nic_rate, *cable_rates, nic_rate) / 2, nic_rate / 2)


def _graph_counts(sound: Topology, capacity: Floats, first: int) -> Mapping[str, float]:
    """Return `bisection` and `oversubscription` by the largest flow from the first half of the nodes to the second.

    capacity: bytes/s of each link with its faults (links,). first: number of the first link of a NIC.
    """
    nics = int(sound.counts["nics"])
    half = int(sound.numbering.first_nic[sound.nodes // 2])
    line_rates = capacity.copy()  # cables of the NICs, as in a graph without faults, and not the limit of PCIe
    line_rates[first : first + 2 * nics] *= sound.counts["ends"] / max(sound.capacity[first : first + half].sum(), 1.0)
    names = {f"nic[{nic}]": FIRST if nic < half else SECOND for nic in range(nics)}
    link_ends = (tuple(names.get(end, end) for end in sound.ends(link)) for link in range(first, len(capacity)))
    flow = max_flow((a, b, rate) for (a, b), rate in zip(link_ends, line_rates[first:].tolist(), strict=True))
    return _bandwidth_counts(min(flow, sound.counts["bisection"]), float(line_rates[first : first + half].sum()))


def _bandwidth_counts(bisection: float, ends: float) -> Mapping[str, float]:
    """Return `bisection` (bytes/s), and `oversubscription`: `ends` (bytes/s) over it, at least 1; inf if the bisection is 0."""
    return {"bisection": bisection, "oversubscription": max(1.0, ends / bisection) if bisection else np.inf}


def factors(jitter: Jitter, gpus: int, draw: int) -> Floats:
    """Return the slowdown of each GPU in random step `draw` (GPUs,).

    The mean is 1 without stragglers; each GPU is a straggler with the given probability, independently. Draw i does not depend on
    the number of draws. Lognormal: sigma^2 = ln(1 + cv^2), mu = -sigma^2 / 2. Gamma: shape 1 / cv^2, scale cv^2; with cv 1 it is
    the exponential distribution.
    """
    generator, variance = np.random.default_rng([jitter.seed, draw]), jitter.cv**2
    slowdown = np.ones(gpus)
    if jitter.cv and jitter.distribution == "gamma":
        slowdown = generator.gamma(1 / variance, variance, gpus)
    elif jitter.cv:
        sigma = math.sqrt(math.log1p(variance))
        slowdown = generator.lognormal(-(sigma**2) / 2, sigma, gpus)
    if jitter.stragglers is not None:
        slow = generator.random(gpus) < jitter.stragglers.share
        slowdown = np.where(slow, slowdown * jitter.stragglers.slowdown, slowdown)
    return np.maximum(slowdown, MIN_SLOWDOWN)


def is_constant(jitter: Jitter | None) -> bool:
    """Return whether each GPU has the same speed in every step; true without `jitter`."""
    return jitter is None or not (jitter.cv or (jitter.stragglers is not None and jitter.stragglers.share))
