"""The shapes of a picture, in the order in which they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

INK, FAINT, PAPER = "#1f2933", "#7b8794", "#ffffff"
SWITCH, TIERS = "#2f6f9f", ("#2f6f9f", "#5b4b9a", "#9a3f6b", "#b3572f", "#7d7a2a")
SLOW, BROKEN = "#e07b00", "#c62828"
NODE, NODE_EDGE, DEAD, GPU, NIC = "#f4f6f8", "#9fb1c1", "#f3dcd8", "#3c9d74", "#d99a2b"
Coordinates = tuple[float, float]


class Line(NamedTuple):
    """A line through two points, or a quadratic curve."""

    points: tuple[Coordinates, ...]
    """Two, or three: from the first to the last, bent towards the middle one."""
    width: float
    """In pixels."""
    colour: str
    """Of the line."""
    opacity: float
    """0 to 1."""
    dashed: bool = False
    """Whether it has gaps."""


class Box(NamedTuple):
    """A rectangle with round corners."""

    corner: Coordinates
    """Its upper left."""
    size: Coordinates
    """Width and height."""
    fill: str
    """Colour inside."""
    edge: str
    """Colour of the border."""
    radius: float
    """Of the corners."""
    said: str = ""
    """What it is, shown where a reader can point at it."""


class Dot(NamedTuple):
    """A disc."""

    at: Coordinates
    """Its centre."""
    radius: float
    """In pixels."""
    fill: str
    """Its colour."""


class Text(NamedTuple):
    """A line of text."""

    at: Coordinates
    """Its start or middle, as `anchor` says, on the baseline."""
    words: str
    """What it says."""
    size: float
    """Pixels of an em."""
    colour: str
    """Of the letters."""
    anchor: str
    """start, middle or end."""
    bold: bool
    """Whether letters are bold."""


class Canvas:
    """A picture of a width and a height in pixels; later shapes cover earlier ones."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.shapes: list[Line | Box | Dot | Text] = []

    def line(
        self,
        a: Coordinates,
        b: Coordinates,
        width: float = 1.0,
        colour: str = FAINT,
        opacity: float = 1.0,
        dashed: bool = False,
    ) -> None:
        """Draw a line."""
        self.shapes.append(Line((a, b), width, colour, opacity, dashed))

    def curve(
        self, points: Sequence[Coordinates], width: float = 1.0, colour: str = FAINT, opacity: float = 1.0
    ) -> None:
        """Draw a quadratic curve from the first to the last of three points, bent towards the middle one."""
        self.shapes.append(Line(tuple(points), width, colour, opacity))

    def box(self, at: Coordinates, size: Coordinates, fill: str, edge: str = "none", radius: float = 4) -> None:
        """Draw a rectangle around a centre."""
        self.shapes.append(Box((at[0] - size[0] / 2, at[1] - size[1] / 2), size, fill, edge, radius))

    def bar(
        self, corner: Coordinates, size: Coordinates, fill: str, edge: str = "none", radius: float = 0.0, said: str = ""
    ) -> None:
        """Draw a rectangle from its upper left corner; said: what it is."""
        self.shapes.append(Box(corner, size, fill, edge, radius, said))

    def dot(self, at: Coordinates, radius: float, fill: str) -> None:
        """Draw a disc."""
        self.shapes.append(Dot(at, radius, fill))

    def text(
        self,
        at: Coordinates,
        words: str,
        size: float = 13,
        colour: str = INK,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        """Write a line of text whose middle is at half its height."""
        self.shapes.append(Text((at[0], at[1] + size * 0.35), words, size, colour, anchor, bold))

    def pill(self, at: Coordinates, words: str, size: float = 12) -> None:
        """Write text on a light ground, over lines."""
        self.box(at, (len(words) * size * 0.56 + 16, size + 10), PAPER, "#d5dde4", (size + 10) / 2)
        self.text(at, words, size)
