"""Plots of the errors of predictors on measured kernels: one self-contained page with tables, or PNG files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import polars as pl

from clustersim.extras import need
from clustersim.figures import files
from clustersim.figures.canvas import GROUP_MARKS, Canvas, svg
from clustersim.figures.plot import AxisRange, Plot
from clustersim.lab.evaluate import errors
from clustersim.lab.model_card import percent
from clustersim.units import seconds
from clustersim.writing import save

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Okabe and Ito (2008), distinguishable by colour-blind readers, without the yellow that is faint on paper."""
NEWS = {"GPU": COLOURS[1], "kernels": COLOURS[0], "nothing": "#777777"}
"""{what training had not seen: colour}"""
POINTS = 1500
"""Largest number of points per panel, drawn evenly from the kernels by their length."""
NEAR = 0.2
SIDES = (("#222222", 1.0), ("#999999", 1 - NEAR), ("#999999", 1 + NEAR))
"""Colour and ratio of the lines of equal error."""
EDGES = (1.5, 2.5, 5.0, 10.0)
"""Possible upper ends of an axis of ratios; its lower end is the reciprocal."""
RATIOS = (0.1, 0.2, 0.5, 0.8, 1.0, 1.2, 2.0, 5.0, 10.0)
"""Ticks of an axis of ratios, as far as they are on it."""
COLUMNS, PANEL, LEGEND = 2, (560.0, 380.0), 20.0
"""Panels per row, their width and height, and the height of a line of the legend, in pixels."""

MarkLook = tuple[str, str]
"""(colour, mark)"""
NewPlot = Callable[[str, AxisRange, AxisRange], Plot]
"""Function (title, x, y) that begins a panel at its place in the figure."""


class Figure(NamedTuple):
    """Panels of one kind, one for each class of kernels, with a common legend. `name` is of a file, `text` explains it."""

    name: str
    title: str
    text: str
    canvas: Canvas


