"""Writes a picture in the format of the file's suffix.

matplotlib draws PNG and PDF, with the same shapes, text and colours as SVG. The extra `plots` installs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

from clustersim import writing
from clustersim.extras import need
from clustersim.figures.canvas import MARKS, PAPER, Box, Canvas, Dot, Line, Marks, Text, svg

FORMS: dict[str, tuple[str, dict[str, None]]] = {
    ".png": ("png", {"Software": None}),
    ".pdf": ("pdf", {"CreationDate": None, "Producer": None, "Creator": None}),
}
"""{suffix: (matplotlib's format, metadata to omit, so that equal pictures have equal bytes)}"""
PICTURES, OTHERWISE = "a PNG or PDF", "write a name that ends in .svg"
"""File formats that need matplotlib, and the remedy in a message where it is not installed."""
_DOTS = 200
"""Dots per inch. An SVG pixel is 1/100 inch, so two dots."""
_POINTS = 72 / 100
"""Points per pixel."""
_FONTS = {"Helvetica": 1.0, "Arial": 1.0, "Liberation Sans": 1.0, "Nimbus Sans": 1.0, "DejaVu Sans": 0.87}
"""{font: size factor that makes words as wide as in Helvetica}, by preference. matplotlib ships the last one."""


def image(canvas: Canvas, ending: str) -> bytes:
    """Return the bytes of a picture as `.png` (two dots per pixel) or `.pdf`. Raises InputError if matplotlib is missing."""
    need("matplotlib", PICTURES, OTHERWISE)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(canvas.width / 100, canvas.height / 100), facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, canvas.width), ylim=(canvas.height, 0))
    axes.set_axis_off()
    for order, shape in enumerate(canvas.shapes):
        axes.add_artist(_artist(shape)).set_zorder(order)
    target = BytesIO()
    form, undated = FORMS[ending]
    figure.savefig(target, format=form, dpi=_DOTS, metadata=undated)
    return target.getvalue()


def _artist(shape: Line | Box | Dot | Marks | Text) -> Any:
    """Return matplotlib's artist of a shape."""
    from matplotlib import patches
    from matplotlib.font_manager import fontManager
    from matplotlib.lines import Line2D
    from matplotlib.path import Path
    from matplotlib.text import Text as Words

    look: dict[str, Any]
    match shape:
        case Line(points, width, colour, opacity, dashed):
            codes = [Path.MOVETO, *([Path.LINETO] if len(points) == 2 else [Path.CURVE3, Path.CURVE3])]
            look = {"edgecolor": colour, "linewidth": width * _POINTS, "alpha": opacity, "facecolor": "none"}
            look |= {"capstyle": "butt", "linestyle": (0, (4, 3)) if dashed else "solid"}
            return patches.PathPatch(Path(points, codes), **look)
        case Box(corner, size, fill, edge, radius):
            corners = f"round,pad=0,rounding_size={min(radius, *(side / 2 for side in size))}"
            look = {"facecolor": fill, "edgecolor": edge, "linewidth": _POINTS}
            return patches.FancyBboxPatch(corner, *size, boxstyle=corners, **look)
        case Dot(at, radius, fill):
            return patches.Circle(at, radius, facecolor=fill, edgecolor="none")
        case Marks(points, kind, colour):
            look = {"linestyle": "", "color": colour, "marker": MARKS[kind][2]}
            look |= {"markersize": 6, "alpha": 0.95} if shape.few else {"markersize": 3, "alpha": 0.6}
            return Line2D(*zip(*points, strict=True), **look)
    font = next(name for name in _FONTS if name in fontManager.get_font_names())
    look = {"color": shape.colour, "fontfamily": font, "fontsize": shape.size * _POINTS * _FONTS[font]}
    look |= {"ha": {"middle": "center", "end": "right"}.get(shape.anchor, "left"), "va": "baseline"}
    weight = "bold" if shape.bold else "normal"
    return Words(*shape.at, shape.words, fontweight=weight, parse_math=False, **look)


ENDINGS = (".svg", ".png", ".pdf")


def check(option: str, path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise InputError if no picture can be written to `path`. `option` names the path in the message."""
    writing.check_output(option, path, ENDINGS, inputs)
    if path.suffix.lower() in FORMS:
        need("matplotlib", PICTURES, OTHERWISE)


def write(path: Path, canvas: Canvas) -> None:
    """Write a picture. Raises InputError if the path cannot be written, and DiskFullError if no space is left."""
    ending = path.suffix.lower()
    writing.save(path, image(canvas, ending) if ending in FORMS else svg(canvas).encode())
