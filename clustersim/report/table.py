"""Text for a terminal: tables, and lines that fit its width."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from shutil import get_terminal_size
from textwrap import wrap

NARROWEST = 40
"""Smallest width for which sentences are wrapped, in columns."""
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""Matches the emphasis of text, which takes no room in a terminal."""


def terminal_width() -> float:
    """Return the columns of the terminal that shows the output; infinity without a terminal."""
    return get_terminal_size().columns if sys.stdout.isatty() else math.inf


def fitted(lines: Iterable[str]) -> list[str]:
    """Return lines of output in parts that fit the terminal, from the second part on indented by two more.

    Lines of a command stay whole, because readers copy them, and so do rows, whose columns stand two or more blanks apart.
    """
    width, parts = max(terminal_width(), NARROWEST), list[str]()
    for line in "\n".join(lines).split("\n"):
        whole = any(mark in line.strip() for mark in (" --", "clustersim ", " \\", "  "))
        if len(_STYLE.sub("", line)) > width and not whole:
            under = " " * (len(line) - len(line.lstrip()) + 2)
            parts += wrap(line, int(width), subsequent_indent=under, break_on_hyphens=False, break_long_words=False)
        else:
            parts.append(line)
    return parts


def table(cells: Sequence[Sequence[str]], sides: str = ">") -> list[str]:
    """Return rows of cells as lines, each column as wide as its widest cell.

    sides: alignment of each column, `<` or `>`; the last one is that of all further columns.
    In a narrow terminal a row takes several lines: columns without room are below, indented by the first column's width.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    ends = sides.ljust(len(widths), sides[-1])
    room, under = terminal_width(), " " * (widths[0] + 2)
    parts, used = [0], -2
    for place, width in enumerate(widths):
        used += 2 + width
        if used > room and place > max(parts[-1], 1):
            parts.append(place)
            used = len(under) + width
    cuts = list(pairwise([*parts, len(widths)]))
    filled = [[f"{cell:{end}{width}}" for cell, end, width in zip(row, ends, widths, strict=True)] for row in cells]
    lines = [
        (f"{under * (first > 0)}{'  '.join(row[first:end])}".rstrip(), first) for row in filled for first, end in cuts
    ]
    return [line for line, first in lines if line or not first]  # columns below whose cells are empty take no line