def figures(frame: pl.DataFrame) -> Iterator[Figure]:
    """Yield the figures of one predictor's judged kernels: forecast over measured, error by size, error by GPU."""
    name, boards = str(frame["predictor"][0]), sorted(frame["gpu"].unique().to_list())
    marks = ((COLOURS[i % len(COLOURS)], GROUP_MARKS[i % len(GROUP_MARKS)]) for i in range(len(boards)))
    looks = dict(zip(boards, marks, strict=True))  # (colour, mark) of each GPU, distinct for up to 28
    kinds: tuple[tuple[str, str, str, Callable[[NewPlot, str, pl.DataFrame], dict[str, MarkLook]]], ...] = (
        (
            "scatter",
            "forecast over measured time",
            f"One mark a kernel, up to {POINTS:,} a class, evenly drawn by length. On the line the forecast is right; "
            f"dashed lines are {100 * NEAR:.0f} % off.",
            partial(_scatter, looks),
        ),
        (
            "ratio",
            "forecast ÷ measured time",
            f"The same kernels. Above 1 the forecast is too slow; dashed lines are {100 * NEAR:.0f} % off. What lies beyond "
            "an edge is drawn on it.",
            partial(_ratio, looks),
        ),
        (
            "deciles",
            "error by size",
            "Kernels of a class in ten parts of equal number, from the shortest to the longest measured time, which stands "
            "below some of them.",
            _deciles,
        ),
        (
            "gpus",
            "error by GPU",
            "Mark: mean absolute error; bar: from the median to the 90th percentile; colour: what training had not seen.",
            _boards,
        ),
    )
    parts = [(str(kind), part) for (kind,), part in frame.group_by("kind", maintain_order=True)]
    (width, height), rows = PANEL, -(-len(parts) // COLUMNS)
    for key, title, text, draw in kinds:
        canvas, legend = Canvas(COLUMNS * width, rows * height, f"{name}: {title}"), dict[str, MarkLook]()
        for place, (kind, part) in enumerate(parts):
            corner = place % COLUMNS * width, place // COLUMNS * height
            legend |= draw(partial(Plot, canvas=canvas, corner=corner, size=PANEL), kind, part)
        _legend(canvas, legend)
        yield Figure(f"{name}-{key}", canvas.title, text, canvas)


def _legend(canvas: Canvas, looks: Mapping[str, MarkLook]) -> None:
    """Draw the marks of a figure below its panels in as many lines as needed, and end the canvas there."""
    x, y = 24.0, canvas.height + LEGEND / 2
    for label, (colour, mark) in looks.items():
        if x + 6.4 * len(label) + 24 > canvas.width:
            x, y = 24.0, y + LEGEND
        canvas.marks([(x, y)], mark, colour)
        canvas.text((x + 12, y), label, 12, anchor="start")
        x += 6.4 * len(label) + 36
    canvas.height = y + LEGEND


def _scatter(looks: Mapping[str, MarkLook], new: NewPlot, kind: str, part: Any) -> dict[str, MarkLook]:
    """Draw forecast over measured seconds of a class's kernels, by GPU. Return the looks of the GPUs."""
    some = _drawn(part).with_columns(y=pl.col("seconds") * pl.col("ratio"))
    axis = _decades([*some["seconds"], *some["y"]])
    plot = new(_title(kind, part), axis, axis)
    plot.frame("measured", "forecast", seconds, seconds)
    for colour, f in SIDES:
        first, last = axis.low / min(f, 1), axis.high / max(f, 1)
        plot.line((first, first * f), (last, last * f), colour, 1.2, dashed=f != 1)
    return _points(plot, some, looks)


def _ratio(looks: Mapping[str, MarkLook], new: NewPlot, kind: str, part: Any) -> dict[str, MarkLook]:
    """Draw forecast / measured over measured seconds of a class's kernels (`part`), by GPU. Return the looks of the GPUs."""
    edge = next((edge for edge in EDGES if (part["ratio"].is_between(1 / edge, edge)).mean() > 0.99), EDGES[-1])
    some = _drawn(part).with_columns(y=pl.col("ratio").clip(1 / edge, edge))
    x, ticks = _decades(some["seconds"]), tuple(value for value in RATIOS if 1 / edge <= value <= edge)
    plot = new(_title(kind, part), x, AxisRange(1 / edge, edge, True, ticks))
    plot.frame("measured", "ratio", seconds, lambda value: f"{value:g}")
    for colour, f in SIDES:
        plot.line((x.low, f), (x.high, f), colour, 1.2, dashed=f != 1)
    return _points(plot, some, looks)


def _decades(values: Iterable[float]) -> AxisRange:
    """Return an axis of whole decades around `values`."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return AxisRange(10.0**low, 10.0**high, True)


def _shares(values: Iterable[float]) -> AxisRange:
    """Return an axis of shares from zero to beyond the largest of `values`."""
    return AxisRange(0.0, max([*values, 0.01]) * 1.05)


def _percents(value: float) -> str:
    """Return a tick of an axis of shares as text: `5 %`."""
    return f"{100 * value:g} %"


def _drawn(part: Any) -> Any:
    """Return at most POINTS of the kernels in `part`: every nth by measured time."""
    return part.sort("seconds").gather_every(max(1, -(-len(part) // POINTS)))


def _title(kind: str, part: Any) -> str:
    """Return the title of a class's panel."""
    return f"{kind} ({len(part):,} kernels)"


def _points(plot: Plot, kernels: Any, looks: Mapping[str, MarkLook]) -> dict[str, MarkLook]:
    """Draw a mark at (`seconds`, `y`) of each row of `kernels`, by GPU. Return the looks of GPUs with rows."""
    own = {gpu: kernels.filter(pl.col("gpu") == gpu).select("seconds", "y").rows() for gpu in looks}
    for gpu, rows in own.items():
        plot.marks(rows, looks[gpu][1], looks[gpu][0])
    return {gpu: looks[gpu] for gpu, rows in own.items() if rows}


def _deciles(new: NewPlot, kind: str, part: pl.DataFrame) -> dict[str, MarkLook]:
    """Draw the errors of a class's kernels by decile of measured time. Return {`mean`, `median`, …: colour and mark}."""
    rows = list(errors(part, ("class", "decile")))
    medians = {row["decile"]: row["seconds"] for row in rows}
    shown = tuple(place for place in medians if place in (1, 4, 7, 10)) or tuple(medians)
    x = AxisRange(0.5, max(10, *medians) + 0.5, ticks_at=shown)
    plot = new(_title(kind, part), x, _shares(row["p90"] for row in rows))
    plot.frame("decile of measured time (its median)", "error", lambda place: seconds(medians[round(place)]), _percents)
    looks = {"90th percentile": "p90", "mean": "mean", "median": "median"}
    found = dict(zip(looks, ((COLOURS[1], "triangle"), (COLOURS[0], "dot"), (COLOURS[2], "plus")), strict=True))
    for (colour, mark), key in zip(found.values(), looks.values(), strict=True):
        points = [(row["decile"], row[key]) for row in rows]
        for a, b in pairwise(points):
            plot.line(a, b, colour, 1.2)
        plot.marks(points, mark, colour)
    return found


def _boards(new: NewPlot, kind: str, part: pl.DataFrame) -> dict[str, MarkLook]:
    """Draw the mean error of each GPU, with a bar from median to 90th percentile. Return {`unseen: ` news: colour and mark}."""
    news = list(NEWS)
    rows = sorted(errors(part, ("class", "gpu")), key=lambda row: (news.index(row["new"]), row["mean"]), reverse=True)
    y = AxisRange(-0.6, len(rows) - 0.4, ticks_at=tuple(range(len(rows))))
    plot = new(kind, _shares(row["p90"] for row in rows), y)
    plot.frame("absolute error", "", _percents, lambda place: str(rows[round(place)]["gpu"]))
    found = {f"unseen: {new}": (colour, GROUP_MARKS[i]) for i, (new, colour) in enumerate(NEWS.items())}
    for place, row in enumerate(rows):
        colour, mark = found[f"unseen: {row['new']}"]
        plot.canvas.line(plot.at((row["median"], place)), plot.at((row["p90"], place)), 6.0, colour, 0.3)
        plot.marks([(row["mean"], place)], mark, colour)
    return {f"unseen: {row['new']}": found[f"unseen: {row['new']}"] for row in reversed(rows)}


PAGE = "errors.html"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1200px;
  margin: 24px auto; padding: 0 16px }
