"""A small cluster with every switch and node drawn: levels as rows, networks without levels as a circle or a lattice."""

from __future__ import annotations

from math import prod

from clustersim.topology.drawing.canvas import FAINT, GPU, NODE, NODE_EDGE, TIERS, Canvas, Point
from clustersim.topology.drawing.node import around
from clustersim.topology.drawing.parts import Cable, Parts
from clustersim.topology.model import Topology
from clustersim.units import scaled

WIDTH = 1200.0
_MARGIN, _CAPTION, _ROW, _TOP = 40.0, 190.0, 150.0, 110.0


def rows_height(parts: Parts) -> float:
    """Return the height of the picture in rows."""
    return _TOP + _ROW * len(parts.levels) + 90


def rows(canvas: Canvas, parts: Parts, topology: Topology) -> None:
    """Draw the levels of switches above each other, the nodes at the bottom."""
    places: dict[str, Point] = {}
    levels = [parts.nodes, *parts.levels]
    for i, names in enumerate(levels):
        places |= _spread(names, _TOP + _ROW * (len(levels) - 1 - i))
    _cables(canvas, parts.cables, places)
    for i, names in enumerate(levels):
        _caption(canvas, parts, names, i, places[names[0]][1])
        for name in names:
            if i:
                _switch(canvas, places[name], name, i - 1, _pitch(names))
            else:
                _node(canvas, places[name], name, topology.gpus_per_node, _pitch(names))


def _spread(names: tuple[str, ...], y: float) -> dict[str, Point]:
    pitch = _pitch(names)
    return {name: (_CAPTION + _MARGIN + pitch * (i + 0.5), y) for i, name in enumerate(names)}


def _pitch(names: tuple[str, ...]) -> float:
    return (WIDTH - _CAPTION - 2 * _MARGIN) / len(names)


def _cables(canvas: Canvas, cables: tuple[Cable, ...], places: dict[str, Point]) -> None:
    most = max((c.cables for c in cables), default=1)
    faint = 0.75 if len(cables) < 60 else 0.4
    for cable in cables:
        canvas.line(places[cable.a], places[cable.b], 0.8 + 2.4 * cable.cables / most, "#6b8299", faint)


def _caption(canvas: Canvas, parts: Parts, names: tuple[str, ...], level: int, y: float) -> None:
    kind = names[0].partition("[")[0]
    what = "node" if level == 0 else f"{kind} switch" if "[" in names[0] and kind != "switch" else "switch"
    plural = what if len(names) == 1 else what + ("es" if what.endswith("switch") else "s")
    canvas.text((_MARGIN, y), f"{len(names)} {plural}", 15, anchor="start", bold=True)
    below = [c for c in parts.cables if names[0] in (c.a, c.b) and level]
    down = set(parts.nodes if level == 1 else parts.levels[level - 2] if level else ())
    joined = [c for c in parts.cables if {c.a, c.b} & set(names) and {c.a, c.b} & down]
    if below and joined:
        canvas.text((_MARGIN, y + 22), f"{sum(c.cables for c in joined):,} cables down", 12, FAINT, anchor="start")
        canvas.text((_MARGIN, y + 39), f"of {scaled(joined[0].rate, 'B/s')}", 12, FAINT, anchor="start")


def _switch(canvas: Canvas, at: Point, name: str, level: int, pitch: float) -> None:
    width = min(84.0, pitch - 4)
    canvas.box(at, (width, 26), TIERS[level % len(TIERS)])
    number = name.partition("[")[2][:-1] or name
    if width > 8 * len(number):
        canvas.text(at, name if width >= 7 * len(name) + 6 else number, 12, "#ffffff")


def _node(canvas: Canvas, at: Point, name: str, gpus: int, pitch: float) -> None:
    width = max(10.0, min(110.0, pitch - 4))
    canvas.box((at[0], at[1] + 12), (width, 56), NODE, NODE_EDGE)
    across = max(1, min(8, int(width // 12)))
    shown = min(gpus, 2 * across)
    for i in range(shown):
        in_row = min(across, shown - i // across * across)
        x = at[0] + ((i % across) - (in_row - 1) / 2) * 12
        canvas.box((x, at[1] + (i // across) * 12), (9, 9), GPU, radius=2)
    number = name.partition("[")[2][:-1]
    canvas.text((at[0], at[1] + 31), f"node {number}" if width > 60 else number, 11 if width > 18 else 8, FAINT)


def flat_height(parts: Parts) -> float:
    """Return the height of the picture of a network without levels."""
    return WIDTH * 0.82


def flat(canvas: Canvas, parts: Parts, topology: Topology) -> None:
    """Draw routers that are joined among themselves: a torus of two dimensions as a lattice, others on a circle."""
    switches = [name for names in parts.levels for name in names]
    centre = (WIDTH / 2, _TOP + (flat_height(parts) - _TOP) / 2)
    extents = topology.fanouts
    if topology.kind in ("torus", "grid") and len(extents) == 2 and prod(extents) == len(switches):
        places = _lattice(switches, extents, centre)
    else:
        places = dict(zip(switches, around(centre, (330, 330), len(switches)), strict=True))
    hosts: dict[str, list[str]] = {}
    for cable in parts.cables:
        if cable.a.startswith("node["):
            hosts.setdefault(cable.b, []).append(cable.a)
        else:
            _bent(canvas, places[cable.a], places[cable.b], centre)
    for switch, place in places.items():
        _host(canvas, place, centre, hosts.get(switch, []))
        canvas.box(place, (38, 22), TIERS[0])
        canvas.text(place, switch.partition("[")[2][:-1] or switch[:5], 11, "#ffffff")


def _lattice(switches: list[str], extents: tuple[int, ...], centre: Point) -> dict[str, Point]:
    wide, high = extents
    step = min(820 / wide, 640 / high, 150)
    left, top = centre[0] - step * (wide - 1) / 2, centre[1] - step * (high - 1) / 2
    return {name: (left + i % wide * step, top + i // wide * step) for i, name in enumerate(switches)}


def _bent(canvas: Canvas, a: Point, b: Point, centre: Point) -> None:
    """Draw a cable; the wrap-around ones of a lattice, which would run through others, as arcs."""
    straight = abs(a[0] - b[0]) < 1 or abs(a[1] - b[1]) < 1
    length = abs(a[0] - b[0]) + abs(a[1] - b[1])
    if not straight or length < 151:
        canvas.line(a, b, 1.6, "#6b8299", 0.7)
        return
    middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)
    sideways = (0.0, -length * 0.14 - 20) if abs(a[1] - b[1]) < 1 else (-length * 0.14 - 20, 0.0)
    canvas.curve((a, (middle[0] + sideways[0], middle[1] + sideways[1]), b), 1.3, "#a3773f", 0.7)


def _host(canvas: Canvas, at: Point, centre: Point, nodes: list[str]) -> None:
    """Write the nodes that hang on a router beside it, away from the centre."""
    if not nodes:
        return
    numbers = [name[5:-1] for name in nodes]
    words = f"node {numbers[0]}" if len(numbers) == 1 else f"nodes {numbers[0]}–{numbers[-1]}"
    canvas.text((at[0], at[1] + 20), words, 10, FAINT)
