"""A plot on a canvas: two axes, linear or logarithmic, with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from clustersim.figures.canvas import GRID, INK, Canvas, Coordinates

WIDTH, HEIGHT = 1000.0, 520.0


class AxisRange(NamedTuple):
    """Range of an axis."""

    low: float
    high: float
    logarithmic: bool = False
    ticks_at: tuple[float, ...] = ()
    """Values with a tick; empty for round numbers."""

    def share(self, value: float) -> float:
        """Return the position of a value on the axis, 0 (low) to 1 (high)."""
        low, high, at = (math.log(v) for v in (self.low, self.high, value)) if self.logarithmic else (*self[:2], value)
        return (at - low) / ((high - low) or 1.0)

    def ticks(self, most: int) -> list[float]:
        """Return `ticks_at`; without it at most `most` round numbers, such as multiples of 20; powers of ten if logarithmic."""
        if self.ticks_at:
            return list(self.ticks_at)
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            for digits in ((1,), (1, 2, 5), range(1, 10)):
                every = [digit * 10.0**power for power in powers for digit in digits]
                inside = [value for value in every if -1e-9 <= self.share(value) <= 1 + 1e-9]
                if len(inside) > 2:
                    break
            return inside[:: -(-len(inside) // most) or 1]
        power = 10.0 ** math.floor(math.log10((self.high - self.low) / most))
        step = next(power * k for k in (1, 2, 5, 10) if (self.high - self.low) / (power * k) <= most)
        return [i * step for i in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)]


class Plot:
    """A canvas with two axes. Positions are pairs of values on them."""

    def __init__(
        self,
        title: str,
        x: AxisRange,
        y: AxisRange,
        right: float = 30.0,
        *,
        canvas: Canvas | None = None,
        corner: Coordinates = (0.0, 0.0),
        size: Coordinates = (WIDTH, HEIGHT),
    ) -> None:
        """Begin a plot of some size at the upper left `corner` of a canvas, or on one of its own."""
        self.canvas, self.x, self.y = canvas or Canvas(*size, title), x, y
        self.left, self.right = corner[0] + 100.0, corner[0] + size[0] - right
        self.top, self.bottom = corner[1] + 66.0, corner[1] + size[1] - 58.0
        self.canvas.text((corner[0] + 24, corner[1] + 26), title, 16, anchor="start", bold=True)

    def at(self, value: Coordinates) -> Coordinates:
        """Return the position (x, y) in pixels of a pair of values (x, y)."""
        across, up = self.x.share(value[0]), self.y.share(value[1])
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)

    def frame(self, x: str, y: str, x_words: Callable[[float], str], y_words: Callable[[float], str]) -> None:
        """Draw the grid, ticks and names of both axes. `x_words` and `y_words` format the values."""
        for value in self.x.ticks(9):
            across = self.at((value, self.y.low))[0]
            self.canvas.line((across, self.top), (across, self.bottom), 1.0, GRID)
            self.canvas.text((across, self.bottom + 14), x_words(value), 12)
        for value in self.y.ticks(7):
            down = self.at((self.x.low, value))[1]
            self.canvas.line((self.left, down), (self.right, down), 1.0, GRID)
            self.canvas.text((self.left - 8, down), y_words(value), 12, anchor="end")
        self.canvas.line((self.left, self.bottom), (self.right, self.bottom), 1.2, INK)
        self.canvas.line((self.left, self.top), (self.left, self.bottom), 1.2, INK)
        self.canvas.text(((self.left + self.right) / 2, self.bottom + 38), x, 13)
        self.canvas.text((self.left - 8, self.top - 12), y, 13, anchor="end")

    def line(self, a: Coordinates, b: Coordinates, colour: str = INK, width: float = 1.6, dashed: bool = False) -> None:
        """Draw a line between two pairs of values."""
        self.canvas.line(self.at(a), self.at(b), width, colour, dashed=dashed)

    def marks(self, points: Sequence[Coordinates], kind: str, colour: str, tips: Sequence[str] = ()) -> None:
        """Draw a mark of a kind in canvas.MARKS at each of some pairs of values, with `tips` as Canvas.marks."""
        self.canvas.marks([self.at(point) for point in points], kind, colour, tips)

    def box(self, upper_left: Coordinates, lower_right: Coordinates, fill: str, tip: str) -> None:
        """Draw a rectangle between two pairs of values. `tip` is shown when a reader points at it."""
        (x0, y0), (x1, y1) = self.at(upper_left), self.at(lower_right)
        self.canvas.bar((x0, y0), (x1 - x0, y1 - y0), fill, tip=tip)