h1 { font-size: 24px } h2 { font-size: 19px; margin: 40px 0 4px } p { margin: 4px 0 10px; max-width: 76ch }
svg { width: 100%; height: auto; display: block }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } th { border-bottom: 1px solid #888 }
td, th { padding: 2px 12px 2px 0; text-align: right } td:first-child, th:first-child { text-align: left }
"""
HEADER = ("class", "mean", "median", "90th percentile", "bias", "in the 80 % interval", "kernels", "unseen")


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
        yield f"{svg(figure.canvas)}</section>"


def _table(frame: pl.DataFrame) -> str:
    """Return the errors of judged kernels by class, as HTML."""
    head = "".join(f"<th>{name}</th>" for name in HEADER)
    rows = []
    for row in errors(frame, ("class",)):
        mean, median, p90, coverage = (percent(row[key]) for key in ("mean", "median", "p90", "coverage"))
        cells = (row["kind"], mean, median, p90, f"{row['bias']:.2f}", coverage, f"{row['samples']:,}", row["new"])
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def png_available() -> None:
    """Raise InputError if matplotlib is not installed."""
    need("matplotlib", files.PICTURES, "leave --png out: the page has the same plots")


def write_png(folder: Path, frames: Sequence[pl.DataFrame]) -> list[Path]:
    """Write every figure of judged kernels, a frame per predictor, as one PNG file. Raises InputError."""
    png_available()
    paths = []
    for figure in (figure for frame in frames for figure in figures(frame)):
        paths.append(folder / f"{figure.name}.png")
        files.write(paths[-1], figure.canvas)
    return paths
