"""The pictures of the page as SVG: predicted against measured, errors by group, where a step goes. Colours are CSS variables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np

from clustersim.report.breakdown import PARTS
from clustersim.units import duration
from clustersim.validate.evaluate import Outcome

COLOURS = 10
"""Colours of GPU architectures, `--c0` to `--c9`; with nine marks 90 are told apart."""
MARKS = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",  # circle
    "m-3.5-3.5h7v7h-7z",  # square
    "m0-4.9 4.4 8.1h-8.8z",  # triangle
    "m0-5 4.6 5-4.6 5-4.6-5z",  # diamond
    "m0 4.9 4.4-8.1h-8.8z",  # triangle, upside down
    "m-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",  # plus
    "m-4.4-2.6 1.8-1.8 2.6 2.6 2.6-2.6 1.8 1.8-2.6 2.6 2.6 2.6-1.8 1.8-2.6-2.6-2.6 2.6-1.8-1.8 2.6-2.6z",  # cross
    "m-5-2h10v4h-10z",  # bar
    "m-4-4.5h8l-8 9h8z",  # hourglass
)
"""Shapes around a point: an architecture has its own mark too, for readers who cannot tell colours apart."""
MOST_TITLES = 5_000
"""Largest number of points with a tooltip; with more, only positions are drawn."""
MOST_TICKS = 400


@dataclass(frozen=True, slots=True)
class Square:
    """A plot of two times with equal logarithmic axes, in decades from `low` to `high`."""

    low: float
    high: float
    width: float = 760
    height: float = 560
    left: float = 64
    right: float = 730
    top: float = 12
    bottom: float = 512

    def across(self, seconds: float) -> float:
        """Return the x of measured seconds."""
        return self.left + (math.log10(seconds) - self.low) / (self.high - self.low) * (self.right - self.left)

    def down(self, seconds: float) -> float:
        """Return the y of predicted seconds."""
        return self.bottom - (math.log10(seconds) - self.low) / (self.high - self.low) * (self.bottom - self.top)


def architectures(rows: Sequence[Outcome]) -> list[str]:
    """Return the GPU architectures of outcomes, the one of most outcomes first."""
    return [name for name, _ in Counter(str(one["architecture"]) for one in rows).most_common()]


def scatter(rows: Sequence[Outcome]) -> str:
    """Return predicted over measured seconds, logarithmic, marked by GPU architecture, with lines at 0, 10 and 30 % off."""
    times = [one[key] for one in rows for key in ("measured_s", "predicted_s")]
    plot = Square(math.floor(2 * math.log10(min(times)) - 0.2) / 2, math.ceil(2 * math.log10(max(times)) + 0.2) / 2)
    frame = f"M{plot.left} {plot.top}H{plot.right}V{plot.bottom}H{plot.left}z"
    middle, centre = (plot.top + plot.bottom) / 2, (plot.left + plot.right) / 2
    lines = [
        f'<svg viewBox="0 0 {plot.width} {plot.height}" role="img" aria-label="Predicted against measured step time">',
        *_decades(plot),
        f'<clipPath id="plot"><path d="{frame}"/></clipPath><g clip-path="url(#plot)">',
        *_diagonals(plot),
        *_points(plot, rows),
        f'</g><text x="{centre}" y="{plot.height - 10}" text-anchor="middle">measured step</text>',
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">predicted step</text></svg>',
    ]
    return "\n".join(lines)


def _decades(plot: Square) -> Iterator[str]:
    """Yield the lines and labels of whole decades on both axes."""
    for power in range(math.ceil(plot.low), math.floor(plot.high) + 1):
        value = 10.0**power
        x, y = plot.across(value), plot.down(value)
        yield f'<path class="grid" d="M{x:.1f} {plot.top}V{plot.bottom}M{plot.left} {y:.1f}H{plot.right}"/>'
        label = f"{value:g} s" if value >= 1 else f"{1e3 * value:g} ms"
        yield f'<text x="{x:.1f}" y="{plot.bottom + 18}" text-anchor="middle">{label}</text>'
        yield f'<text x="{plot.left - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'


def _diagonals(plot: Square) -> Iterator[str]:
    """Yield the lines of equal times, and of 10 and 30 % off."""
    first, last = 10**plot.low, 10**plot.high
    for factor, kind in ((1.0, "even"), (1.1, "near"), (1 / 1.1, "near"), (1.3, "far"), (1 / 1.3, "far")):
        begin = f"M{plot.across(first):.1f} {plot.down(first * factor):.1f}"
        yield f'<path class="{kind}" d="{begin}L{plot.across(last):.1f} {plot.down(last * factor):.1f}"/>'


def _points(plot: Square, rows: Sequence[Outcome]) -> Iterator[str]:
    """Yield the mark of each outcome, with a tooltip if there are not too many."""
    number = {name: index for index, name in enumerate(architectures(rows))}
    for one in rows:
        title = f"<title>{escape(_title(one))}</title>" if len(rows) <= MOST_TITLES else ""
        x, y = plot.across(one["measured_s"]), plot.down(one["predicted_s"])
        yield mark(number[one["architecture"]], f"{x:.1f}", f"{y:.1f}", title)


def mark(number: int, x: str, y: str, title: str = "") -> str:
    """Return the mark of an architecture, by its number among them, in its shape and colour."""
    kind, shape = number % COLOURS, MARKS[number % len(MARKS)]
    return f'<path class="mark c{kind}" d="M{x} {y}{shape}">{title}</path>'


def legend(names: Sequence[str]) -> str:
    """Return the names of architectures beside their marks, as HTML."""
    return "".join(
        f'<span><svg viewBox="-6 -6 12 12" width="12" height="12">{mark(i, "0", "0")}</svg> {escape(name)}</span>'
        for i, name in enumerate(names)
    )


def spread(groups: Mapping[str, Sequence[float]]) -> str:
    """Return one row per group of signed errors: a tick per run, a box from 10th to 90th percentile, a line at the median."""
    ends = (abs(end) for values in groups.values() for end in np.quantile(values, (0.05, 0.95)).tolist())
    most = min(1.0, max(0.2, *ends))
    plot = Rows(most, 26.0 * len(groups))
    lines = [f'<svg viewBox="0 0 760 {plot.height + 30:g}" role="img" aria-label="Errors by group">', *_errors(plot)]
    for index, (name, values) in enumerate(groups.items()):
        lines += _group(plot, 26.0 * index + 13, name, values)
    return "\n".join([*lines, "</svg>"])


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of errors from -most to +most, `height` in all."""

    most: float
    height: float

    def across(self, error: float) -> float:
        """Return the x of an error; errors beyond the ends are drawn at the ends."""
        return 240 + (max(-self.most, min(self.most, error)) + self.most) / (2 * self.most) * 455


