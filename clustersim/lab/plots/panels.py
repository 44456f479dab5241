"""Panels: pairs of axes with series on them, as plain figures that a page or matplotlib draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clustersim.units import seconds


class Axis(NamedTuple):
    """A labelled axis from `low` to `high`, with (value, text) at its ticks; `down` has the smallest value on top."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False
    down: bool = False


class Series(NamedTuple):
    """Points, a line, or spans from (x, y) to (end, y); `label` names it in the legend, where it is not empty."""

    style: str
    label: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    end: Sequence[float] = ()
    glyph: str = "dot"
    dashed: bool = False


class Panel(NamedTuple):
    """One pair of axes."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]


class Figure(NamedTuple):
    """Panels of one kind, with a legend that they share."""

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
