"""Plots of errors as PNG files, drawn by matplotlib, which the extra `plots` installs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.errors import InputError
from clustersim.lab.plots.figures import Axis, Figure, Panel, Series, figures
from clustersim.writing import save

if TYPE_CHECKING:
    import polars as pl

COLUMNS = 3
SIZE = 4.0, 3.3
"""Inches of a panel, at 100 dots an inch."""
GLYPHS = {"dot": ".", "cross": "x", "plus": "+", "triangle": "^"}


def available() -> None:
    """Raise InputError when matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise InputError(
            "--png needs matplotlib, which is not installed; run pip install 'clustersim[plots]', or leave --png out: "
            "the page has the same plots"
        )


def write(folder: Path, frames: Sequence[pl.DataFrame]) -> list[Path]:
    """Write every figure of judged kernels, a frame a predictor, as one PNG file. Raises InputError."""
    available()
    return [_write(folder / f"{figure.name}.png", figure) for frame in frames for figure in figures(frame)]


def _write(path: Path, figure: Figure) -> Path:
    buffer = BytesIO()
    draw(figure).savefig(buffer, format="png", dpi=100, metadata={"Software": None})
    save(path, buffer.getvalue())
    return path


def draw(figure: Figure) -> Any:
    """Return a figure as one of matplotlib's."""
    from matplotlib.figure import Figure as Drawing

    rows = -(-len(figure.panels) // COLUMNS)
    drawing = Drawing(figsize=(SIZE[0] * COLUMNS, SIZE[1] * rows + 1.2), layout="constrained")
    axes = drawing.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axis, panel in zip(axes, figure.panels, strict=False):
        _panel(axis, panel)
    for axis in axes[len(figure.panels) :]:
        axis.set_axis_off()
    drawing.suptitle(figure.title)
    handles = [_series(axes[-1], one._replace(x=[], y=[])) for one in figure.legend]
    drawing.legend(handles, [one.label for one in figure.legend], loc="outside lower center", ncols=7, frameon=False)
    return drawing


def _panel(axes: Any, panel: Panel) -> None:
    for one in panel.series:
        _series(axes, one)
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.grid(color="#000000", alpha=0.12)
    for letter, axis in (("x", panel.x), ("y", panel.y)):
        _axis(axes, letter, axis)


def _axis(axes: Any, letter: str, axis: Axis) -> None:
    getattr(axes, f"set_{letter}scale")("log" if axis.log else "linear")
    getattr(axes, f"set_{letter}lim")(*((axis.high, axis.low) if axis.down else (axis.low, axis.high)))
    values, texts = zip(*axis.ticks, strict=True)
    getattr(axes, f"set_{letter}ticks")(values, texts, fontsize=8)
    getattr(axes, f"{letter}axis").minorticks_off()
    getattr(axes, f"set_{letter}label")(axis.label, fontsize=9)


def _series(axes: Any, one: Series) -> Any:
    if one.style == "span":
        return axes.hlines(one.y, one.x, one.end, color=one.colour, linewidth=5, alpha=0.3)
    if one.style == "line":
        return axes.plot(one.x, one.y, color=one.colour, linewidth=1, linestyle="--" if one.dashed else "-")[0]
    few = len(one.x) <= 30
    look = {"marker": GLYPHS[one.glyph], "markersize": 6 if few else 3, "alpha": 0.95 if few else 0.6}
    return axes.plot(one.x, one.y, linestyle="", color=one.colour, **look)[0]
