"""Links and memory of a page: load of each link, and memory over the step of each pipeline rank's GPU with the highest peak."""

from __future__ import annotations

import numpy as np

from clustersim.arrays import Floats
from clustersim.figures.charts import KINDS
from clustersim.figures.cluster_layout import end_kind
from clustersim.pages.cluster_picture import HIGH, LOW, LinkFigures, picture, slow_links
from clustersim.report.folded_time import FoldedTime
from clustersim.report.links import end_names, link_bytes, path_limits, tier_of
from clustersim.report.result import stages_of
from clustersim.report.tables import memory_table
from clustersim.simulation import StepResult
from clustersim.topology.describe import describe, faults
from clustersim.topology.export import gpu_numbers
from clustersim.topology.faults import DEAD
from clustersim.topology.model import LinkTier, Topology

MOST_CELLS = 480
"""Largest number of cells in a tier's row. A cell of several links shows the busiest."""
LISTED = 12
"""Number of links in the list."""


def network(result: StepResult) -> dict[str, object]:
    """Return the cluster and its links as JSON data. `use` is mean load / capacity over the step, `limits` is in seconds."""
    topology = result.topology
    crossed = link_bytes(result.plan)
    capacity = np.where(topology.capacity > DEAD, topology.capacity, np.inf)
    use: Floats = crossed / capacity / result.record.end
    _, holds = path_limits(result.facts.path, result.plan.network)
    figures = LinkFigures(use, holds, slow_links(topology))
    return {
        "figures": [list(row) for row in describe(topology)],
        "faults": [list(row) for row in faults(topology)],
        "tiers": [_tier(topology, tier, figures) for tier in topology.tiers if tier.links],
        "links": _busiest_links(topology, crossed, use, holds),
        "picture": picture(topology, figures),
        "slow_gpus": gpu_numbers(topology)[topology.slowdown != 1].tolist()[:1000],
    }


def _tier(topology: Topology, tier: LinkTier, figures: LinkFigures) -> dict[str, object]:
    """Return a tier as JSON data: columns `use` and `limits` with a value for each of at most MOST_CELLS groups of links."""
    use, limits, slow = (column[tier.span] for column in figures)
    cells = min(tier.links, MOST_CELLS)
    edges = np.arange(cells) * tier.links // cells
    return {
        "name": tier.name,
        "links": tier.links,
        "ends": [end_kind(end) for end in topology.ends(tier.first)],
        "capacity": float(np.median(topology.capacity[tier.span])),
        "use": [round(value, HIGH) for value in np.maximum.reduceat(use, edges).tolist()],
        "limits": [round(value, LOW) for value in np.maximum.reduceat(limits, edges).tolist()],
        "ill": np.flatnonzero(np.logical_or.reduceat(slow, edges)).tolist(),
        "mean": round(float(use.mean()), HIGH),
    }


def _busiest_links(topology: Topology, crossed: Floats, use: Floats, holds: Floats) -> list[dict[str, object]]:
    """Return rows of the links that limit the critical path longest, then of the busiest, with identical links as one.

    crossed, use, holds: bytes, mean load / capacity, and seconds on the critical path of each link (links,).
    """
    place = np.flatnonzero(crossed > 0)
    columns = (np.round(holds, LOW), np.round(use, HIGH), topology.capacity)
    figures = np.stack([tier_of(topology, place)[0], *(column[place] for column in columns)], axis=1)
    runs = np.flatnonzero(np.append(True, (figures[1:] != figures[:-1]).any(axis=1))[: len(figures)])  # mostly alike
    distinct, first, run = np.unique(figures[runs], axis=0, return_index=True, return_inverse=True)
    counts = np.bincount(run, np.diff(np.append(runs, len(figures))))
    order = np.lexsort((-distinct[:, 2], -distinct[:, 1]))
    place = place[runs[first]]
    first_of_tier = {int(distinct[i, 0]): i for i in reversed(order.tolist())}
    shown = dict.fromkeys([*order[:LISTED].tolist(), *reversed(first_of_tier.values())])
    return [_link(topology, int(place[i]), int(counts[i]), crossed, use, holds) for i in shown]


def _link(topology: Topology, i: int, many: int, crossed: Floats, use: Floats, holds: Floats) -> dict[str, object]:
    """Return the row of link `i`, one of `many` identical links."""
    a, b = end_names(topology, i)
    return {
        "link": topology.link_name(i),
        "alike": many - 1,
        "from": a,
        "to": b,
        "capacity": float(topology.capacity[i]),
        "bytes": float(crossed[i]),
        "use": round(float(use[i]), HIGH),
        "limits": round(float(holds[i]), LOW),
    }


UNIT = 2**20
"""Bytes per unit of the page's memory (MiB)."""
TICK = 1e-9
"""Seconds per unit of the page's times."""


def memory(result: StepResult, fold: FoldedTime) -> dict[str, object]:
    """Return for each pipeline rank the start of each pass (ns) and its memory by kind (MiB); one number for a constant kind."""
    table = memory_table(result.facts.memory, result.record, stages_of(result.plan, result.summary))
    start, ranks = np.asarray(table["start_s"], float), np.asarray(table["pipeline_rank"])
    drawn = np.isfinite(start)
    drawn[drawn] &= fold.shown(start[drawn])
    held = {what: np.rint(np.asarray(table[f"{what}_bytes"], float) / UNIT).astype(int) for what in KINDS}
    series = []
    for rank, of_rank in enumerate(result.facts.memory):
        rows = np.flatnonzero(drawn & (ranks == rank))
        kinds = {what: column for what in KINDS if any(column := held[what][rows].tolist())}
        times = np.rint(fold.folded(start[rows]) / TICK).astype(int)
        series.append(
            {
                "start": times.tolist(),
                "held": {what: column[0] if len({*column}) == 1 else column for what, column in kinds.items()},
                "peak": {what: round(value / UNIT) for what, value in of_rank.peak._asdict().items() if value},
            }
        )
    return {
        "capacity": round(result.topology.gpu.memory / UNIT),
        "ranks": series,
        "kinds": list(KINDS),
    }
