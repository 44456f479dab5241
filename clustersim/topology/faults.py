"""Slow GPUs and nodes, degraded links."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from clustersim.config.topology import Fault
from clustersim.config.yaml import Document, Loc
from clustersim.errors import suggest
from clustersim.topology.model import Floats, Topology

_LINK = re.compile(r"([A-Za-z0-9_-]+)\[([0-9]{1,12})\]")


def apply(topology: Topology, faults: Sequence[Fault], document: Document) -> Topology:
    """Return the topology with its faults; slowdowns of a GPU multiply. Raises ConfigError for what does not exist."""
    capacity, slowdown = topology.capacity.copy(), topology.slowdown.copy()
    for i, fault in enumerate(faults):
        at: Loc = ("faults", i)
        if sum(x is not None for x in (fault.link, fault.node, fault.gpu)) != 1:
            raise document.error(at, f"faults.{i}: name exactly one of link, node, gpu")
        if fault.link is not None:
            _degrade(capacity, topology, fault, document, at)
        else:
            _slow(slowdown, topology, fault, document, at)
    return replace(topology, capacity=capacity, slowdown=slowdown) if faults else topology


def _degrade(capacity: Floats, topology: Topology, fault: Fault, document: Document, at: Loc) -> None:
    if fault.rate is None or fault.slowdown is not None:
        raise document.error(at, f"faults.{at[1]}: a link needs a `rate`, its usable bytes/s, and nothing else")
    for link in _links(topology, str(fault.link), document, (*at, "link")):
        capacity[link] = fault.rate


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


def _slow(slowdown: Floats, topology: Topology, fault: Fault, document: Document, at: Loc) -> None:
    if fault.slowdown is None or fault.rate is not None:
        raise document.error(at, f"faults.{at[1]}: a node or a GPU needs a `slowdown`, like 1.1, and nothing else")
    key, index, count = ("node", fault.node, topology.nodes) if fault.gpu is None else ("gpu", fault.gpu, topology.gpus)
    if index is None or index >= count:
        raise document.error((*at, key), f"there is no {key} {index}; they are 0 to {count - 1}")
    width = topology.gpus_per_node if key == "node" else 1
    slowdown[index * width : (index + 1) * width] *= fault.slowdown
