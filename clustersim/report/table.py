"""Tables of text."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from shutil import get_terminal_size


def table(cells: Sequence[Sequence[str]], sides: str = ">") -> list[str]:
    """Return rows of cells as lines, each column as wide as its widest cell.

    sides: alignment of each column, `<` or `>`; the last one is that of all further columns.
    In a narrow terminal a row takes several lines: columns without room are below, indented by the first column's width.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    ends = sides.ljust(len(widths), sides[-1])
    room = get_terminal_size().columns if sys.stdout.isatty() else math.inf
    under = " " * (widths[0] + 2)
    parts, used = [0], -2
    for place, width in enumerate(widths):
        used += 2 + width
        if used > room and place > max(parts[-1], 1):
            parts.append(place)
            used = len(under) + width
    cuts = list(pairwise([*parts, len(widths)]))
    filled = [[f"{cell:{end}{width}}" for cell, end, width in zip(row, ends, widths, strict=True)] for row in cells]
    return [f"{under * (first > 0)}{'  '.join(row[first:end])}".rstrip() for row in filled for first, end in cuts]
