"""Sets of nodes as text: `0-3,8-11`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clustersim.errors import InputError, shown

_PART = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?")
_MOST = 10_000_000


def parse(text: str) -> tuple[int, ...]:
    """Return the nodes in a text such as `0-3,8-11`, ascending. Raises InputError if there are none, duplicates or too many."""
    nodes: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise InputError(f"{shown(part)} is not a range of nodes; write 0-7, or 0-3,8-11, the lower number first")
        if last - first + len(nodes) > _MOST:
            raise InputError(f"{shown(text)} names more than {_MOST} nodes; write fewer")
        nodes += range(first, last + 1)
    twice = [a for a, b in zip(sorted(nodes), sorted(nodes)[1:], strict=False) if a == b]
    if twice:
        raise InputError(f"{shown(text)} names node {twice[0]} twice; write each once")
    return tuple(sorted(nodes))


def written(nodes: Sequence[int], most: int = 1_000_000) -> str:
    """Return ascending nodes as text for `parse`, with at most `most` ranges; an ellipsis stands for the rest."""
    runs: list[list[int]] = []
    for node in nodes:
        if runs and node == runs[-1][1] + 1:
            runs[-1][1] = node
        else:
            runs.append([node, node])
    shown_runs = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:most]]
    return ",".join(shown_runs) + (",…" if len(runs) > most else "")