def _errors(plot: Rows) -> Iterator[str]:
    """Yield the axis of errors, and the band of ±10 %."""
    yield f'<path class="band" d="M{plot.across(-0.1):.1f} 0H{plot.across(0.1):.1f}V{plot.height}H{plot.across(-0.1):.1f}z"/>'
    step = 0.1 if plot.most <= 0.5 else 0.25
    count = int(plot.most / step + 1e-9)
    for value in (step * k for k in range(-count, count + 1)):
        x, kind = plot.across(value), "even" if abs(value) < 1e-9 else "grid"
        yield f'<path class="{kind}" d="M{x:.1f} 0V{plot.height}"/>'
        label = "0" if kind == "even" else f"{100 * value:+.0f} %"
        yield f'<text x="{x:.1f}" y="{plot.height + 18}" text-anchor="middle">{label}</text>'


def _group(plot: Rows, y: float, name: str, values: Sequence[float]) -> Iterator[str]:
    """Yield the row of a group at a height: its name, ticks, box, median and number of runs."""
    ticks = values if len(values) <= MOST_TICKS else np.quantile(values, np.linspace(0, 1, MOST_TICKS + 1)).tolist()
    low, mid, high = map(plot.across, np.quantile(values, (0.1, 0.5, 0.9)).tolist())
    short = name if len(name) <= 30 else f"{name[:29]}…"
    yield f'<text x="228" y="{y + 4}" text-anchor="end">{escape(short)}</text>'
    yield f'<path class="run" d="{"".join(f"M{plot.across(v):.1f} {y - 7}v14" for v in ticks)}"/>'
    yield f'<path class="box" d="M{low:.1f} {y - 5}H{high:.1f}V{y + 5}H{low:.1f}z"/>'
    yield f'<path class="mid" d="M{mid:.1f} {y - 9}v18"/>'
    yield f'<text x="712" y="{y + 4}">{len(values)}</text>'


def bar(one: Outcome) -> str:
    """Return the parts of an outcome's step as one bar; its full width is the longer of the two times."""
    scale = 260 / max(one["measured_s"], one["predicted_s"])
    lines = ['<svg viewBox="0 0 260 22" width="260" height="22" role="img" aria-label="Where the step goes">']
    x = 0.0
    for part in PARTS:
        wide = scale * (one["breakdown_s"].get(part) or 0.0)
        if wide > 0:
            title = f"<title>{part}: {duration(wide / scale)}</title>"
            lines.append(f'<rect class="p-{part}" x="{x:.1f}" y="2" width="{wide:.1f}" height="12">{title}</rect>')
        x += wide
    return "".join([*lines, f'<path class="measured" d="M0 18H{scale * one["measured_s"]:.1f}"/></svg>'])


def parts_legend(used: Callable[[str], bool]) -> str:
    """Return the names of the occurring parts with their colours, as HTML."""
    box = '<svg viewBox="0 0 10 10" width="10" height="10"><rect class="p-{0}" width="10" height="10"/></svg>'
    line = '<svg viewBox="0 0 14 10" width="14" height="10"><path class="measured" d="M0 5H14"/></svg>'
    names = "".join(f"<span>{box.format(part)} {part}</span>" for part in PARTS if used(part))
    return f"{names}<span>{line} measured</span>"


def _title(one: Outcome) -> str:
    """Return the tooltip of an outcome: its job, both times and the error."""
    split = f"tp {one['tp']} pp {one['pp']} dp {one['dp']}"
    return (
        f"{one['id']}: {one['model']}, {one['num_gpus']} × {one['gpu']}, {split}: "
        f"{duration(one['predicted_s'])}, measured {duration(one['measured_s'])} ({100 * one['error']:+.1f} %)"
    )
