"""Entries of compressed rows."""

from __future__ import annotations

import numpy as np

from clustersim.topology.model import Ints


def entries(start: Ints, rows: Ints) -> Ints:
    """Return the positions of all entries of `rows`, one row after the other; row i is start[i] to start[i + 1]."""
    lengths = start[rows + 1] - start[rows]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(start[rows] - ends + lengths, lengths)
