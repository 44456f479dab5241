"""The shapes of a picture, as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

INK, FAINT, PAPER = "#1f2933", "#7b8794", "#ffffff"
SWITCH, TIERS = "#2f6f9f", ("#2f6f9f", "#5b4b9a", "#9a3f6b", "#b3572f", "#7d7a2a")
SLOW, BROKEN = "#e07b00", "#c62828"
NODE, NODE_EDGE, DEAD, GPU, NIC = "#f4f6f8", "#9fb1c1", "#f3dcd8", "#3c9d74", "#d99a2b"
Point = tuple[float, float]


class Canvas:
    """A picture of a width and a height in pixels; later shapes cover earlier ones."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height = width, height
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
            'font-family="Helvetica, Arial, sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width:g}" height="{height:g}" fill="{PAPER}"/>',
        ]

    def line(self, a: Point, b: Point, width: float = 1.0, colour: str = FAINT, opacity: float = 1.0) -> None:
        """Draw a line."""
        ends = f'x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"'
        self.parts.append(f'<line {ends} stroke="{colour}" stroke-width="{width:.2g}" stroke-opacity="{opacity:.2g}"/>')

    def curve(self, points: Sequence[Point], width: float = 1.0, colour: str = FAINT, opacity: float = 1.0) -> None:
        """Draw a quadratic curve from the first to the last of three points, bent towards the middle one."""
        (x0, y0), (x1, y1), (x2, y2) = points
        path = f"M{x0:.1f} {y0:.1f}Q{x1:.1f} {y1:.1f} {x2:.1f} {y2:.1f}"
        style = f'stroke="{colour}" stroke-width="{width:.2g}" stroke-opacity="{opacity:.2g}"'
        self.parts.append(f'<path d="{path}" fill="none" {style}/>')

    def box(self, at: Point, size: Point, fill: str, edge: str = "none", radius: float = 4) -> None:
        """Draw a rectangle around a centre."""
        x, y = at[0] - size[0] / 2, at[1] - size[1] / 2
        place = f'x="{x:.1f}" y="{y:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}" rx="{radius:g}"'
        self.parts.append(f'<rect {place} fill="{fill}" stroke="{edge}"/>')

    def dot(self, at: Point, radius: float, fill: str) -> None:
        """Draw a disc."""
        self.parts.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:.1f}" fill="{fill}"/>')

    def text(
        self, at: Point, words: str, size: float = 13, colour: str = INK, anchor: str = "middle", bold: bool = False
    ) -> None:
        """Write a line of text whose middle is at half its height."""
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{at[0]:.1f}" y="{at[1] + size * 0.35:.1f}" font-size="{size:g}" text-anchor="{anchor}"'
        self.parts.append(f'<text {place} fill="{colour}"{weight}>{escape(words)}</text>')

    def pill(self, at: Point, words: str, size: float = 12) -> None:
        """Write text on a light ground, over lines."""
        self.box(at, (len(words) * size * 0.56 + 16, size + 10), PAPER, "#d5dde4", (size + 10) / 2)
        self.text(at, words, size)

    def svg(self) -> str:
        """Return the picture."""
        return "\n".join([*self.parts, "</svg>", ""])
