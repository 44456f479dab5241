"""The cluster of a page: nodes and switches with their cables, and identical ones folded into one with a count.

Small clusters are not folded. In larger ones, nodes on the same switches are folded, and in the largest all ends of a kind. Slow
and dead parts stay separate. Of folded links, those that set the rate of the critical path are a separate cable.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.figures import cluster_layout as layout
from clustersim.report.path_shares import healthy_rates
from clustersim.topology.export import gpu_numbers
from clustersim.topology.faults import DEAD
from clustersim.topology.model import LinkTier, Topology

MOST_CABLES, MOST_ENDS = 400, 160
"""Largest number of cables, and of ends, in a picture."""
MOST_NAMED = 4096
"""Largest number of links whose ends are looked up by name (20 us each), smallest tiers first. In other tiers only slow ones
are."""
MOST_SEPARATE = 12
"""Largest number of slow or dead parts that stay separate."""
HIGH, LOW = 4, 6
"""Digits of shares, and of seconds."""


class LinkFigures(NamedTuple):
    """Columns over all links that a picture shows."""

    use: Floats
    """Mean load divided by capacity over the step."""
    limits: Floats
    """Seconds of the critical path in which the link sets the rate."""
    slow: Mask
    """Whether the link is dead or slower than others of its tier."""


def slow_links(topology: Topology) -> Mask:
    """Return a mask (links,) of links that are dead or slower than others of their tier, those of slower node types excepted."""
    sound = np.repeat(healthy_rates(topology), [tier.links for tier in topology.tiers])
    return np.asarray(topology.capacity < sound * (1 - 1e-9))


def picture(topology: Topology, figures: LinkFigures) -> dict[str, object] | None:
    """Return {`ends`, `cables`} of a cluster as JSON data, with at most MOST_ENDS and MOST_CABLES; None if there is none.

    In a cluster of several nodes a node is one end.
    """
    cables, every = _cables(topology, figures.slow)
    ills = _faults(topology, figures.slow)
    bad = [cable for cable in cables if figures.slow[cable.links].any() and "[" in cable.a + cable.b][:MOST_SEPARATE]
    separate = {*list(ills)[:MOST_SEPARATE], *(end for cable in bad for end in cable[:2])}
    for fold in (_unfolded, _by_switches, _by_kind) if every else (_by_kind,):
        name_of = fold(cables, separate)
        drawn = _folded(cables, name_of, figures, split=fold is not _unfolded)
        if len(drawn) <= MOST_CABLES and len(_ends(drawn)) <= MOST_ENDS:
            return _drawn(topology, cables, name_of, drawn, figures, ills) if drawn else None
    return None


def _cables(topology: Topology, slow: Mask) -> tuple[list[layout.Cable], bool]:
    """Return the cables outside nodes, and whether the ends of all of them are single.

    Of tiers beyond MOST_NAMED links all links, except slow ones, are one cable between kinds of ends, such as `leaf` and `spine`.
    """
    links, folded = list[int](), list[layout.Cable]()
    room = MOST_NAMED
    for tier in sorted((tier for tier in topology.tiers if _outside(topology, tier)), key=lambda tier: tier.links):
        room -= tier.links
        of_tier = np.arange(tier.first, tier.first + tier.links)
        named = of_tier if room >= 0 else _exceptional_links(topology, tier, slow)
        links += named.tolist()
        if len(named) < len(of_tier):
            a, b = map(layout.end_kind, layout.drawn_ends(topology, tier.first))
            folded.append(layout.Cable(a, b, np.setdiff1d(of_tier, named)))
    return [*layout.cables(topology, links), *folded], not folded


def _outside(topology: Topology, tier: LinkTier) -> bool:
    """Return whether a tier has links outside nodes, judged by its first and last link."""
    both = (tier.first, tier.first + tier.links - 1) if tier.links else ()
    return any(a != b for a, b in (layout.drawn_ends(topology, link) for link in both))


def _exceptional_links(topology: Topology, tier: LinkTier, slow: Mask) -> Ints:
    """Return a few links of a large tier that are slow or dead, or at a node with slow GPUs."""
    exceptional = np.flatnonzero(slow[tier.span])[:MOST_SEPARATE]
    if tier.name in ("nic-up", "nic-down"):
        gpus = np.flatnonzero(topology.slowdown != 1)
        nodes = np.unique(topology.numbering.node_of(gpus))[:MOST_SEPARATE]
        exceptional = np.union1d(exceptional, topology.numbering.nic[topology.numbering.gpus_of(nodes)])
    return exceptional + tier.first


def _faults(topology: Topology, slow: Mask) -> dict[str, str]:
    """Return {end: `slow`, `dead` or `slow link inside`} of nodes with a fault, or of the GPUs of a single node."""
    kind, alive, count = "gpu", gpu_numbers(topology), topology.gpus
    if topology.nodes > 1:
        built = topology.numbering.built
        kind, alive, count = "node", built.node_of(alive), built.nodes
    faults = {f"{kind}[{n}]": "slow" for n in np.unique(alive[topology.slowdown != 1]).tolist()}
    for tier in topology.tiers if topology.nodes > 1 else ():
        for link in (tier.first + np.flatnonzero(slow[tier.span])[:MOST_SEPARATE]).tolist():
            a, b = layout.drawn_ends(topology, link)
            faults |= {a: "slow link inside"} if a == b else {}
    return faults | {f"{kind}[{n}]": "dead" for n in np.setdiff1d(np.arange(count), alive).tolist()}


def _unfolded(cables: Iterable[layout.Cable], separate: set[str]) -> dict[str, str]:
    """Return {end: drawn name} without folding."""
    return {end: end for cable in cables for end in cable[:2]}


def _by_switches(cables: Iterable[layout.Cable], separate: set[str]) -> dict[str, str]:
    """Return {end: drawn name} with nodes on the same switches folded into the first of them."""
    neighbours: defaultdict[str, set[str]] = defaultdict(set)
    for cable in cables:
        neighbours[cable.a].add(cable.b)
        neighbours[cable.b].add(cable.a)
    first: dict[frozenset[str], str] = {}
    return {
        end: first.setdefault(frozenset(neighbours[end]), end)
        if layout.end_kind(end) == "node" and end not in separate
        else end
        for end in sorted(neighbours, key=layout.sort_key)
    }


def _by_kind(cables: Iterable[layout.Cable], separate: set[str]) -> dict[str, str]:
    """Return {end: drawn name} with all ends of a kind folded into one."""
    return {end: end if end in separate else layout.end_kind(end) for cable in cables for end in cable[:2]}


def _folded(
    cables: Iterable[layout.Cable], name_of: Mapping[str, str], figures: LinkFigures, split: bool
) -> dict[tuple[str, str, bool], Ints]:
    """Return {(drawn end, drawn end, whether they set the rate): links}. Without `split` the third is always False."""
    links_of: defaultdict[tuple[str, str, bool], list[Ints]] = defaultdict(list)
    for cable in cables:
        a, b = sorted((name_of[cable.a], name_of[cable.b]))
        decides = (figures.limits[cable.links] > 1e-9) & split
        for flag in (False, True):
            if len(chosen := cable.links[decides == flag]):
                links_of[a, b, flag].append(chosen)
    return {key: np.concatenate(links) for key, links in links_of.items()}


def _ends(drawn: Iterable[tuple[str, str, bool]]) -> list[str]:
    """Return the ends of the drawn cables, each once."""
    return list(dict.fromkeys(end for pair in drawn for end in pair[:2]))


def _drawn(
    topology: Topology,
    cables: Iterable[layout.Cable],
    name_of: Mapping[str, str],
    drawn: Mapping[tuple[str, str, bool], Ints],
    figures: LinkFigures,
    ills: Mapping[str, str],
) -> dict[str, object]:
    """Return the drawn ends with their levels, counts and faults, and the drawn cables, as JSON data."""
    names = _ends(drawn)
    lowest = [name for name in names if layout.end_kind(name) in ("node", "gpu")] or names[:1]
    reached = layout.levels(lowest, (pair[:2] for pair in drawn))
    level = {name: reached.get(name, 0) for name in names}
    names.sort(key=lambda name: (level[name], layout.sort_key(name)))
    number = {name: i for i, name in enumerate(names)}
    many = _counts(topology, name_of)
    return {
        "ends": [{"name": n, "level": level[n], "many": many[n], "ill": ills.get(n, "")} for n in names],
        "cables": [
            {"a": number[a], "b": number[b], **_cable(topology, links, figures)} for (a, b, _), links in drawn.items()
        ],
    }


def _counts(topology: Topology, name_of: Mapping[str, str]) -> Counter[str]:
    """Return {drawn end: number of nodes, switches or other ends that it stands for}."""
    switches = {
        key.removesuffix("_switches"): int(n) for key, n in topology.counts.items() if key.endswith("_switches")
    }
    named = Counter(layout.end_kind(end) for end in name_of if "[" in end)
    many: Counter[str] = Counter()
    for end, name in name_of.items():
        kind = layout.end_kind(end)
        if kind != end:
            many[name] += switches.get(kind, 0) // named[kind] or 1
    for kind, total in {**switches, "node": topology.nodes}.items():
        if kind in name_of:  # of a large tier, whose ends are not named each
            many[kind] = total - sum(layout.end_kind(name) == kind != name for name in set(name_of.values()))
    return many


def _cable(topology: Topology, links: Ints, figures: LinkFigures) -> dict[str, object]:
    """Return {`links`: number, `capacity`, `use`, `limits`: the largest of each, `ill`, `dead`} of a drawn cable."""
    return {
        "links": len(links),
        "capacity": float(topology.capacity[links].max()),
        "use": round(float(figures.use[links].max()), HIGH),
        "limits": round(float(figures.limits[links].max()), LOW),
        "ill": bool(figures.slow[links].any()),
        "dead": bool((topology.capacity[links] <= DEAD).all()),
    }
