"""The shipped table of published runs: each with its public source and this release's forecast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clustersim.validate.runs import Run

TABLE = Path(__file__).parent / "published_runs.csv"
EACH = 4
"""Largest number of runs per source."""
LONGEST = 4_000
"""Largest number of passes of a run, so that each takes seconds."""


def chosen(runs: Sequence[Run], outcomes: Mapping[str, Mapping[str, Any]]) -> Iterator[Run]:
    """Yield the runs of the table: for every source that is simulated, EACH runs at equal steps through it."""
    found: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if outcomes[run.id]["status"] == "ok" and _passes(run) <= LONGEST:
            found[run.publisher].append(run)
    for several in found.values():
        count = min(len(several), EACH)
        yield from (several[k * len(several) // count] for k in range(count))


def _passes(run: Run) -> int:
    """Return the number of forward passes of all stages of a replica."""
    return (run.global_batch or 0) // ((run.dp or 1) * (run.micro_batch or 1)) * (run.pp or 1)
