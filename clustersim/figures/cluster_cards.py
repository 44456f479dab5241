"""Pictures of large clusters: a card per tier, or a pictogram of a network without tiers, above the inside of a node."""

from __future__ import annotations

from math import cos, pi, prod, sin

import numpy as np

from clustersim.figures.canvas import (
    CABLE,
    FAINT,
    GPU,
    INK,
    NIC,
    NODE,
    NODE_EDGE,
    PAPER,
    SHADOW,
    SWITCH,
    TIERS,
    Canvas,
    Coordinates,
)
from clustersim.topology.detours import Detours
from clustersim.topology.lattice import Dim, Lattice
from clustersim.topology.model import Topology
from clustersim.topology.routing import GpuRouter, Remaining
from clustersim.units import scaled

_SHOWN = 16
NODE_WIDTH, NODE_HEIGHT = 460.0, 210.0


def _inner_pairs(topology: Topology) -> list[tuple[int, int]]:
    """Return the pairs of GPUs of the first node that a wire joins; empty if they share a switch."""
    pairs = []
    for tier in topology.tiers:
        if tier.name.split("-")[0] in ("mesh", "ring") and tier.name.endswith("-up"):
            each = tier.links // topology.numbering.built.nodes
            ends = (topology.ends(link) for link in range(tier.first, tier.first + each))
            pairs += [tuple(int(end[4:-1]) for end in pair) for pair in ends]
    return [(a, b) for a, b in pairs]


def draw_node(canvas: Canvas, at: Coordinates, topology: Topology, title: str) -> None:
    """Draw a node of NODE_WIDTH by NODE_HEIGHT around the centre `at`: GPUs, their links, and NICs."""
    canvas.box(at, (NODE_WIDTH, NODE_HEIGHT), NODE, NODE_EDGE, 10)
    left, top = at[0] - NODE_WIDTH / 2, at[1] - NODE_HEIGHT / 2
    canvas.text((left + 16, top + 20), title, 14, anchor="start", bold=True)
    pairs, gpus = _inner_pairs(topology), topology.numbering.widths[-1]
    rate = scaled(float(np.max(topology.capacity[topology.tiers[0].span], initial=0.0)), "B/s")
    nics = int(topology.counts.get("nics", 0)) // topology.numbering.built.nodes
    if pairs and gpus <= _SHOWN:
        _wired(canvas, (at[0] - 70, at[1] + 12), pairs, gpus)
        canvas.text((at[0] + 50, at[1] - 10), f"{len(pairs)} wire{'s' * (len(pairs) > 1)}", 13, anchor="start")
        canvas.text((at[0] + 50, at[1] + 10), f"{rate} a direction", 12, FAINT, anchor="start")
        if topology.nodes > 1:
            canvas.text((at[0] + 50, at[1] + 40), f"{nics} NIC{'s' * (nics > 1)}", 13, NIC, anchor="start", bold=True)
    else:
        _switched(canvas, at, topology, rate, nics)


def _wired(canvas: Canvas, at: Coordinates, pairs: list[tuple[int, int]], gpus: int) -> None:
    """Draw the GPUs of a node on an ellipse around `at`, and the wires between them."""
    places = ellipse_points(at, (90.0, 72.0), gpus)
    for a, b in pairs:
        canvas.line(places[a], places[b], 1.4, SWITCH, 0.55)
    for gpu, place in enumerate(places):
        canvas.box(place, (30, 22), GPU)
        canvas.text(place, str(gpu), 12, PAPER)


def ellipse_points(at: Coordinates, radii: Coordinates, count: int) -> list[Coordinates]:
    """Return `count` points on an ellipse around `at`, clockwise from the top. `radii` are its two radii."""
    turns = [2 * pi * i / count - pi / 2 for i in range(count)]
    return [(at[0] + radii[0] * cos(t), at[1] + radii[1] * sin(t)) for t in turns]


def _switched(canvas: Canvas, at: Coordinates, topology: Topology, rate: str, nics: int) -> None:
    """Draw the GPUs of a node under their switch, with the node's `nics` below. `rate` is that of a GPU's link."""
    gpus = topology.numbering.widths[-1]
    shown = min(gpus, _SHOWN)
    pitch = min(52.0, (NODE_WIDTH - 40) / shown)
    first = at[0] - pitch * (shown - 1) / 2
    label = {"nvlink": "NVLink", "pcie": "PCIe"}.get(topology.tiers[0].name.split("-")[0], "switch")
    if gpus > 1:
        canvas.box((at[0], at[1] - 40), (pitch * shown, 26), SWITCH)
        canvas.text((at[0], at[1] - 40), f"{label}   {rate} a GPU and direction", 12, PAPER)
    for i in range(shown):
        x = first + pitch * i
        if gpus > 1:
            canvas.line((x, at[1] - 27), (x, at[1] + 10), 2, SWITCH)
        if i * nics // shown != (i - 1) * nics // shown and topology.nodes > 1:
            canvas.line((x, at[1] + 20), (x, at[1] + 62), 2, NIC)
            canvas.box((x, at[1] + 64), (min(26, pitch - 4), 16), NIC, radius=3)
        dots = gpus > shown and i == shown - 2
        canvas.box((x, at[1] + 18), (min(40, pitch - 4), 24), GPU)
        canvas.text((x, at[1] + 18), "…" if dots else str(i if i < shown - 1 else gpus - 1), 12, PAPER)
    if topology.nodes > 1:
        canvas.text((at[0], at[1] + 90), f"{nics} NIC{'s' * (nics > 1)}", 12, INK)


