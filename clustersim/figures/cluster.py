"""A cluster as a picture: every switch of a small one, in rows by level, on a circle or a lattice; a large one by tiers."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from math import prod
from typing import NamedTuple

from clustersim.config.yaml import Document
from clustersim.figures import cluster_cards
from clustersim.figures import cluster_layout as layout
from clustersim.figures.canvas import (
    ARC,
    BROKEN,
    CABLE,
    DEAD,
    FAINT,
    GPU,
    NODE,
    NODE_EDGE,
    PAPER,
    SLOW,
    TIERS,
    Canvas,
    Coordinates,
)
from clustersim.figures.cluster_cards import ellipse_points
from clustersim.topology.build import build
from clustersim.topology.describe import diameter, faults
from clustersim.topology.export import gpu_numbers, with_single_cables
from clustersim.topology.model import Topology
from clustersim.units import scaled, seconds


class DrawnCable(NamedTuple):
    """Parallel cables between two ends."""

    a: str
    b: str
    cables: int
    rate: float
    """Bytes/s of one cable."""
    dead: bool = False
    """Whether all cables are dead."""
    slow: bool = False
    """Whether some cables are slow or dead."""


class DrawnParts(NamedTuple):
    """Nodes, switches and cables of a cluster, by name."""

    nodes: tuple[str, ...]
    """All nodes, dead ones included."""
    levels: tuple[tuple[str, ...], ...]
    """Switches at each distance from the nodes, the nearest level first."""
    cables: tuple[DrawnCable, ...]
    """Cables of the fabric. Cables of NICs end at nodes."""

    @property
    def hierarchical(self) -> bool:
        """Whether no cable joins two switches of the lowest level."""
        lowest = set(self.levels[0]) if self.levels else set()
        return not any(cable.a in lowest and cable.b in lowest for cable in self.cables)


def parts(topology: Topology, sound: Topology) -> DrawnParts:
    """Return the nodes, switches and cables of a small cluster. sound: the same cluster without faults.

    Each of them has one link per cable (`topology.export.with_single_cables`).
    """
    faulty = topology.capacity < sound.capacity * (1 - 1e-9)
    cables = tuple(
        DrawnCable(
            a,
            b,
            int(sound.cables[links].sum()) // 2,
            float(sound.capacity[links[0]] / sound.cables[links[0]]),
            not topology.cables[links].any(),
            bool(faulty[links].any()),
        )
        for a, b, links in layout.cables(topology, range(len(topology.capacity)))
    )
    nodes = tuple(f"node[{n}]" for n in range(topology.numbering.built.nodes))
    level = layout.levels(nodes, (cable[:2] for cable in cables))
    switches = sorted((name for name in level if level[name]), key=lambda name: (level[name], *layout.sort_key(name)))
    levels = tuple(tuple(names) for _, names in groupby(switches, level.__getitem__))
    return DrawnParts(nodes, levels, cables)


WIDTH = 1200.0
_MARGIN, _CAPTION, _ROW, _TOP, _RADIUS, _ARC = 40.0, 190.0, 150.0, 110.0, 330.0, 80.0


def _rows(canvas: Canvas, parts: DrawnParts, topology: Topology) -> None:
    """Draw the levels of switches above each other, with the nodes of `topology`, and their slow GPUs, at the bottom."""
    places: dict[str, Coordinates] = {}
    levels = [parts.nodes, *parts.levels]
    colours: dict[str, list[str]] = {}
    for gpu, slow in zip(gpu_numbers(topology).tolist(), (topology.slowdown != 1).tolist(), strict=True):
        colours.setdefault(f"node[{topology.numbering.built.place('gpu', gpu)[0]}]", []).append(SLOW if slow else GPU)
    for i, names in enumerate(reversed(levels)):
        pitch = _pitch(names)
        places |= {name: (_CAPTION + _MARGIN + pitch * (k + 0.5), _TOP + _ROW * i) for k, name in enumerate(names)}
    _cables(canvas, parts.cables, places)
    for i, names in enumerate(levels):
        _caption(canvas, parts, names, len(names) if i else len(colours), i, places[names[0]][1])
        for name in names:
            if i:
                _switch(canvas, places[name], name, i - 1, _pitch(names))
            else:
                _node(canvas, places[name], name, colours.get(name, []), _pitch(names))


def _pitch(names: tuple[str, ...]) -> float:
    """Return the pixels between the centres of neighbours on a level."""
    return (WIDTH - _CAPTION - 2 * _MARGIN) / len(names)


def _cables(canvas: Canvas, cables: tuple[DrawnCable, ...], places: dict[str, Coordinates]) -> None:
    """Draw cables between the centres of their ends, as wide as their number. A cable within a level is an arc."""
    most = max((c.cables for c in cables), default=1)
    faint = 0.75 if len(cables) < 60 else 0.4
    for cable in cables:
        a, b, width = places[cable.a], places[cable.b], 0.8 + 2.4 * cable.cables / most
        if a[1] == b[1]:  # an arc over the switches between them
            canvas.curve((a, ((a[0] + b[0]) / 2, a[1] - _ARC), b), width, *_shade(cable, ARC, faint))
        else:
            canvas.line(a, b, width, *_shade(cable, CABLE, faint))


def _shade(cable: DrawnCable, colour: str, opacity: float) -> tuple[str, float]:
    """Return (colour, opacity) of a cable: `colour` and `opacity` if it is sound."""
    return (BROKEN, 1.0) if cable.dead else (SLOW, 1.0) if cable.slow else (colour, opacity)


def _caption(canvas: Canvas, parts: DrawnParts, names: tuple[str, ...], alive: int, level: int, y: float) -> None:
    """Label a level with the number and kind of its parts and its cables to the level below. `alive` counts those that work."""
    kind = names[0].partition("[")[0]
    what = "node" if level == 0 else f"{kind} switch" if "[" in names[0] and kind != "switch" else "switch"
    plural = what if len(names) == 1 else what + ("es" if what.endswith("switch") else "s")
    dead = f", {len(names) - alive} dead" if alive < len(names) else ""
    canvas.text((_MARGIN, y), f"{len(names)} {plural}{dead}", 15, anchor="start", bold=True)
    below = [c for c in parts.cables if names[0] in (c.a, c.b) and level]
    down = set(parts.nodes if level == 1 else parts.levels[level - 2] if level else ())
    down_cables = [c for c in parts.cables if {c.a, c.b} & set(names) and {c.a, c.b} & down]
    if below and down_cables:
        canvas.text((_MARGIN, y + 22), f"{sum(c.cables for c in down_cables):,} cables down", 12, FAINT, anchor="start")
        canvas.text((_MARGIN, y + 39), f"of {scaled(down_cables[0].rate, 'B/s')}", 12, FAINT, anchor="start")


def _switch(canvas: Canvas, at: Coordinates, name: str, level: int, pitch: float) -> None:
    """Draw a switch around its centre, with its name or number if there is room."""
    width = min(84.0, pitch - 4)
    canvas.box(at, (width, 26), TIERS[level % len(TIERS)])
    number = name.partition("[")[2][:-1] or name
    if width > 8 * len(number):
        canvas.text(at, name if width >= 7 * len(name) + 6 else number, 12, PAPER)


def _node(canvas: Canvas, at: Coordinates, name: str, gpus: list[str], pitch: float) -> None:
    """Draw a node with a square for each GPU, in its colour. A dead node has none."""
    width = max(10.0, min(110.0, pitch - 4))
    canvas.box((at[0], at[1] + 12), (width, 56), NODE if gpus else DEAD, NODE_EDGE)
    if not gpus:
        canvas.text((at[0], at[1] + 8), "dead" if width > 30 else "×", 11, BROKEN)
    step = next((s for s in (12, 10, 8, 6, 5, 4, 3) if min(8, width // s) * (36 // s) >= len(gpus)), 0)
    across = min(8, int(width // step)) if step else 1
    for i, colour in enumerate(gpus if step else []):
        x = at[0] + (i % across - (min(across, len(gpus)) - 1) / 2) * step
        canvas.box((x, at[1] - 5 + i // across * step), (0.75 * step, 0.75 * step), colour, radius=2)
    if gpus and not step:
        many = f"{len(gpus)} GPUs" if width > 50 else str(len(gpus))
        canvas.text((at[0], at[1] + 6), many, 11, SLOW if SLOW in gpus else GPU)
    number = name.partition("[")[2][:-1]
    canvas.text((at[0], at[1] + 33), f"node {number}" if width > 60 else number, 11 if width > 18 else 8, FAINT)


def is_lattice(topology: Topology, parts: DrawnParts) -> bool:
    """Return whether the routers form a torus of two dimensions and all are drawn."""
    extents, rings = topology.fanouts, topology.kind == "torus"
    return rings and len(extents) == 2 and prod(extents) == sum(map(len, parts.levels))


def _flat(canvas: Canvas, parts: DrawnParts, topology: Topology) -> None:
    """Draw routers that are joined to each other: a torus of two dimensions as a lattice, all others on a circle."""
    switches = [name for names in parts.levels for name in names]
    centre = (WIDTH / 2, _TOP + _RADIUS + 20)
    circle = ellipse_points(centre, (1.3 * _RADIUS, _RADIUS), len(switches))
    lattice = is_lattice(topology, parts)
    places = _lattice(switches, topology.fanouts, centre) if lattice else dict(zip(switches, circle, strict=True))
    hosts: dict[str, list[str]] = {}
    for cable in parts.cables:
        if cable.a.startswith("node["):
            hosts.setdefault(cable.b, []).append(cable.a[5:-1])
        elif lattice:
            _lattice_cable(canvas, places[cable.a], places[cable.b], cable)
        else:
            canvas.line(places[cable.a], places[cable.b], 1.4, *_shade(cable, CABLE, 0.6))
    for switch, place in places.items():
        canvas.box(place, (66, 34), TIERS[0])
        numbers = hosts.get(switch, [])
        canvas.text((place[0], place[1] - (6 if numbers else 0)), switch, 11, PAPER)
        if numbers:
            words = f"node {numbers[0]}" if len(numbers) == 1 else f"nodes {numbers[0]}–{numbers[-1]}"
            canvas.text((place[0], place[1] + 8), words, 10, "#dbe7f0")


def _lattice(switches: list[str], extents: tuple[int, ...], centre: Coordinates) -> dict[str, Coordinates]:
    """Return {router: position} on a lattice around `centre`. `extents` are its columns and rows."""
    wide, high = extents
    across, down = min(1040 / wide, 220), min((2 * _RADIUS + 30) / high, 170)
    left, top = centre[0] - across * (wide - 1) / 2, centre[1] - down * (high - 1) / 2
    return {name: (left + i % wide * across, top + i // wide * down) for i, name in enumerate(switches)}


def _lattice_cable(canvas: Canvas, a: Coordinates, b: Coordinates, cable: DrawnCable) -> None:
    """Draw a cable of a lattice. A cable that passes other routers is an arc around them."""
    wide, high = abs(a[0] - b[0]), abs(a[1] - b[1])
    if wide < 221 and high < 171:
        canvas.line(a, b, 1.6, *_shade(cable, CABLE, 0.8))
        return
    shift = (0.0, -86.0) if high < 1 else (-120.0, 0.0)
    canvas.curve((a, ((a[0] + b[0]) / 2 + shift[0], (a[1] + b[1]) / 2 + shift[1]), b), 1.4, *_shade(cable, ARC, 0.75))


MOST_NODES = 64
"""Largest number of nodes that are drawn one by one."""
_MOST_SWITCHES, _MOST_LINES, _MOST_AROUND = 64, 300, 24


def picture(document: Document) -> Canvas:
    """Return the picture of a topology file. Raises ConfigError as `topology.build.build`."""
    topology = build(document)
    counts = topology.counts
    few = topology.nodes <= MOST_NODES and max(counts.get("switches", 0), counts.get("routers", 0)) <= _MOST_SWITCHES
    if topology.nodes == 1:
        canvas = _canvas(topology, cluster_cards.NODE_WIDTH + 80, cluster_cards.NODE_HEIGHT + 130)
        centre = canvas.width / 2, 90 + cluster_cards.NODE_HEIGHT / 2
        cluster_cards.draw_node(canvas, centre, topology, f"{topology.gpus} × {topology.gpu.name}")
        return canvas
    if few:
        cables = with_single_cables(document)
        without_faults = {key: value for key, value in document.data.items() if key != "faults"}
        drawn = parts(cables, with_single_cables(replace(document, data=without_faults)))
        few_lines, few_switches = len(drawn.cables) <= _MOST_LINES, sum(map(len, drawn.levels)) <= _MOST_AROUND
        if few_lines if drawn.hierarchical else few_switches or is_lattice(cables, drawn):
            cluster = replace(cables, counts=counts)
            height = _TOP + (_ROW * len(drawn.levels) + 90 if drawn.hierarchical else 2 * _RADIUS + 80)
            canvas = _canvas(cluster, WIDTH, height)
            (_rows if drawn.hierarchical else _flat)(canvas, drawn, cluster)
            return canvas
    canvas = _canvas(topology, cluster_cards.CARDS_WIDTH, cluster_cards.cards_height(topology))
    cluster_cards.draw_cards(canvas, topology)
    return canvas


def _canvas(topology: Topology, width: float, height: float) -> Canvas:
    """Return a canvas with the name of a cluster, its main figures and its faults."""
    title = f"{topology.name} ({topology.kind})"
    canvas = Canvas(width, height, title)
    canvas.text((40, 32), title, 20, anchor="start", bold=True)
    dead = int(topology.counts.get("dead_nodes", 0))
    nodes = "1 node" if topology.nodes == 1 else f"{topology.nodes:,} nodes"
    nodes = f"{topology.nodes:,} of {topology.nodes + dead:,} nodes" if dead else nodes
    words = [f"{nodes}, {topology.gpu_summary}"]
    if topology.counts.get("bisection"):
        words.append(f"bisection {scaled(topology.counts['bisection'], 'B/s')}")
    longest = diameter(topology)
    if longest.hops:
        words.append(f"at most {longest.hops:g} link{'s' * (longest.hops != 1)}, {seconds(longest.latency)}")
    canvas.text((40, 58), "   ·   ".join(words), 13, FAINT, anchor="start")
    faulty = faults(topology)
    if faulty:
        listed = "   ·   ".join(f"{label}: {value}" for label, value in faulty)
        canvas.text((40, 80), f"{listed}   (orange: slow, red: dead)", 13, BROKEN, anchor="start")
    return canvas
