"""Sweeps of one model on one cluster: whether the forecast ranks mappings correctly, and whether they fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from clustersim.validate.evaluate import Outcome
from clustersim.validate.statistics import errors

FEWEST = 5
"""Smallest number of mappings of a sweep."""


SWEEP = ("publisher", "model", "gpu", "num_gpus", "global_batch", "seq", "precision")
"""Columns that all mappings of a sweep share."""
POLLED = "nanotron"
"""Framework for which over half of the measured mappings are slowed by causes outside any model (docs/validation.md)."""
LATE = 1.5
"""Ratio to a mapping with equal GPUs, dp and tp and no less work, above which a mapping is late."""
WIDEST = 256
"""Number of GPUs above which all mappings may be late."""
POLLING = {2: 0.45}
"""{pipeline stages: seconds of a microbatch above which messages were polled} …"""
POLLING_DEEPER = 0.9
"""… and the seconds with more stages."""


def sound(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes without late mappings of nanotron, which are recognized by columns and measured times alone.

    Of a repeated mapping the faster run counts. A run without a pipeline counts unless a run with the same GPUs, dp and tp, the
    same or a smaller micro-batch and any ZeRO stage is LATE times faster. A run with a pipeline counts only with tp 1, if its
    microbatches take less time than polling for messages did (docs/validation.md). All runs of other frameworks count.
    """
    rows = [row for row in outcomes if row["framework"] != POLLED or (row["measured_s"] and row["num_gpus"] <= WIDEST)]
    mapped = [row for row in rows if row["framework"] == POLLED]
    fastest: dict[tuple[Any, ...], Outcome] = {}
    for row in sorted(mapped, key=lambda row: row["measured_s"]):
        fastest.setdefault((*(row[key] for key in ("model", "num_gpus", "global_batch", "seq")), *_mapping(row)), row)
    kept = {row["id"] for row in fastest.values() if _on_time(row, mapped)}
    return [row for row in rows if row["framework"] != POLLED or row["id"] in kept]


def _on_time(row: Outcome, others: Sequence[Outcome]) -> bool:
    """Return whether a mapping of nanotron was fast enough to count (rules of `sound`). others: all its mappings."""
    if row["pp"] > 1:
        microbatches = row["global_batch"] / (row["dp"] * row["micro_batch"])
        return bool(row["tp"] == 1 and row["measured_s"] / microbatches < POLLING.get(row["pp"], POLLING_DEEPER))
    comparable = (
        other["measured_s"]
        for other in others
        if other["pp"] == 1
        and all(other[key] == row[key] for key in ("model", "num_gpus", "global_batch", "seq", "dp", "tp"))
        and other["micro_batch"] <= row["micro_batch"]
    )
    return bool(row["measured_s"] <= LATE * min(comparable))


def sweeps(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return for each sweep its SWEEP columns, `errors`, spearman, regret and first_pick, from at least FEWEST distinct mappings.

    spearman: rank correlation of predicted and measured time, None if it has none. regret: measured time of the mapping
    forecast fastest over that of the fastest, minus 1. first_pick: id of the mapping forecast fastest.
    """
    by_sweep = _by_sweep(row for row in outcomes if row["error"] is not None)
    return [_sweep_figures(key, rows) for key, rows in sorted(by_sweep.items(), key=str)]


def first_picks(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return for each sweep the mapping forecast to be fastest among those that likely fit, including crashed ones.

    A mapping that ran in one job and crashed in another counts as having run.
    """
    by_sweep = _by_sweep(row for row in outcomes if row["predicted_s"] is not None and row["fits"])
    return [min(rows, key=lambda row: (row["predicted_s"], not row["ran"])) for rows in by_sweep.values()]


def _by_sweep(outcomes: Iterable[Outcome]) -> dict[tuple[Any, ...], list[Outcome]]:
    """Return {values of the columns SWEEP: outcomes} of the sweeps with at least FEWEST distinct mappings (`_mapping`)."""
    by_sweep: defaultdict[tuple[Any, ...], list[Outcome]] = defaultdict(list)
    for row in outcomes:
        by_sweep[tuple(row[key] for key in SWEEP)].append(row)
    return {key: rows for key, rows in by_sweep.items() if len(set(map(_mapping, rows))) >= FEWEST}


def _mapping(row: Outcome) -> tuple[Any, ...]:
    """Return the values of the columns that distinguish the mappings of a sweep: degrees, micro-batch, ZeRO and recomputation."""
    return tuple(row[key] for key in ("tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch", "zero_stage", "recompute"))


def _sweep_figures(key: tuple[Any, ...], rows: Sequence[Outcome]) -> dict[str, Any]:
    """Return the SWEEP columns of a sweep, its `errors`, and spearman, regret and first_pick as in `sweeps`.

    key: values of SWEEP. rows: outcomes with a forecast.
    """
    first = min(rows, key=lambda row: row["predicted_s"])
    best = min(row["measured_s"] for row in rows)
    return {
        **dict(zip(SWEEP, key, strict=True)),
        **errors(rows),
        "spearman": spearman([row["predicted_s"] for row in rows], [row["measured_s"] for row in rows]),
        "regret": first["measured_s"] / best - 1,
        "first_pick": first["id"],
    }


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the rank correlation of equally long lists, ties at their mean rank; None if all values of one list are equal."""
    import polars as pl

    if min(len(set(first)), len(set(second))) < 2:
        return None
    ranks = pl.corr("first", "second", method="spearman")
    return float(pl.DataFrame({"first": first, "second": second}).select(ranks).item())


def verdicts(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Return numbers of runs: `ran`, `ran_and_fits`, `crashed`, `crashed_and_does_not_fit`, …; None if no run crashed.

    `first_picks_ran`: how many of `first_picks` ran. `memory_mean_error`, `memory_bias`: of forecast / measured - 1, None
    without a measured peak. A crash may have other causes, so a crashed run that should fit does not prove an error.
    """
    picks = first_picks(outcomes)
    judged = [row for row in outcomes if row["fits"] is not None]
    ran, crashed = [row for row in judged if row["ran"]], [row for row in judged if not row["ran"]]
    if not crashed:
        return None
    peaks = [row["allocated_gib"] / row["measured_memory_gb"] - 1 for row in ran if row["measured_memory_gb"]]
    return {
        "ran": len(ran),
        "ran_and_fits": sum(row["fits"] for row in ran),
        "crashed": len(crashed),
        "crashed_and_does_not_fit": sum(not row["fits"] for row in crashed),
        "first_picks": len(picks),
        "first_picks_ran": sum(row["ran"] for row in picks),
        "memory_mean_error": sum(map(abs, peaks)) / len(peaks) if peaks else None,
        "memory_bias": sum(peaks) / len(peaks) if peaks else None,
    }
