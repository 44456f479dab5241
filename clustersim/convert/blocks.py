"""Layers one by one as the blocks of a workload."""

from __future__ import annotations

from itertools import groupby


def runs(layers: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return blocks of a workload for a list of layers: the shortest ones that repeat to all, equal neighbours counted."""
    for length in range(1, len(layers) + 1):
        if layers[length:] == layers[:-length]:
            found = [(block, len(list(several))) for block, several in groupby(layers[:length])]
            return [{**block, **({"count": count} if count > 1 else {})} for block, count in found]
    return []
