"""Panels with series, as plain data that a page or matplotlib draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import polars as pl

from clustersim.lab.evaluate import errors
from clustersim.units import seconds


class Axis(NamedTuple):
    """A labelled axis from `low` to `high` with (value, text) at its ticks. With `down` the smallest value is on top."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False
    down: bool = False


class Series(NamedTuple):
    """Points, a line, or spans from (x, y) to (end, y). `label` is its name in the legend, if not empty."""

    style: str
    label: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    end: Sequence[float] = ()
    glyph: str = "dot"
    dashed: bool = False


class Panel(NamedTuple):
    """A pair of axes with series."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]


class Figure(NamedTuple):
    """Panels of one kind with a common legend."""

    name: str
    title: str
    text: str
    panels: tuple[Panel, ...]
    legend: tuple[Series, ...]


def times(low: float, high: float) -> Axis:
    """Return an axis of whole decades of time around `low` and `high` seconds."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = 1 if last - first < 6 else 2
    ticks = tuple((10.0**i, seconds(10.0**i)) for i in range(first, last + 1, step))
    return Axis("", 10.0**first, 10.0**last, ticks, log=True)


def shares(values: Iterable[float]) -> Axis:
    """Return an axis of shares from zero to beyond the largest of `values`, with three to six ticks."""
    most = max([*values, 0.01]) * 1.05
    power = 10.0 ** math.floor(math.log10(most))
    step = next(power * k for k in (0.2, 0.5, 1, 2) if most / (power * k) <= 6)
    count = math.ceil(most / step)
    ticks = tuple((i * step, f"{100 * i * step:g} %") for i in range(count + 1))
    return Axis("", 0.0, count * step, ticks)


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Okabe and Ito (2008), distinguishable by colour-blind readers, without the yellow that is faint on paper."""
GLYPHS = ("dot", "cross", "plus", "triangle")
NEWS = {"GPU": COLOURS[1], "kernels": COLOURS[0], "nothing": "#777777"}
"""{what training had not seen: colour}"""
POINTS = 1500
"""Largest number of points per panel, drawn evenly from the kernels by their length."""
NEAR = 0.2
SIDES = (("#222222", 1.0), ("#999999", 1 - NEAR), ("#999999", 1 + NEAR))
"""Colour and ratio of the lines of equal error."""
EDGES = (1.5, 2.5, 5.0, 10.0)
"""Possible upper ends of an axis of ratios; its lower end is the reciprocal."""


def figures(frame: pl.DataFrame) -> Iterator[Figure]:
    """Yield the figures of one predictor's judged kernels: forecast over measured, error by size, error by GPU."""
    name, looks = str(frame["predictor"][0]), _looks(frame)
    kinds: tuple[tuple[str, str, str, Callable[[str, pl.DataFrame], Panel]], ...] = (
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
    for key, title, text, draw in kinds:
        panels = tuple(draw(str(kind), part) for (kind,), part in frame.group_by("kind", maintain_order=True))
        legend: dict[str, Series] = {}
        for one in (one for panel in panels for one in panel.series if one.label):
            legend.setdefault(one.label, one)
        yield Figure(f"{name}-{key}", f"{name}: {title}", text, panels, tuple(legend.values()))


def _looks(frame: pl.DataFrame) -> dict[str, tuple[str, str]]:
    """Return {GPU: (colour, glyph)}, distinct for up to 28."""
    names = sorted(frame["gpu"].unique().to_list())
    return {gpu: (COLOURS[i % len(COLOURS)], GLYPHS[i % len(GLYPHS)]) for i, gpu in enumerate(names)}


def _scatter(looks: dict[str, tuple[str, str]], kind: str, part: Any) -> Panel:
    """Return forecast over measured seconds of a class's kernels, by GPU."""
    some = _drawn(part).with_columns(y=_drawn(part)["seconds"] * _drawn(part)["ratio"])
    axis = times(min(*some["seconds"], *some["y"]), max(*some["seconds"], *some["y"]))
    ends = (axis.low, axis.high)
    lines = [Series("line", "", colour, ends, [f * end for end in ends], dashed=f != 1) for colour, f in SIDES]
    series = (*lines, *_points(some, looks))
    return Panel(_title(kind, part), axis._replace(label="measured"), axis._replace(label="forecast"), series)


def _ratio(looks: dict[str, tuple[str, str]], kind: str, part: Any) -> Panel:
    """Return forecast / measured over measured seconds of a class's kernels, by GPU."""
    edge = next((edge for edge in EDGES if (part["ratio"].is_between(1 / edge, edge)).mean() > 0.99), EDGES[-1])
    some = _drawn(part).with_columns(y=_drawn(part)["ratio"].clip(1 / edge, edge))
    x = times(some["seconds"].min(), some["seconds"].max())._replace(label="measured")
    shown = [value for value in (0.1, 0.2, 0.5, 0.8, 1.0, 1.2, 2.0, 5.0, 10.0) if 1 / edge <= value <= edge]
    y = Axis("forecast ÷ measured", 1 / edge, edge, tuple((value, f"{value:g}") for value in shown), log=True)
    lines = [Series("line", "", colour, (x.low, x.high), (f, f), dashed=f != 1) for colour, f in SIDES]
    return Panel(_title(kind, part), x, y, (*lines, *_points(some, looks)))


def _drawn(part: Any) -> Any:
    """Return at most POINTS kernels, evenly by measured time."""
    return part.sort("seconds").gather_every(max(1, -(-len(part) // POINTS)))


def _title(kind: str, part: Any) -> str:
    """Return the title of a class's panel."""
    return f"{kind} ({len(part):,} kernels)"


def _points(some: Any, looks: dict[str, tuple[str, str]]) -> Iterator[Series]:
    """Yield the marks of each GPU: `y` over the measured time."""
    for gpu, (colour, glyph) in looks.items():
        own = some.filter(some["gpu"] == gpu)
        if len(own):
            yield Series("points", gpu, colour, own["seconds"].to_list(), own["y"].to_list(), glyph=glyph)


def _deciles(kind: str, part: pl.DataFrame) -> Panel:
    """Return the errors of a class's kernels by decile of measured time."""
    rows = list(errors(part, ("class", "decile")))
    places = [row["decile"] for row in rows]
    lines = (
        ("90th percentile", "p90", COLOURS[1], "triangle"),
        ("mean", "mean", COLOURS[0], "dot"),
        ("median", "median", COLOURS[2], "plus"),
    )
    series = [
        one
        for label, key, colour, glyph in lines
        for one in (
            Series("line", "", colour, places, [row[key] for row in rows]),
            Series("points", label, colour, places, [row[key] for row in rows], glyph=glyph),
        )
    ]
    shown = [row for row in rows if row["decile"] in (1, 4, 7, 10)] or rows
    ticks = tuple((float(row["decile"]), seconds(row["seconds"])) for row in shown)
    x = Axis("decile of measured time (its median)", 0.5, max(10, *places) + 0.5, ticks)
    y = shares(row["p90"] for row in rows)._replace(label="absolute error")
    return Panel(_title(kind, part), x, y, tuple(series))


def _boards(kind: str, part: pl.DataFrame) -> Panel:
    """Return the errors of a class's kernels by GPU, those of one kind of news together."""
    rows = sorted(errors(part, ("class", "gpu")), key=lambda row: (list(NEWS).index(row["new"]), row["mean"]))
    series = []
    for new, colour in NEWS.items():
        some = [(place, row) for place, row in enumerate(rows) if row["new"] == new]
        if some:
            y, means = [float(place) for place, _ in some], [row["mean"] for _, row in some]
            low, high = ([row[key] for _, row in some] for key in ("median", "p90"))
            series.append(Series("span", "", colour, low, y, high))
            series.append(Series("points", f"unseen: {new}", colour, means, y, glyph=GLYPHS[list(NEWS).index(new)]))
    ticks = tuple((float(place), row["gpu"]) for place, row in enumerate(rows))
    x = shares(row["p90"] for row in rows)._replace(label="absolute error")
    return Panel(kind, x, Axis("", -0.6, len(rows) - 0.4, ticks, down=True), tuple(series))
