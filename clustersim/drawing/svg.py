"""A picture as SVG text."""

from __future__ import annotations

from functools import singledispatch
from xml.sax.saxutils import escape

from clustersim.drawing.canvas import PAPER, Box, Canvas, Dot, Line, Text


def text(canvas: Canvas) -> str:
    """Return the picture as an SVG document."""
    w, h = f"{canvas.width:g}", f"{canvas.height:g}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
        'font-family="Helvetica, Arial, sans-serif" role="img">'
    )
    ground = f'<rect width="{w}" height="{h}" fill="{PAPER}"/>'
    return "\n".join(
        [
            head,
            *([f"<title>{escape(canvas.title)}</title>"] if canvas.title else []),
            ground,
            *map(_element, canvas.shapes),
            "</svg>",
            "",
        ]
    )


@singledispatch
def _element(shape: object) -> str:
    raise NotImplementedError(shape)


@_element.register
def _line(shape: Line) -> str:
    style = f'stroke="{shape.colour}" stroke-width="{shape.width:.2g}" stroke-opacity="{shape.opacity:.2g}"'
    style += ' stroke-dasharray="6 4"' * shape.dashed
    if len(shape.points) == 2:
        a, b = shape.points
        return f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" {style}/>'
    (x0, y0), (x1, y1), (x2, y2) = shape.points
    return f'<path d="M{x0:.1f} {y0:.1f}Q{x1:.1f} {y1:.1f} {x2:.1f} {y2:.1f}" fill="none" {style}/>'


@_element.register
def _box(shape: Box) -> str:
    (x, y), (wide, high) = shape.corner, shape.size
    place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="{shape.radius:g}"'
    look = f'fill="{shape.fill}" stroke="{shape.edge}"'
    return (
        f"<rect {place} {look}><title>{escape(shape.said)}</title></rect>" if shape.said else f"<rect {place} {look}/>"
    )


@_element.register
def _dot(shape: Dot) -> str:
    return f'<circle cx="{shape.at[0]:.1f}" cy="{shape.at[1]:.1f}" r="{shape.radius:.1f}" fill="{shape.fill}"/>'


@_element.register
def _text(shape: Text) -> str:
    weight = ' font-weight="600"' if shape.bold else ""
    place = f'x="{shape.at[0]:.1f}" y="{shape.at[1]:.1f}" font-size="{shape.size:g}" text-anchor="{shape.anchor}"'
    return f'<text {place} fill="{shape.colour}"{weight}>{escape(shape.words)}</text>'