CARDS_WIDTH = 760.0
_TOP, _STEP = 130.0, 120.0
_RING, _MOST_GROUPS = 420.0, 80


def cards_height(topology: Topology) -> float:
    """Return the height of the picture of a large cluster, in pixels."""
    return _TOP + (_RING if _flat(topology) else _STEP * len(_tiers(topology))) + NODE_HEIGHT + 60


def draw_cards(canvas: Canvas, topology: Topology) -> None:
    """Draw the tiers from top to bottom, or a pictogram of a network without tiers, above a node."""
    x = CARDS_WIDTH / 2
    bottom = cards_height(topology) - NODE_HEIGHT / 2 - 36
    if _flat(topology):
        canvas.line((x, _TOP + _RING / 2 + 150), (x, bottom), 3, SHADOW)
        _pictogram(canvas, (x, _TOP + _RING / 2 - 40), topology)
        label = f"{int(topology.counts['nics']):,} NICs × {scaled(_rate(topology, 'nic'), 'B/s')}"
        canvas.pill((x, bottom - NODE_HEIGHT / 2 - 38), label)
    else:
        _stack(canvas, topology, x, bottom)
    for shift in (10, 5):
        canvas.box((x + shift, bottom + shift), (NODE_WIDTH, NODE_HEIGHT), "#e4e9ee", SHADOW, 10)
    draw_node(canvas, (x, bottom), topology, f"{topology.nodes:,} nodes")


def _flat(topology: Topology) -> bool:
    """Return whether the network has routers or groups instead of tiers."""
    return "routers" in topology.counts or topology.counts.get("groups", 1) > 1


def _tiers(topology: Topology) -> list[tuple[str, int, int]]:
    """Return (name, number of switches, number of cables down) of each tier, the lowest first."""
    counts = topology.counts
    named = [key.removesuffix("_switches") for key in counts if key.endswith("_switches")]
    tiers = [(name, int(counts[f"{name}_switches"]), int(counts[f"{name}_cables"])) for name in named]
    return tiers or [("", int(counts.get("switches", 1)), int(counts.get("cables", 0)))]


def _stack(canvas: Canvas, topology: Topology, x: float, bottom: float) -> None:
    """Draw the tiers above each other around `x`, joined by their cables, down to the node at `bottom`."""
    tiers = _tiers(topology)
    ys = [_TOP + _STEP * (len(tiers) - 1 - i) for i in range(len(tiers))]
    canvas.line((x, ys[-1]), (x, bottom), 3, SHADOW)
    below = "port" if any(tier.name == "port-up" for tier in topology.tiers) else "nic"
    for i, ((name, switches, cables), y) in enumerate(zip(tiers, ys, strict=True)):
        colour = TIERS[i % len(TIERS)]
        width = 220 + 60 * (len(tiers) - i)
        for shift in (8, 4) if switches > 1 else ():
            canvas.box((x + shift, y + shift), (width, 48), PAPER, "none", 6)
            canvas.box((x + shift, y + shift), (width, 48), colour + "66", "none", 6)
        canvas.box((x, y), (width, 48), colour, "none", 6)
        plural = "switch" if switches == 1 else "switches"
        canvas.text((x, y), f"{switches:,} {name} {plural}".replace("  ", " "), 16, PAPER, bold=True)
        gap = (y + (ys[i - 1] if i else bottom - NODE_HEIGHT / 2)) / 2 + (12 if i == 0 else 4)
        canvas.pill((x, gap), f"{cables:,} cables × {scaled(_rate(topology, below), 'B/s')}")
        below = name


def _rate(topology: Topology, tier: str) -> float:
    """Return the bytes/s of one upward cable of a tier."""
    for each in topology.tiers:
        if each.name == f"{tier}-up" and each.links:
            return float(topology.capacity[each.first] / topology.cables[each.first])
    return float("nan")


