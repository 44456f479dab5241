"""Errors of outcomes, in total and by group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import log
from statistics import median
from typing import Any

from clustersim.validate.evaluate import Outcome, kind


def group(grouping: str) -> Callable[[Outcome], str]:
    """Return a function from an outcome to its group, as used for intervals: by `machine`, `launching` or `gpus`."""
    return lambda one: kind(one).groups[grouping]


def split(outcome: Outcome) -> str:
    """Return the degrees of a run that exceed one, such as `tp pp`."""
    names = [name for name in ("tp", "pp", "dp", "cp", "ep") if (outcome[name] or 1) > 1]
    return " ".join(names) or "one GPU"


def cell(outcome: Outcome) -> str:
    """Return GPU, precision, tp or not, sequence and scale of a run: errors of cells can cancel within a publisher."""
    tp = "tp" if (outcome["tp"] or 1) > 1 else "no tp"
    length = "long" if (outcome["seq"] or 0) > LONG else "short"
    return f"{outcome['gpu']} {outcome['precision']}, {tp}, {length}, {group('gpus')(outcome)} GPUs"


LONG = 4096
"""Tokens above which a cell's sequences are long."""
GROUPS: Mapping[str, Callable[[Outcome], str]] = {
    "publisher": lambda one: str(one["publisher"]),
    "cell": cell,
    "gpu": lambda one: str(one["gpu"]),
    "framework": lambda one: str(one["framework"]),
    "gpus": group("gpus"),
    "launching": group("launching"),
    "parallelism": split,
    "precision": lambda one: str(one["precision"]),
}


def compared(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes that have a measured and a predicted time."""
    return [one for one in outcomes if one["error"] is not None]


def errors(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return figures of the errors of outcomes; fractions, not per cent. inside: share among those with an interval."""
    rows = compared(outcomes)
    if not rows:
        return {"runs": 0}
    size = sorted(abs(one["error"]) for one in rows)
    bounded = [one for one in rows if one["low_s"] is not None and one["high_s"] is not None]
    inside = sum(one["low_s"] <= one["measured_s"] <= one["high_s"] for one in bounded)
    return {
        "runs": len(rows),
        "mean_error": sum(size) / len(size),
        "median_error": median(size),
        "p90_error": size[min(len(size) - 1, int(0.9 * len(size)))],
        "bias": sum(one["error"] for one in rows) / len(rows),
        "with_interval": len(bounded),
        "inside": inside / len(bounded) if bounded else None,
    }


def moved(before: Sequence[Outcome], after: Sequence[Outcome]) -> dict[str, Any]:
    """Return the number of forecasts of the same runs that differ by more than rounding, and the largest relative difference."""
    pairs = [(one["predicted_s"], other["predicted_s"]) for one, other in zip(before, after, strict=True)]
    sizes = [abs(now / then - 1) for then, now in pairs if then and now]
    return {"moved": sum(size > 1e-9 for size in sizes), "moved_most": max(sizes, default=0.0)}


def grouped(outcomes: Sequence[Outcome], of: Callable[[Outcome], str]) -> dict[str, dict[str, Any]]:
    """Return {group: errors of its outcomes}, the largest group first. of: function from an outcome to its group."""
    found: defaultdict[str, list[Outcome]] = defaultdict(list)
    for one in compared(outcomes):
        found[of(one)].append(one)
    return {name: errors(found[name]) for name in sorted(found, key=lambda name: (-len(found[name]), name))}


def peers(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return {other tool: its errors and ours on the runs that both forecast}."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for one in outcomes for name in one["peers_s"]):
        rows = [one for one in compared(outcomes) if name in one["peers_s"]]
        if rows:
            theirs = [abs(one["peers_s"][name] / one["measured_s"] - 1) for one in rows]
            found[name] = {"runs": len(rows), "mean_error": sum(theirs) / len(rows), "ours": errors(rows)["mean_error"]}
    return found


def judged(outcomes: Sequence[Outcome], differing: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes, where those in `differing` replace the outcomes of the same runs."""
    own = {one["id"]: one for one in differing}
    return [own.get(one["id"], one) for one in outcomes]


FEWEST = 4
"""Smallest number of runs of a publisher that counts separately in the mean over publishers; the others count as one."""


def by_publisher(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the errors of outcomes, including the mean over publishers' means, with equal weights."""
    rows = compared(outcomes)
    counts = Counter(one["publisher"] for one in rows)
    each = grouped(rows, lambda one: one["publisher"] if counts[one["publisher"]] >= FEWEST else "")
    means = [one["mean_error"] for one in each.values()]
    return errors(outcomes) | {
        "publishers": len(counts),
        "publisher_mean_error": sum(means) / len(means) if means else None,
    }


def refusals(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return {kind of reason: number of refused or failed runs}, the largest first."""
    return dict(Counter(one["reason_kind"] for one in outcomes if one["status"] != "ok").most_common())


def worst(outcomes: Sequence[Outcome], count: int = 10) -> list[Outcome]:
    """Return the outcomes with the largest ratio between the two times."""
    return sorted(compared(outcomes), key=lambda one: -abs(log(one["predicted_s"] / one["measured_s"])))[:count]
