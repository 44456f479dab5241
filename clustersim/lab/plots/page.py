"""Errors of predictors on measured kernels: one self-contained page with tables and plots, or PNG files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import polars as pl

from clustersim.errors import InputError
from clustersim.lab.evaluate import errors
from clustersim.lab.model_card import percent
from clustersim.lab.plots.figures import Axis, Figure, Panel, Series, figures
from clustersim.writing import save

WIDTH, HEIGHT = 380.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 24.0, 28.0, 46.0
NAMES = 104.0
"""Width for names at the left of a panel whose ticks are words."""
SHAPES = {
    "dot": "h0",
    "cross": "m-2.2-2.2l4.4 4.4m-4.4 0l4.4-4.4",
    "plus": "m-2.8 0h5.6m-2.8-2.8v5.6",
    "triangle": "m0-2.6l2.5 4.4h-5z",
}
STROKES = {"dot": 3.4, "cross": 1.1, "plus": 1.1, "triangle": 1.0}
"""Line widths of the glyphs. A dot is a line of zero length with round ends."""

AxisScale = Callable[[float], float]


def svg(panel: Panel) -> str:
    """Return a panel as SVG. Equal panels give equal text."""
    left = NAMES if panel.y.down else LEFT
    across, down = _scale(panel.x, left, WIDTH - RIGHT), _scale(panel.y, HEIGHT - BOTTOM, TOP)
    width, height = f"{WIDTH - RIGHT - left:g}", f"{HEIGHT - BOTTOM - TOP:g}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{escape(panel.title)}" font-size="11.5" fill="#222">'
    )
    place = f'x="{left:g}" y="{TOP:g}" width="{width}" height="{height}"'
    inside = f'<svg {place} viewBox="{left:g} {TOP:g} {width} {height}">'
    axes = [_text(left, 17, panel.title, weight=600), *_grid(panel, across, down, left)]
    series = [line for one in panel.series for line in marks(one, across, down)]
    return "\n".join([head, *axes, inside, *series, "</svg>", "</svg>"])


def _scale(axis: Axis, first: float, last: float) -> AxisScale:
    """Return the function from a value on `axis` to its position between `first` and `last`."""
    convert: AxisScale = math.log10 if axis.log else float
    low, high = convert(axis.low), convert(axis.high)
    if axis.down:
        low, high = high, low
    return lambda value: first + (convert(value) - low) / (high - low) * (last - first)


def _grid(panel: Panel, across: AxisScale, down: AxisScale, left: float) -> Iterator[str]:
    """Yield the SVG elements of a panel's ticks and labels. left: x of the vertical axis."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value, text in panel.x.ticks:
        x = across(value)
        yield f'<path class="tick" d="M{x:.1f} {TOP:g}V{bottom:g}"/>'
        yield _text(x, bottom + 15, text, "middle")
    for value, text in panel.y.ticks:
        y = down(value)
        yield f'<path class="tick" d="M{left:g} {y:.1f}H{right:g}"/>'
        yield _text(left - 7, y + 4, text, "end")
    yield _text((left + right) / 2, HEIGHT - 10, panel.x.label, "middle")
    if panel.y.label:
        middle = (TOP + bottom) / 2
        yield _text(12, middle, panel.y.label, "middle", turn=f"rotate(-90 12 {middle:g})")


def marks(one: Series, across: AxisScale, down: AxisScale) -> Iterator[str]:
    """Yield the SVG elements of a series."""
    places = [(across(x), down(y)) for x, y in zip(one.x, one.y, strict=True)]
    if one.style == "points":
        yield glyphs(one, places)
    elif one.style == "line":
        dash = ' stroke-dasharray="5 4"' if one.dashed else ""
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        yield f'<path d="M{path}" fill="none" stroke="{one.colour}" stroke-width="1.2"{dash}/>'
    else:
        ends = "".join(f"M{x:.1f} {y:.1f}H{across(end):.1f}" for (x, y), end in zip(places, one.end, strict=True))
        yield f'<path d="{ends}" stroke="{one.colour}" stroke-width="6" stroke-opacity="0.3"/>'


def glyphs(one: Series, places: Iterable[tuple[float, float]]) -> str:
    """Return one SVG path with a series' glyph at every point."""
    path = "".join(f"M{x:.1f} {y:.1f}{SHAPES[one.glyph]}" for x, y in places)
    wide = STROKES[one.glyph] * (1.6 if len(one.x) <= 30 else 1.0)
    return (
        f'<path d="{path}" fill="none" stroke="{one.colour}" stroke-width="{wide:.1f}" stroke-linecap="round" '
        f'stroke-opacity="{0.95 if len(one.x) <= 30 else 0.6}"/>'
    )


def legend(figure: Figure) -> str:
    """Return the legend of a figure as HTML."""
    return "".join(
        f'<span><svg viewBox="-7 -7 14 14" width="14" height="14">{glyphs(one._replace(x=[0.0]), [(0.0, 0.0)])}</svg>'
        f"{escape(one.label)}</span>"
        for one in figure.legend
    )


def _text(x: float, y: float, text: str, anchor: str = "start", weight: int = 400, turn: str = "") -> str:
    """Return a text as SVG. anchor: the part of it at x; turn: its transform."""
    more = f' transform="{turn}"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"{more}>{escape(text)}</text>'


PAGE = "errors.html"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1200px;
  margin: 24px auto; padding: 0 16px }