def _pictogram(canvas: Canvas, at: Coordinates, topology: Topology) -> None:
    """Draw a network without tiers around `at`: groups of a dragonfly, dimensions of a grid, or a part of a lattice."""
    counts = topology.counts
    if "groups" in counts and counts["groups"] <= _MOST_GROUPS:
        _dragonfly(canvas, at, topology)
    else:
        dims = _dims(topology)
        if topology.kind == "grid" and dims:
            _dimensions(canvas, at, dims)
        else:
            _lattice(canvas, at)
        shape = " × ".join(map(str, topology.fanouts))
        routers = int(counts.get("routers", 0))
        grids = routers // max(1, prod(topology.fanouts)) if topology.kind == "grid" else 1
        what = (
            f"{routers:,} routers ({f'{grids} × ({shape})' if grids > 1 else shape})"
            if routers
            else _groups_text(topology)
        )
        words = f"{what}, {int(counts['cables']):,} cables with those of the NICs"
        canvas.pill((at[0], at[1] + 190), words, 14)


def _dragonfly(canvas: Canvas, at: Coordinates, topology: Topology) -> None:
    """Draw the groups of a dragonfly on a circle around `at`, with the cables between them."""
    groups = int(topology.counts["groups"])
    places = ellipse_points(at, (165, 165), groups)
    copies = int(topology.counts["global_cables"]) * 2 // max(1, groups * (groups - 1))
    for i, a in enumerate(places):
        for b in places[:i]:
            canvas.line(a, b, 0.7 if groups > 16 else 1.5, CABLE, 0.28 if groups > 16 else 0.6)
    for place in places:
        canvas.dot(place, max(6.0, min(16.0, 400 / groups)), TIERS[0])
    words = f"{_groups_text(topology)}, {copies} cable{'s' * (copies > 1)} between every two"
    canvas.pill((at[0], at[1] + 200), words, 14)


def _groups_text(topology: Topology) -> str:
    """Return the groups of a dragonfly and their switches or routers in words."""
    counts, groups = topology.counts, int(topology.counts["groups"])
    if "routers" in counts:
        return f"{groups} groups of {int(counts['routers']) // groups} routers"
    tiers = " and ".join(f"{int(counts[f'{name}_switches']):,} {name} switches" for name in ("leaf", "spine"))
    return f"{groups} groups with {tiers}"


def _dims(topology: Topology) -> tuple[Dim, ...]:
    """Return the dimensions of a grid with more than one position. They come from its router, below dead nodes and dead links."""
    router = topology.router.router if isinstance(topology.router, Remaining) else topology.router
    hops = router.hops if isinstance(router, GpuRouter) else None
    hops = hops.hops if isinstance(hops, Detours) else hops
    return tuple(dim for dim in hops.dims if dim.size > 1) if isinstance(hops, Lattice) else ()


def _dimensions(canvas: Canvas, at: Coordinates, dims: tuple[Dim, ...]) -> None:
    """Draw the links of each dimension of a grid, side by side."""
    wide = min(230.0, (CARDS_WIDTH - 60) / len(dims))
    for i, dim in enumerate(dims):
        centre = (at[0] + (i - (len(dims) - 1) / 2) * wide, at[1])
        places = ellipse_points(centre, (0.36 * wide, 0.36 * wide), min(dim.size, 12))
        for a, b in _lines(dim.kind, len(places)):
            canvas.line(places[a], centre if b < 0 else places[b], 1.6, FAINT, 0.7)
        if dim.kind == "switch":
            canvas.box(centre, (34, 24), TIERS[1])
        for place in places:
            canvas.box(place, (18, 18), TIERS[0])
        what = "crossbar" if dim.kind == "switch" else dim.kind
        canvas.text((centre[0], centre[1] + 0.36 * wide + 30), f"{dim.name}: {what} of {dim.size}", 13)


def _lines(kind: str, count: int) -> list[tuple[int, int]]:
    """Return the pairs of `count` positions that a dimension (switch, mesh, ring or line) joins; -1 stands for its crossbar."""
    if kind == "switch":
        return [(i, -1) for i in range(count)]
    if kind == "mesh":
        return [(i, j) for i in range(count) for j in range(i)]
    return [(i, (i + 1) % count) for i in range(count - (kind == "line"))]


def _lattice(canvas: Canvas, at: Coordinates) -> None:
    """Draw a part of a lattice with open ends on all sides."""
    step, half = 56.0, 2
    for i in range(-half, half + 1):
        for (ax, ay), (bx, by) in (((i, -half - 0.6), (i, half + 0.6)), ((-half - 0.6, i), (half + 0.6, i))):
            canvas.line((at[0] + ax * step, at[1] + ay * step), (at[0] + bx * step, at[1] + by * step), 1.6, FAINT, 0.7)
    for i in range(-half, half + 1):
        for j in range(-half, half + 1):
            canvas.box((at[0] + i * step, at[1] + j * step), (22, 22), TIERS[0])
