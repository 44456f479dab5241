"""docs/images/house.svg: the rooms of clustersim/, layer above layer, and who imports whom."""

from html import escape

from documents import ROOT
from imports import imports, layers, room_of

HOUSE = ROOT / "docs/images/house.svg"
ROOMS = {
    "cli": ("one file a command", 4.0),
    "lab": ("measure, train, judge", 0.9),
    "validate": ("published steps", 8.2),
    "planning": ("nodes, days, dollars", 5.4),
    "explain": ("why, and what if", 3.95),
    "optimization": ("the best, proved", 5.4),
    "calibration": ("what it rests on", 1.4),
    "sweeps": ("many splits, ranked", 5.4),
    "jobs": ("several on a cluster", 2.8),
    "simulation": ("load … summarize", 4.0),
    "preparation": ("a job before its links", 4.0),
    "report": ("summary, tables, trace", 4.0),
    "engine": ("SimPy, fabric, folding", 4.0),
    "single_gpu": ("PyTorch's operators", 0.9),
    "collectives": ("algorithms, NCCL", 7.0),
    "schedules": ("order of passes", 5.0),
    "predictors": ("kernel → seconds", 0.9),
    "parallel": ("mesh, stages, memory", 3.1),
    "serve": ("results in a browser", 7.7),
    "pages": ("report.html", 6.4),
    "figures": ("SVG, PNG, PDF", 6.4),
    "api": ("import clustersim", 8.2),
    "question": ("what a run is asked", 6.9),
    "frameworks": ("what each one does", 8.2),
    "model": ("operators, kernels", 2.8),
    "costs": ("prices, power, carbon", 6.0),
    "topology": ("links, routes, faults", 6.5),
    "convert": ("text of other tools", 5.9),
    "hardware": ("GPUs, nodes", 1.5),
    "config": ("YAML → specs", 4.0),
}
"""What a room is about, below its name, and where it stands from left to right, so that no arrow goes through a room."""
UNIT, ROW, WIDE, HIGH, TOP = 108.0, 70.0, 150.0, 40.0, 16.0
BASE = 2
"""The lowest layers are single files that all rooms may use: one box, without arrows."""


def arrows() -> list[tuple[str, str]]:
    """Return which room imports which, less what follows from other arrows, as lines from the upper to the lower."""
    import networkx as nx

    upper = {room for layer in layers()[:-BASE] for room in layer}
    pairs = {(room_of(one), room_of(other)) for one, others in imports().items() for other in others}
    drawn = nx.DiGraph([(a, b) for a, b in sorted(pairs) if a != b and {a, b} <= upper])
    return sorted(nx.transitive_reduction(drawn).edges)


def draw_house() -> str:
    """Return the picture; the same imports give the same text."""
    rows = layers()
    at = {room: (ROOMS[room][1] * UNIT, TOP + row * ROW) for row, rooms in enumerate(rows[:-BASE]) for room in rooms}
    width, bottom = 9.0 * UNIT, TOP + (len(rows) - BASE) * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {bottom + 74:g}" font-family="sans-serif">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
        f'<rect width="{width:g}" height="{bottom + 74:g}" fill="#fff"/>',
    ]
    for one, other in arrows():
        (x, y), (to_x, to_y) = at[one], at[other]
        parts.append(
            f'<line x1="{x:g}" y1="{y + HIGH:g}" x2="{to_x:g}" y2="{to_y - 1:g}" stroke="#555" marker-end="url(#head)"/>'
        )
    for room, (x, y) in at.items():
        parts.append(_box(x - WIDE / 2, y, WIDE, room, ROOMS[room][0]))
    base = (" · ".join(rooms) for rooms in rows[-BASE:])
    parts.append(_box(20, bottom, width - 40, *base))
    parts.append(
        f'<text x="{width / 2:g}" y="{bottom + 62:g}" font-size="12" text-anchor="middle" fill="#555">'
        "an arrow: imports; what follows from other arrows is left out; all rooms may use the lowest box</text>"
    )
    return "\n".join([*parts, "</svg>\n"])


def _box(x: float, y: float, wide: float, name: str, words: str) -> str:
    middle = x + wide / 2
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{HIGH:g}" rx="5" fill="#eef4fa" stroke="#0072b2"/>'
        f'<text x="{middle:g}" y="{y + 17:g}" font-size="14" font-weight="bold" text-anchor="middle">{escape(name)}</text>'
        f'<text x="{middle:g}" y="{y + 32:g}" font-size="11" text-anchor="middle" fill="#333">{escape(words)}</text>'
    )
