"""The shapes of a picture, in drawing order, and the picture as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

INK, FAINT, GRID, PAPER = "#1f2933", "#7b8794", "#d5dde4", "#ffffff"
SWITCH, TIERS = "#2f6f9f", ("#2f6f9f", "#5b4b9a", "#9a3f6b", "#b3572f", "#7d7a2a")
SLOW, BROKEN = "#e07b00", "#c62828"
CABLE, ARC, SHADOW = "#6b8299", "#b3762a", "#c2ccd5"
NODE, NODE_EDGE, DEAD, GPU, NIC = "#f4f6f8", "#9fb1c1", "#f3dcd8", "#3c9d74", "#d99a2b"
PART_COLOURS = {  # Okabe and Ito (2008), distinguishable for colour-blind readers, some lighter
    "compute": "#56b4e9",
    "tp": "#cc79a7",
    "pp": "#0072b2",
    "dp": "#2bb58a",
    "ep": "#d55e00",
    "cp": "#b59a5b",
    "optimizer": "#b0b0b0",
    "model": "#b0b0b0",
    "host": "#b9a4f5",
    "bubble": "#e8e8e8",
}
"""Colour of each part of a breakdown."""
Coordinates = tuple[float, float]


class Line(NamedTuple):
    """A line through two points, or a quadratic curve."""

    points: tuple[Coordinates, ...]
    """Two end points, or three: start, control point and end of a curve."""
    width: float
    colour: str
    opacity: float
    dashed: bool = False

    @property
    def svg(self) -> str:
        """Element of an SVG document."""
        style = f'stroke="{self.colour}" stroke-width="{self.width:.2g}" stroke-opacity="{self.opacity:.2g}"'
        style += ' stroke-dasharray="6 4"' * self.dashed
        if len(self.points) == 2:
            a, b = self.points
            return f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" {style}/>'
        (x0, y0), (x1, y1), (x2, y2) = self.points
        return f'<path d="M{x0:.1f} {y0:.1f}Q{x1:.1f} {y1:.1f} {x2:.1f} {y2:.1f}" fill="none" {style}/>'


class Box(NamedTuple):
    """A rectangle with round corners."""

    corner: Coordinates
    size: Coordinates
    fill: str
    edge: str
    radius: float
    tip: str = ""
    """Text shown when a reader points at the box."""

    @property
    def svg(self) -> str:
        """Element of an SVG document."""
        (x, y), (wide, high) = self.corner, self.size
        place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="{self.radius:g}"'
        look = f'fill="{self.fill}" stroke="{self.edge}"'
        tip = f"<title>{escape(self.tip)}</title></rect>"
        return f"<rect {place} {look}>{tip}" if self.tip else f"<rect {place} {look}/>"


class Dot(NamedTuple):
    """A filled circle."""

    at: Coordinates
    radius: float
    fill: str

    @property
    def svg(self) -> str:
        """Element of an SVG document."""
        return f'<circle cx="{self.at[0]:.1f}" cy="{self.at[1]:.1f}" r="{self.radius:.1f}" fill="{self.fill}"/>'


class Text(NamedTuple):
    """A line of text."""

    at: Coordinates
    """Start, middle or end of the baseline, by `anchor`."""
    words: str
    size: float
    colour: str
    anchor: str
    """Part of the text at `at`: start, middle or end."""
    bold: bool

    @property
    def svg(self) -> str:
        """Element of an SVG document."""
        weight = ' font-weight="600"' if self.bold else ""
        place = f'x="{self.at[0]:.1f}" y="{self.at[1]:.1f}" font-size="{self.size:g}" text-anchor="{self.anchor}"'
        return f'<text {place} fill="{self.colour}"{weight}>{escape(self.words)}</text>'


MARKS = {
    "dot": ("h0", 3.4, "."),  # the round ends of a line of no length
    "cross": ("m-2.2-2.2l4.4 4.4m-4.4 0l4.4-4.4", 1.1, "x"),
    "plus": ("m-2.8 0h5.6m-2.8-2.8v5.6", 1.1, "+"),
    "triangle": ("m0-2.6l2.5 4.4h-5z", 1.0, "^"),
    "tick": ("m0-7v14", 0.8, "|"),
}
"""{kind of mark: (SVG path from its middle, width of its lines in pixels, matplotlib's marker)}"""
GROUP_MARKS = ("dot", "cross", "plus", "triangle")
"""Kinds of marks for groups of points, for readers who cannot distinguish colours."""


class Marks(NamedTuple):
    """Marks of one kind and colour at many points, larger and stronger if there are few."""

    at: tuple[Coordinates, ...]
    kind: str
    colour: str
    tips: tuple[str, ...] = ()
    """Texts shown when a reader points at each mark; none if empty."""

    @property
    def few(self) -> bool:
        """Whether the marks are so few that they rarely cover each other."""
        return len(self.at) <= 30

    @property
    def svg(self) -> str:
        """Element of an SVG document."""
        mark, width, _ = MARKS[self.kind]
        paths = [f"M{x:.1f} {y:.1f}{mark}" for x, y in self.at]
        width, opacity = (1.6 * width, 0.95) if self.few else (width, 0.6)
        style = f'stroke="{self.colour}" stroke-width="{width:.1f}" stroke-opacity="{opacity}" stroke-linecap="round"'
        if not self.tips:
            return f'<path d="{"".join(paths)}" fill="none" {style}/>'
        each = zip(paths, map(escape, self.tips), strict=True)
        return "".join(f'<path d="{path}" fill="none" {style}><title>{tip}</title></path>' for path, tip in each)


class Canvas:
    """A picture with a width and a height in pixels. Later shapes cover earlier ones."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.shapes: list[Line | Box | Dot | Marks | Text] = []

    def line(
        self,
        a: Coordinates,
        b: Coordinates,
        width: float = 1.0,
        colour: str = FAINT,
        opacity: float = 1.0,
        dashed: bool = False,
    ) -> None:
        """Draw a line from `a` to `b`."""
        self.shapes.append(Line((a, b), width, colour, opacity, dashed))

    def curve(
        self, points: Sequence[Coordinates], width: float = 1.0, colour: str = FAINT, opacity: float = 1.0
    ) -> None:
        """Draw a quadratic curve of three points: start, control point and end."""
        self.shapes.append(Line(tuple(points), width, colour, opacity))

    def box(self, at: Coordinates, size: Coordinates, fill: str, edge: str = "none", radius: float = 4) -> None:
        """Draw a rectangle around the centre `at`."""
        self.shapes.append(Box((at[0] - size[0] / 2, at[1] - size[1] / 2), size, fill, edge, radius))

    def bar(
        self, corner: Coordinates, size: Coordinates, fill: str, edge: str = "none", radius: float = 0.0, tip: str = ""
    ) -> None:
        """Draw a rectangle from its upper left corner. `tip` is shown when a reader points at it."""
        self.shapes.append(Box(corner, size, fill, edge, radius, tip))

    def dot(self, at: Coordinates, radius: float, fill: str) -> None:
        """Draw a filled circle."""
        self.shapes.append(Dot(at, radius, fill))

    def marks(self, points: Sequence[Coordinates], kind: str, colour: str, tips: Sequence[str] = ()) -> None:
        """Draw a mark of a kind in MARKS at each of some points. `tips` are shown when a reader points at them."""
        if points:
            self.shapes.append(Marks(tuple(points), kind, colour, tuple(tips)))

    def text(
        self,
        at: Coordinates,
        words: str,
        size: float = 13,
        colour: str = INK,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        """Write a line of text centred vertically at `at`."""
        self.shapes.append(Text((at[0], at[1] + size * 0.35), words, size, colour, anchor, bold))

    def pill(self, at: Coordinates, words: str, size: float = 12) -> None:
        """Write text on a light box, for places where lines pass."""
        self.box(at, (len(words) * size * 0.56 + 16, size + 10), PAPER, GRID, (size + 10) / 2)
        self.text(at, words, size)


def svg(canvas: Canvas) -> str:
    """Return the picture as an SVG document."""
    w, h = f"{canvas.width:g}", f"{canvas.height:g}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
        'font-family="Helvetica, Arial, sans-serif" role="img">'
    )
    title = [f"<title>{escape(canvas.title)}</title>"] if canvas.title else []
    ground = f'<rect width="{w}" height="{h}" fill="{PAPER}"/>'
    return "\n".join([head, *title, ground, *(shape.svg for shape in canvas.shapes), "</svg>", ""])
