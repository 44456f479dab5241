"""The points of a sweep as one SVG: a bar a split, as long as its step, in the parts that the step goes to.

Below those with a result stand those that do not fit. What a reader wants of a sweep is seen at once: which is fastest, why, and
what memory rules out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from clustersim.sweeps.evaluate import Row
from clustersim.sweeps.table import ranked
from clustersim.units import duration

MOST = 24
"""Bars drawn at most, of those with a result and of those without together."""
TIME = 62.0
"""Pixels that the step time takes at the begin of a bar."""
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 900.0, 170.0, 150.0, 76.0, 30.0, 20.0
PARTS = {  # kind in a row: name and colour, of Okabe and Ito (2008), which colour-blind readers can tell apart
    "compute": ("compute", "#56b4e9"),
    "tp": ("tensor parallel", "#cc79a7"),
    "pp": ("pipeline", "#0072b2"),
    "dp": ("data parallel", "#009e73"),
    "ep": ("expert parallel", "#d55e00"),
    "cp": ("context parallel", "#f0e442"),
    "optimizer": ("optimizer", "#777777"),
    "bubble": ("bubble: waiting for other ranks", "#e3e3e3"),
}
LETTERS = {"pp": "#fff", "ep": "#fff"}
"""Colours of letters on dark parts: a part that has room says what it is, so that black and white is enough."""


def split(row: Row) -> str:
    """Return the degrees of a row as it is called."""
    return " · ".join(f"{axis} {row[axis]}" for axis in ("tp", "pp", "dp") if axis in row)


class Words(NamedTuple):
    """What stands above the drawing."""

    title: str
    subtitle: str = ""
    label: Callable[[Row], str] = split
    """The name of a row, where tp, pp and dp do not tell rows apart."""


def svg(rows: Sequence[Row], words: Words) -> str:
    """Return the drawing of the rows of a sweep; the same rows give the same text."""
    best = ranked(rows)[:MOST]
    unfit = [row for row in rows if row["status"] == "does not fit"][: MOST - len(best)]
    longest = max((row["step_time_s"] for row in best), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / longest
    lines = [line for i, row in enumerate(best) for line in _bar(row, TOP + i * ROW, scale, words.label(row), i == 0)]
    for i, row in enumerate(unfit, len(best)):
        middle = TOP + i * ROW + 15
        lines += [
            _text(LEFT - 10, middle, words.label(row), anchor="end", fill="#888"),
            _text(LEFT, middle, "does not fit into memory", fill="#b00020"),
        ]
    kinds = [kind for kind in PARTS if any(row.get(f"{kind}_s", 0.0) > 0.002 * longest for row in best)]
    height = TOP + (len(best) + len(unfit)) * ROW + 38
    head = [_text(16, 26, words.title, size=17, weight=600), _text(16, 48, words.subtitle, fill="#555")]
    return "\n".join([_open(height, words.title), *head, *_columns(), *lines, *_legend(kinds, height - 14), "</svg>\n"])


def _open(height: float, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" height="{height:g}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="13" fill="#222">\n'
        '<rect width="100%" height="100%" fill="#fff"/>'
    )


def _columns() -> list[str]:
    return [
        _text(LEFT, TOP - 8, "step time", size=12, fill="#555"),
        _text(WIDTH - 16, TOP - 8, "tokens/s", size=12, anchor="end", fill="#555"),
    ]


def _bar(row: Row, top: float, scale: float, label: str, first: bool) -> list[str]:
    """Return the bar of a row with its name before it, its step time in it and its tokens/s behind."""
    weight, middle, left, lettered = 600 if first else 400, top + 15, LEFT, list[str]()
    lines = [_text(LEFT - 10, middle, label, anchor="end", weight=weight)]
    for kind, (name, colour) in PARTS.items():
        width = row.get(f"{kind}_s", 0.0) * scale
        if width > 0.05:
            what = f"<title>{name}: {duration(row[f'{kind}_s'])}</title>"
            place = f'x="{left:.1f}" y="{top:g}" width="{width:.1f}" height="{BAR:g}"'
            lines.append(f'<rect {place} fill="{colour}" stroke="#fff">{what}</rect>')
        if left > LEFT + TIME and width > 7 * len(kind) + 6:
            fill = LETTERS.get(kind, "#222")
            lettered.append(_text(left + width / 2, middle - 1, kind, size=11, anchor="middle", fill=fill))
        left += width
    lines += lettered
    lines.append(_text(LEFT + 8, middle, duration(row["step_time_s"]), weight=weight))
    lines.append(_text(WIDTH - 16, middle, f"{row['tokens_per_s']:,.0f}", anchor="end", weight=weight))
    return lines


def _legend(kinds: Sequence[str], y: float) -> list[str]:
    x, lines = LEFT, []
    for kind in kinds:
        name, colour = PARTS[kind]
        name = f"{kind}: {name}" if len(kind) == 2 else name
        lines.append(f'<rect x="{x:g}" y="{y - 10:g}" width="11" height="11" fill="{colour}"/>')
        lines.append(_text(x + 16, y, name, size=12))
        x += 34 + 6.3 * len(name)
    return lines


def _text(
    x: float, y: float, what: str, *, size: float = 13, anchor: str = "start", weight: int = 400, fill: str = "#222"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}">'
        f"{escape(what)}</text>"
    )
