"""The inside of a node: GPUs, what joins them, and the NICs."""

from __future__ import annotations

from math import cos, pi, sin

from clustersim.drawing.canvas import FAINT, GPU, INK, NIC, NODE, NODE_EDGE, SWITCH, Canvas, Coordinates
from clustersim.topology.drawing.parts import inner_pairs, rate_inside
from clustersim.topology.model import Topology
from clustersim.units import scaled

_SHOWN = 16
WIDTH, HEIGHT = 460.0, 210.0


def draw(canvas: Canvas, at: Coordinates, topology: Topology, title: str) -> None:
    """Draw a node around the centre `at`, WIDTH by HEIGHT."""
    canvas.box(at, (WIDTH, HEIGHT), NODE, NODE_EDGE, 10)
    left, top = at[0] - WIDTH / 2, at[1] - HEIGHT / 2
    canvas.text((left + 16, top + 20), title, 14, anchor="start", bold=True)
    pairs, gpus = inner_pairs(topology), topology.numbering.widths[-1]
    rate = scaled(rate_inside(topology), "B/s")
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
    places = around(at, (90.0, 72.0), gpus)
    for a, b in pairs:
        canvas.line(places[a], places[b], 1.4, SWITCH, 0.55)
    for gpu, place in enumerate(places):
        canvas.box(place, (30, 22), GPU)
        canvas.text(place, str(gpu), 12, "#ffffff")


def around(at: Coordinates, radii: Coordinates, count: int) -> list[Coordinates]:
    """Return places on an ellipse, from the top clockwise."""
    turns = [2 * pi * i / count - pi / 2 for i in range(count)]
    return [(at[0] + radii[0] * cos(t), at[1] + radii[1] * sin(t)) for t in turns]


def _switched(canvas: Canvas, at: Coordinates, topology: Topology, rate: str, nics: int) -> None:
    gpus = topology.numbering.widths[-1]
    shown = min(gpus, _SHOWN)
    pitch = min(52.0, (WIDTH - 40) / shown)
    first = at[0] - pitch * (shown - 1) / 2
    label = {"nvlink": "NVLink", "pcie": "PCIe"}.get(topology.tiers[0].name.split("-")[0], "switch")
    if gpus > 1:
        canvas.box((at[0], at[1] - 40), (pitch * shown, 26), SWITCH)
        canvas.text((at[0], at[1] - 40), f"{label}   {rate} a GPU and direction", 12, "#ffffff")
    for i in range(shown):
        x = first + pitch * i
        if gpus > 1:
            canvas.line((x, at[1] - 27), (x, at[1] + 10), 2, SWITCH)
        if i * nics // shown != (i - 1) * nics // shown and topology.nodes > 1:
            canvas.line((x, at[1] + 20), (x, at[1] + 62), 2, NIC)
            canvas.box((x, at[1] + 64), (min(26, pitch - 4), 16), NIC, radius=3)
        dots = gpus > shown and i == shown - 2
        canvas.box((x, at[1] + 18), (min(40, pitch - 4), 24), GPU)
        canvas.text((x, at[1] + 18), "…" if dots else str(i if i < shown - 1 else gpus - 1), 12, "#ffffff")
    if topology.nodes > 1:
        canvas.text((at[0], at[1] + 90), f"{nics} NIC{'s' * (nics > 1)}", 12, INK)
