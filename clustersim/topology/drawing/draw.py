"""A cluster as a picture: every switch of a small one, groups of a large one."""

from __future__ import annotations

from dataclasses import replace

from clustersim.config.yaml import Document
from clustersim.drawing.canvas import BROKEN, FAINT, Canvas
from clustersim.drawing.svg import text
from clustersim.topology.build import build
from clustersim.topology.describe import diameter, faults
from clustersim.topology.drawing import cards, node, whole
from clustersim.topology.drawing.parts import DrawnParts, parts
from clustersim.topology.export.cables import cabled
from clustersim.topology.model import Topology
from clustersim.units import scaled, seconds

MOST_NODES = 64
_MOST_SWITCHES, _MOST_LINES, _MOST_AROUND = 64, 300, 24


def svg(document: Document) -> str:
    """Return the picture of a topology file as SVG. Raises ConfigError as `build` does."""
    return text(picture(document))


def picture(document: Document) -> Canvas:
    """Return the picture of a topology file as shapes. Raises ConfigError as `build` does."""
    topology = build(document)
    counts = topology.counts
    few = topology.nodes <= MOST_NODES and max(counts.get("switches", 0), counts.get("routers", 0)) <= _MOST_SWITCHES
    if topology.nodes == 1:
        return _alone(topology)
    if few:
        cables = cabled(document)
        found = parts(cables, cabled(_sound(document)))
        if _fits(cables, found):
            return _whole(replace(cables, counts=counts), found)
    canvas = _canvas(topology, cards.WIDTH, cards.height(topology))
    cards.draw(canvas, topology)
    return canvas


def _sound(document: Document) -> Document:
    if "faults" not in document.data:
        return document
    return replace(document, data={key: value for key, value in document.data.items() if key != "faults"})


def _fits(topology: Topology, found: DrawnParts) -> bool:
    """Return whether the picture of every switch is no hairball."""
    if found.hierarchical:
        return len(found.cables) <= _MOST_LINES
    return whole.is_lattice(topology, found) or sum(map(len, found.levels)) <= _MOST_AROUND


def _alone(topology: Topology) -> Canvas:
    canvas = _canvas(topology, node.WIDTH + 80, node.HEIGHT + 130)
    node.draw(canvas, (canvas.width / 2, 90 + node.HEIGHT / 2), topology, f"{topology.gpus} × {topology.gpu.name}")
    return canvas


def _whole(topology: Topology, found: DrawnParts) -> Canvas:
    height = whole.rows_height(found) if found.hierarchical else whole.flat_height(found)
    canvas = _canvas(topology, whole.WIDTH, height)
    (whole.rows if found.hierarchical else whole.flat)(canvas, found, topology)
    return canvas


def _canvas(topology: Topology, width: float, height: float) -> Canvas:
    title = f"{topology.name} ({topology.kind})"
    canvas = Canvas(width, height, title)
    canvas.text((40, 32), title, 20, anchor="start", bold=True)
    dead = int(topology.counts.get("dead_nodes", 0))
    nodes = "1 node" if topology.nodes == 1 else f"{topology.nodes:,} nodes"
    nodes = f"{topology.nodes:,} of {topology.nodes + dead:,} nodes" if dead else nodes
    words = [f"{nodes}, {topology.said}"]
    if topology.counts.get("bisection"):
        words.append(f"bisection {scaled(topology.counts['bisection'], 'B/s')}")
    longest = diameter(topology)
    if longest.hops:
        words.append(f"at most {longest.hops:g} link{'s' * (longest.hops != 1)}, {seconds(longest.latency)}")
    canvas.text((40, 58), "   ·   ".join(words), 13, FAINT, anchor="start")
    ill = faults(topology)
    if ill:
        told = "   ·   ".join(f"{label}: {value}" for label, value in ill)
        canvas.text((40, 80), f"{told}   (orange: slow, red: dead)", 13, BROKEN, anchor="start")
    return canvas
