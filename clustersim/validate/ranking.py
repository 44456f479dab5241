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
    """Return the outcomes without late ones among nanotron's mappings, judged only by columns and measured times.

    Of a mapping that stands twice the faster one counts. Without a pipeline a run counts unless one with the same GPUs, dp and
    tp, the same or a smaller micro-batch and any ZeRO stage is LATE times faster; with one it counts only with tp 1, if its
    microbatches take less time than polling for messages did (docs/validation.md). All runs of other frameworks count.
    """
    rows = [one for one in outcomes if one["framework"] != POLLED or (one["measured_s"] and one["num_gpus"] <= WIDEST)]
    mapped = [one for one in rows if one["framework"] == POLLED]
    fastest: dict[tuple[Any, ...], Outcome] = {}
    for one in sorted(mapped, key=lambda one: one["measured_s"]):
        fastest.setdefault((*(one[key] for key in ("model", "num_gpus", "global_batch", "seq")), *_mapping(one)), one)
    kept = {one["id"] for one in fastest.values() if _on_time(one, mapped)}
    return [one for one in rows if one["framework"] != POLLED or one["id"] in kept]


def _on_time(one: Outcome, others: Sequence[Outcome]) -> bool:
    """Return whether a mapping of nanotron was fast enough to count (rules of `sound`), compared with all of its `others`."""
    if one["pp"] > 1:
        microbatches = one["global_batch"] / (one["dp"] * one["micro_batch"])
        return bool(one["tp"] == 1 and one["measured_s"] / microbatches < POLLING.get(one["pp"], POLLING_DEEPER))
    comparable = (
        other["measured_s"]
        for other in others
        if other["pp"] == 1
        and all(other[key] == one[key] for key in ("model", "num_gpus", "global_batch", "seq", "dp", "tp"))
        and other["micro_batch"] <= one["micro_batch"]
    )
    return bool(one["measured_s"] <= LATE * min(comparable))


def sweeps(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the figures of every sweep: runs of one publisher, model, GPU, number of GPUs, batch and sequence.

    spearman: rank correlation of predicted and measured time. regret: slowdown of the mapping forecast fastest over the fastest.
    """
    found = _by_sweep(one for one in outcomes if one["error"] is not None)
    return [_sweep(key, rows) for key, rows in sorted(found.items(), key=str)]


def first_picks(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return for each sweep the mapping forecast to be fastest among those that likely fit, including crashed ones.

    A mapping that ran in one job and crashed in another counts as having run.
    """
    found = _by_sweep(one for one in outcomes if one["predicted_s"] is not None and one["fits"])
    return [min(rows, key=lambda one: (one["predicted_s"], not one["ran"])) for rows in found.values()]


def _by_sweep(outcomes: Iterable[Outcome]) -> dict[tuple[Any, ...], list[Outcome]]:
    """Return {(publisher, model, GPU, …): outcomes} of the sweeps with at least FEWEST mappings; SWEEP names the keys."""
    found: defaultdict[tuple[Any, ...], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        found[tuple(one[key] for key in SWEEP)].append(one)
    return {key: rows for key, rows in found.items() if len(set(map(_mapping, rows))) >= FEWEST}


def _mapping(one: Outcome) -> tuple[Any, ...]:
    """Return the degrees and options that distinguish the mappings of a sweep."""
    return tuple(one[key] for key in ("tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch", "zero_stage", "recompute"))


def _sweep(key: tuple[Any, ...], rows: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of one sweep: its key, counts, rank correlation and regret. key: values of the columns SWEEP."""
    first = min(rows, key=lambda one: one["predicted_s"])
    best = min(one["measured_s"] for one in rows)
    return {
        **dict(zip(SWEEP, key, strict=True)),
        **errors(rows),
        "spearman": spearman([one["predicted_s"] for one in rows], [one["measured_s"] for one in rows]),
        "regret": first["measured_s"] / best - 1,
        "first_pick": first["id"],
    }


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the rank correlation of two lists, ties at their mean rank; None if all values of one list are equal."""
    import polars as pl

    if min(len(set(first)), len(set(second))) < 2:
        return None
    ranks = pl.corr("first", "second", method="spearman")
    return float(pl.DataFrame({"first": first, "second": second}).select(ranks).item())


def verdicts(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Return how often the verdict on memory was right, for runs that ran and runs that crashed; None without crashes.

    A crash may have other causes, so a crashed run that should fit does not prove an error.
    """
    picks = first_picks(outcomes)
    judged = [one for one in outcomes if one["fits"] is not None]
    ran, crashed = [one for one in judged if one["ran"]], [one for one in judged if not one["ran"]]
    if not crashed:
        return None
    peaks = [one["allocated_gib"] / one["measured_memory_gb"] - 1 for one in ran if one["measured_memory_gb"]]
    return {
        "ran": len(ran),
        "ran_and_fits": sum(one["fits"] for one in ran),
        "crashed": len(crashed),
        "crashed_and_does_not_fit": sum(not one["fits"] for one in crashed),
        "first_picks": len(picks),
        "first_picks_ran": sum(one["ran"] for one in picks),
        "memory_mean_error": sum(map(abs, peaks)) / len(peaks) if peaks else None,
        "memory_bias": sum(peaks) / len(peaks) if peaks else None,
    }
