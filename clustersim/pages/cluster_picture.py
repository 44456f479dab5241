"""The cluster of a page: nodes and switches with their cables, and identical ones folded into one with a count.

Small clusters are not folded. In larger ones, nodes on the same switches are folded, and in the largest all ends of a kind. Slow
and dead parts stay separate. Of folded links, those that set the rate of the critical path are a separate cable.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, Mask
from clustersim.report.path_shares import sound_rates
from clustersim.topology.export import numbers
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
INSIDE = ("gpu", "nic", "ports", "nvswitch", "pcie")
"""Kinds of ends inside a node."""


class LinkFigures(NamedTuple):
    """Columns over all links that a picture shows."""

    use: Floats
    """Mean load divided by capacity over the step."""
    limits: Floats
    """Seconds of the critical path in which the link sets the rate."""
    slow: Mask
    """Whether the link is dead or slower than others of its tier."""


class _Cable(NamedTuple):
    """Links in both directions between two ends."""

    a: str
    b: str
    links: Ints


def slow_links(topology: Topology) -> Mask:
    """Return which links are dead or slower than others of their tier. Links of slower node types do not count."""
    sound = np.repeat(sound_rates(topology), [tier.links for tier in topology.tiers])
    return np.asarray(topology.capacity < sound * (1 - 1e-9))


def picture(topology: Topology, figures: LinkFigures) -> dict[str, object] | None:
    """Return the ends and cables of a cluster, or None if there is nothing to draw. In a cluster of several nodes a node is one
    end."""
    cables, every = _cables(topology, figures.slow)
    ills = _faults(topology, figures.slow)
    separate = _separate(cables, ills, figures.slow)
    for fold in (_unfolded, _by_switches, _by_kind) if every else (_by_kind,):
        name_of = fold(cables, separate)
        drawn = _folded(cables, name_of, figures, split=fold is not _unfolded)
        if len(drawn) <= MOST_CABLES and len(_ends(drawn)) <= MOST_ENDS:
            return _drawn(topology, cables, name_of, drawn, figures, ills) if drawn else None
    return None


def _cables(topology: Topology, slow: Mask) -> tuple[list[_Cable], bool]:
    """Return the cables outside nodes, and whether all of them have names. In large tiers kinds of ends stand for the ends."""
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    folded: list[_Cable] = []
    room = MOST_NAMED
    for tier in sorted((tier for tier in topology.tiers if _outside(topology, tier)), key=lambda tier: tier.links):
        room -= tier.links
        own = np.arange(tier.first, tier.first + tier.links)
        named = own if room >= 0 else _exceptional_links(topology, tier, slow)
        for link in named.tolist():
            a, b = _joined_ends(topology, link)
            found[min(a, b), max(a, b)].append(link)
        if len(named) < len(own):
            a, b = sorted(map(_kind, _joined_ends(topology, tier.first)))
            folded.append(_Cable(a, b, np.setdiff1d(own, named)))
    return [*(_Cable(a, b, np.array(links)) for (a, b), links in found.items() if a != b), *folded], not folded


def _outside(topology: Topology, tier: LinkTier) -> bool:
    """Return whether a tier has links outside nodes, judged by its first and last link."""
    both = (tier.first, tier.first + tier.links - 1) if tier.links else ()
    return any(a != b for a, b in (_joined_ends(topology, link) for link in both))


def _exceptional_links(topology: Topology, tier: LinkTier, slow: Mask) -> Ints:
    """Return a few links of a large tier that are slow or dead, or at a node with slow GPUs."""
    own = np.flatnonzero(slow[tier.first :][: tier.links])[:MOST_SEPARATE]
    if tier.name in ("nic-up", "nic-down"):
        gpus = np.flatnonzero(topology.slowdown != 1)
        nodes = np.unique(topology.numbering.node_of(gpus))[:MOST_SEPARATE]
        own = np.union1d(own, topology.numbering.nic[topology.numbering.gpus_of(nodes)])
    return own + tier.first


def _faults(topology: Topology, slow: Mask) -> dict[str, str]:
    """Return {end: fault in words} of nodes, or of the GPUs of a single node."""
    kind, own, count = "gpu", numbers(topology), topology.gpus
    if topology.nodes > 1:
        built = topology.numbering.built
        kind, own, count = "node", built.node_of(own), built.nodes
    found = {f"{kind}[{n}]": "slow" for n in np.unique(own[topology.slowdown != 1]).tolist()}
    for tier in topology.tiers if topology.nodes > 1 else ():
        for link in (tier.first + np.flatnonzero(slow[tier.first :][: tier.links])[:MOST_SEPARATE]).tolist():
            a, b = _joined_ends(topology, link)
            found |= {a: "slow link inside"} if a == b else {}
    return found | {f"{kind}[{n}]": "dead" for n in np.setdiff1d(np.arange(count), own).tolist()}


def _separate(cables: Iterable[_Cable], ills: Mapping[str, str], slow: Mask) -> set[str]:
    """Return the ends that stay separate: those with a fault, and those of a slow or dead cable."""
    bad = [one for one in cables if slow[one.links].any() and "[" in one.a + one.b][:MOST_SEPARATE]
    return {*list(ills)[:MOST_SEPARATE], *(end for one in bad for end in one[:2])}


def _unfolded(cables: Iterable[_Cable], separate: set[str]) -> dict[str, str]:
    """Return {end: drawn name} without folding."""
    return {end: end for one in cables for end in one[:2]}


def _by_switches(cables: Iterable[_Cable], separate: set[str]) -> dict[str, str]:
    """Return {end: drawn name} with nodes on the same switches folded into the first of them."""
    beside: defaultdict[str, set[str]] = defaultdict(set)
    for one in cables:
        beside[one.a].add(one.b)
        beside[one.b].add(one.a)
    first: dict[frozenset[str], str] = {}
    return {
        end: first.setdefault(frozenset(beside[end]), end) if _kind(end) == "node" and end not in separate else end
        for end in sorted(beside, key=_order)
    }


def _by_kind(cables: Iterable[_Cable], separate: set[str]) -> dict[str, str]:
    """Return {end: drawn name} with all ends of a kind folded into one."""
    return {end: end if end in separate else _kind(end) for one in cables for end in one[:2]}


def _folded(
    cables: Iterable[_Cable], name_of: Mapping[str, str], figures: LinkFigures, split: bool
) -> dict[tuple[str, str, bool], Ints]:
    """Return {(drawn end, drawn end, whether they set the rate): links}. Without `split` the third is always False."""
    found: defaultdict[tuple[str, str, bool], list[Ints]] = defaultdict(list)
    for one in cables:
        a, b = sorted((name_of[one.a], name_of[one.b]))
        decides = (figures.limits[one.links] > 1e-9) & split
        for flag in (False, True):
            if len(own := one.links[decides == flag]):
                found[a, b, flag].append(own)
    return {key: np.concatenate(links) for key, links in found.items()}


def _ends(drawn: Iterable[tuple[str, str, bool]]) -> list[str]:
    return list(dict.fromkeys(end for pair in drawn for end in pair[:2]))


def _drawn(
    topology: Topology,
    cables: Iterable[_Cable],
    name_of: Mapping[str, str],
    drawn: Mapping[tuple[str, str, bool], Ints],
    figures: LinkFigures,
    ills: Mapping[str, str],
) -> dict[str, object]:
    level = _levels(_ends(drawn), drawn)
    order = sorted(level, key=lambda name: (level[name], _order(name)))
    number = {name: i for i, name in enumerate(order)}
    many = _stands_for(topology, name_of)
    return {
        "ends": [{"name": n, "level": level[n], "many": many[n], "ill": ills.get(n, "")} for n in order],
        "cables": [
            {"a": number[a], "b": number[b], **_cable(topology, links, figures)} for (a, b, _), links in drawn.items()
        ],
    }


def _stands_for(topology: Topology, name_of: Mapping[str, str]) -> Counter[str]:
    """Return {drawn end: number of nodes, switches or other ends that it stands for}."""
    switches = {
        key.removesuffix("_switches"): int(n) for key, n in topology.counts.items() if key.endswith("_switches")
    }
    named = Counter(_kind(end) for end in name_of if "[" in end)
    many: Counter[str] = Counter()
    for end, name in name_of.items():
        kind = _kind(end)
        if kind != end:
            many[name] += switches.get(kind, 0) // named[kind] or 1
    for kind, whole in {**switches, "node": topology.nodes}.items():
        if kind in name_of:  # of a large tier, whose ends are not named each
            many[kind] = whole - sum(_kind(name) == kind != name for name in set(name_of.values()))
    return many


def _cable(topology: Topology, links: Ints, figures: LinkFigures) -> dict[str, object]:
    return {
        "links": len(links),
        "capacity": float(topology.capacity[links].max()),
        "use": round(float(figures.use[links].max()), HIGH),
        "limits": round(float(figures.limits[links].max()), LOW),
        "ill": bool(figures.slow[links].any()),
        "dead": bool((topology.capacity[links] <= DEAD).all()),
    }


def _joined_ends(topology: Topology, link: int) -> tuple[str, str]:
    """Return the names of the ends of a link as drawn: the node for everything inside one, if there are several nodes."""
    a, b = topology.ends(link)
    return (_joined(topology, a), _joined(topology, b)) if topology.nodes > 1 else (a, b)


def _joined(topology: Topology, end: str) -> str:
    kind, _, rest = end.partition("[")
    if kind not in INSIDE or not rest:
        return end
    number = int(rest.rstrip("]"))
    return f"node[{topology.numbering.built.place(kind, number)[0] if kind in ('gpu', 'nic', 'ports') else number}]"


def _levels(names: Sequence[str], cables: Iterable[tuple[str, str, bool]]) -> dict[str, int]:
    """Return {end: number of cables to the nearest node, or to the nearest GPU in a single node}."""
    neighbours: defaultdict[str, list[str]] = defaultdict(list)
    for a, b, _ in cables:
        neighbours[a].append(b)
        neighbours[b].append(a)
    front = [name for name in names if _kind(name) in ("node", "gpu")] or list(names[:1])
    found = dict.fromkeys(front, 0)
    while front:
        front = list(dict.fromkeys(other for name in front for other in neighbours[name] if other not in found))
        found |= dict.fromkeys(front, max(found.values()) + 1)
    return {name: found.get(name, 0) for name in names}


def _kind(name: str) -> str:
    return name.partition("[")[0]


def _order(name: str) -> tuple[str, int]:
    kind, _, number = name.partition("[")
    return kind, int(number.rstrip("]")) if number.rstrip("]").isdecimal() else -1
