"""The cluster drawn: nodes and switches with the cables between them, what is alike folded into one with a count.

Nothing is folded where that is few enough to draw; else nodes on the same switches; else all of a kind. What is slow or dead
stands alone, and of what is folded, the links that set the rate of the critical path are a cable of their own.
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
"""Cables and ends that a picture shows each."""
MOST_NAMED = 4096
"""Links whose ends are named each, some 20 us a link, of the smallest tiers first; of the others, those that stand out are."""
MOST_ODD = 12
"""Of what is slow or dead, how many stand alone."""
HIGH, LOW = 4, 6
"""Digits of shares, and of bytes a second."""
INSIDE = ("gpu", "nic", "ports", "nvswitch", "pcie")
"""Ends that lie in a node."""


class LinkFigures(NamedTuple):
    """What a picture shows of every link."""

    use: Floats
    """Mean load of its capacity over the step."""
    limits: Floats
    """Seconds of the critical path in which it sets the rate."""
    slow: Mask
    """It is slower than its like, or dead."""


class _Cable(NamedTuple):
    """The links of both directions between two ends."""

    a: str
    b: str
    links: Ints


def slow_links(topology: Topology) -> Mask:
    """Return which links are slower than their like, or dead; slower types of nodes are not."""
    sound = np.repeat(sound_rates(topology), [tier.links for tier in topology.tiers])
    return np.asarray(topology.capacity < sound * (1 - 1e-9))


def picture(topology: Topology, figures: LinkFigures) -> dict[str, object] | None:
    """Return ends and cables; of a cluster of several nodes each node is one end. None where there is nothing to draw."""
    cables, every = _cables(topology, figures.slow)
    ills = _ills(topology, figures.slow)
    odd = _odd(cables, ills, figures.slow)
    for fold in (_each, _on_the_same, _kinds) if every else (_kinds,):
        name_of = fold(cables, odd)
        drawn = _folded(cables, name_of, figures, split=fold is not _each)
        if len(drawn) <= MOST_CABLES and len(_ends(drawn)) <= MOST_ENDS:
            return _drawn(topology, cables, name_of, drawn, figures, ills) if drawn else None
    return None


def _cables(topology: Topology, slow: Mask) -> tuple[list[_Cable], bool]:
    """Return the cables outside nodes, and whether every one is by name: of a large tier, kinds of ends stand for their names."""
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    folded: list[_Cable] = []
    room = MOST_NAMED
    for tier in sorted((tier for tier in topology.tiers if _outside(topology, tier)), key=lambda tier: tier.links):
        room -= tier.links
        own = np.arange(tier.first, tier.first + tier.links)
        named = own if room >= 0 else _standing_out(topology, tier, slow)
        for link in named.tolist():
            a, b = _joined_ends(topology, link)
            found[min(a, b), max(a, b)].append(link)
        if len(named) < len(own):
            a, b = sorted(map(_kind, _joined_ends(topology, tier.first)))
            folded.append(_Cable(a, b, np.setdiff1d(own, named)))
    return [*(_Cable(a, b, np.array(links)) for (a, b), links in found.items() if a != b), *folded], not folded


def _outside(topology: Topology, tier: LinkTier) -> bool:
    """Return whether a tier joins nodes to something; its first and its last link tell."""
    both = (tier.first, tier.first + tier.links - 1) if tier.links else ()
    return any(a != b for a, b in (_joined_ends(topology, link) for link in both))


def _standing_out(topology: Topology, tier: LinkTier, slow: Mask) -> Ints:
    """Return the links of a large tier that are slow or dead, or at a node with slow GPUs: a few."""
    own = np.flatnonzero(slow[tier.first :][: tier.links])[:MOST_ODD]
    if tier.name in ("nic-up", "nic-down"):
        gpus = np.flatnonzero(topology.slowdown != 1)
        nodes = np.unique(topology.numbering.node_of(gpus))[:MOST_ODD]
        own = np.union1d(own, topology.numbering.nic[topology.numbering.gpus_of(nodes)])
    return own + tier.first


def _ills(topology: Topology, slow: Mask) -> dict[str, str]:
    """Return the faults of nodes, or of the GPUs of a single one, in a few words."""
    kind, own, count = "gpu", numbers(topology), topology.gpus
    if topology.nodes > 1:
        built = topology.numbering.built
        kind, own, count = "node", built.node_of(own), built.nodes
    found = {f"{kind}[{n}]": "slow" for n in np.unique(own[topology.slowdown != 1]).tolist()}
    for tier in topology.tiers if topology.nodes > 1 else ():
        for link in (tier.first + np.flatnonzero(slow[tier.first :][: tier.links])[:MOST_ODD]).tolist():
            a, b = _joined_ends(topology, link)
            found |= {a: "slow link inside"} if a == b else {}
    return found | {f"{kind}[{n}]": "dead" for n in np.setdiff1d(np.arange(count), own).tolist()}


def _odd(cables: Iterable[_Cable], ills: Mapping[str, str], slow: Mask) -> set[str]:
    """Return the ends that are folded into nothing: those with a fault, and those of a cable that is slow or dead."""
    bad = [one for one in cables if slow[one.links].any() and "[" in one.a + one.b][:MOST_ODD]
    return {*list(ills)[:MOST_ODD], *(end for one in bad for end in one[:2])}


def _each(cables: Iterable[_Cable], odd: set[str]) -> dict[str, str]:
    """Return the name of every end: its own."""
    return {end: end for one in cables for end in one[:2]}


def _on_the_same(cables: Iterable[_Cable], odd: set[str]) -> dict[str, str]:
    """Return the name of every end: nodes on the same switches have that of the first of them."""
    beside: defaultdict[str, set[str]] = defaultdict(set)
    for one in cables:
        beside[one.a].add(one.b)
        beside[one.b].add(one.a)
    first: dict[frozenset[str], str] = {}
    return {
        end: first.setdefault(frozenset(beside[end]), end) if _kind(end) == "node" and end not in odd else end
        for end in sorted(beside, key=_order)
    }


def _kinds(cables: Iterable[_Cable], odd: set[str]) -> dict[str, str]:
    """Return the name of every end: that of its kind."""
    return {end: end if end in odd else _kind(end) for one in cables for end in one[:2]}


def _folded(
    cables: Iterable[_Cable], name_of: Mapping[str, str], figures: LinkFigures, split: bool
) -> dict[tuple[str, str, bool], Ints]:
    """Return the links between ends by their names; split: those that set the rate of the critical path by themselves."""
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
    """Return how many nodes, switches or other ends each drawn one is; switches whose cables are one bundle are one end."""
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
    """Return the ends of a link as the picture names them: of several nodes, what lies in one is the node."""
    a, b = topology.ends(link)
    return (_joined(topology, a), _joined(topology, b)) if topology.nodes > 1 else (a, b)


def _joined(topology: Topology, end: str) -> str:
    kind, _, rest = end.partition("[")
    if kind not in INSIDE or not rest:
        return end
    number = int(rest.rstrip("]"))
    return f"node[{topology.numbering.built.place(kind, number)[0] if kind in ('gpu', 'nic', 'ports') else number}]"


def _levels(names: Sequence[str], cables: Iterable[tuple[str, str, bool]]) -> dict[str, int]:
    """Return how many cables each end is from the nearest node, or from the nearest GPU."""
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
