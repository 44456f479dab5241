"""The table of published runs that is shipped: each with its public source and the forecast that this release makes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clustersim.validate.runs import Run

TABLE = Path(__file__).parent / "published_runs.csv"
EACH = 4
"""Most runs of one source."""
LONGEST = 4_000
"""Most passes of a run, so that all of them take seconds."""


def chosen(runs: Sequence[Run], outcomes: Mapping[str, Mapping[str, Any]]) -> Iterator[Run]:
    """Yield the runs of the table: of every source that is simulated, EACH at equal steps through it."""
    found: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if outcomes[run.id]["status"] == "ok" and _passes(run) <= LONGEST:
            found[run.publisher].append(run)
    for several in found.values():
        count = min(len(several), EACH)
        yield from (several[k * len(several) // count] for k in range(count))


def _passes(run: Run) -> int:
    """Return the forward passes of all stages of a replica."""
    return (run.global_batch or 0) // ((run.dp or 1) * (run.micro_batch or 1)) * (run.pp or 1)