h1 { font-size: 24px } h2 { font-size: 19px; margin: 40px 0 4px } p { margin: 4px 0 10px; max-width: 76ch }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 18px 12px }
.panels svg { width: 100%; height: auto; display: block; overflow: hidden }
.tick { stroke: #000; stroke-opacity: 0.12 }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 0 0 12px }
.legend svg { margin: 0 6px -2px 0; overflow: visible }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } th { border-bottom: 1px solid #888 }
td, th { padding: 2px 12px 2px 0; text-align: right } td:first-child, th:first-child { text-align: left }
"""
COLUMNS = ("class", "mean", "median", "90th percentile", "bias", "in the 80 % interval", "kernels", "unseen")


def write(folder: Path, frames: Sequence[pl.DataFrame], split: str) -> Path:
    """Write the page of judged kernels, a frame per predictor, to `folder`. Raises InputError if that fails."""
    path = folder / PAGE
    save(path, page(frames, split))
    return path


def page(frames: Sequence[pl.DataFrame], split: str) -> str:
    """Return the page as HTML. Equal kernels give equal text."""
    body = "\n".join(line for frame in frames for line in _predictor(frame))
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>Errors of kernel predictors</title>\n<style>{STYLE}</style>\n"
        f"<h1>Errors of kernel predictors</h1>\n<p>Forecast against measured kernels; of FP32 kernels the split "
        f"{escape(split)}. Errors are absolute and relative to the measured time.</p>\n{body}\n</html>\n"
    )


def _predictor(frame: pl.DataFrame) -> Iterator[str]:
    """Yield the errors by class and the figures of a predictor, as HTML."""
    name = escape(str(frame["predictor"][0]))
    yield f"<h2>{name}: errors by class</h2>"
    yield _table(frame)
    for figure in figures(frame):
        yield f'<section id="{escape(figure.name)}"><h2>{escape(figure.title)}</h2><p>{escape(figure.text)}</p>'
        yield f'<div class="legend">{legend(figure)}</div>'
        yield '<div class="panels">'
        yield from (f"<div>{svg(panel)}</div>" for panel in figure.panels)
        yield "</div></section>"


def _table(frame: pl.DataFrame) -> str:
    """Return the errors of judged kernels by class, as HTML."""
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    rows = []
    for row in errors(frame, ("class",)):
        mean, median, p90, coverage = (percent(row[key]) for key in ("mean", "median", "p90", "coverage"))
        cells = (row["kind"], mean, median, p90, f"{row['bias']:.2f}", coverage, f"{row['samples']:,}", row["new"])
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


PNG_COLUMNS = 3
SIZE = 4.0, 3.3
"""Size of a panel in inches, at 100 dots per inch."""
MARKERS = {"dot": ".", "cross": "x", "plus": "+", "triangle": "^"}


def png_available() -> None:
    """Raise InputError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise InputError(
            "--png needs matplotlib, which is not installed; run pip install 'clustersim[plots]', or leave --png out: "
            "the page has the same plots"
        )


def write_png(folder: Path, frames: Sequence[pl.DataFrame]) -> list[Path]:
    """Write every figure of judged kernels, a frame per predictor, as one PNG file. Raises InputError."""
    png_available()
    paths = []
    for figure in (figure for frame in frames for figure in figures(frame)):
        buffer, path = BytesIO(), folder / f"{figure.name}.png"
        draw(figure).savefig(buffer, format="png", dpi=100, metadata={"Software": None})
        save(path, buffer.getvalue())
        paths.append(path)
    return paths


def draw(figure: Figure) -> Any:
    """Return a figure as a matplotlib figure."""
    from matplotlib.figure import Figure as Drawing

    rows = -(-len(figure.panels) // PNG_COLUMNS)
    drawing = Drawing(figsize=(SIZE[0] * PNG_COLUMNS, SIZE[1] * rows + 1.2), layout="constrained")
    axes = drawing.subplots(rows, PNG_COLUMNS, squeeze=False).ravel()
    for axis, panel in zip(axes, figure.panels, strict=False):
        _png_panel(axis, panel)
    for axis in axes[len(figure.panels) :]:
        axis.set_axis_off()
    drawing.suptitle(figure.title)
    handles = [_png_series(axes[-1], one._replace(x=[], y=[])) for one in figure.legend]
    drawing.legend(handles, [one.label for one in figure.legend], loc="outside lower center", ncols=7, frameon=False)
    return drawing


def _png_panel(axes: Any, panel: Panel) -> None:
    """Draw a panel on matplotlib's axes."""
    for one in panel.series:
        _png_series(axes, one)
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.grid(color="#000000", alpha=0.12)
    for letter, axis in (("x", panel.x), ("y", panel.y)):
        getattr(axes, f"set_{letter}scale")("log" if axis.log else "linear")
        getattr(axes, f"set_{letter}lim")(*((axis.high, axis.low) if axis.down else (axis.low, axis.high)))
        values, texts = zip(*axis.ticks, strict=True)
        getattr(axes, f"set_{letter}ticks")(values, texts, fontsize=8)
        getattr(axes, f"{letter}axis").minorticks_off()
        getattr(axes, f"set_{letter}label")(axis.label, fontsize=9)


def _png_series(axes: Any, one: Series) -> Any:
    """Draw a series on matplotlib's axes. Return its handle for a legend."""
    if one.style == "span":
        return axes.hlines(one.y, one.x, one.end, color=one.colour, linewidth=5, alpha=0.3)
    if one.style == "line":
        return axes.plot(one.x, one.y, color=one.colour, linewidth=1, linestyle="--" if one.dashed else "-")[0]
    few = len(one.x) <= 30
    look = {"marker": MARKERS[one.glyph], "markersize": 6 if few else 3, "alpha": 0.95 if few else 0.6}
    return axes.plot(one.x, one.y, linestyle="", color=one.colour, **look)[0]
