"""What faults leave of the bisection: of a tree by its tiers, of a written-out graph by its largest flow."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from clustersim.topology.model import Floats, Topology


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
    """Return what the narrowest tier lets through; each tier keeps the part of its cables that its links still carry."""
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
    half = nics // sound.nodes * (sound.nodes // 2)
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
