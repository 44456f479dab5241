"""Errors of outcomes, in total and by group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import log
from statistics import median
from typing import Any

from clustersim.validate.evaluate import Outcome, kind


def group(grouping: str) -> Callable[[Outcome], str]:
    """Return a function from an outcome to its group. grouping: key of `Kind.groups`, such as `launching` or `gpus`."""
    return lambda row: kind(row).groups[grouping]


def split(outcome: Outcome) -> str:
    """Return the names of the degrees above 1, such as `tp pp`; `one GPU` if there are none."""
    names = [name for name in ("tp", "pp", "dp", "cp", "ep") if (outcome[name] or 1) > 1]
    return " ".join(names) or "one GPU"


def cell(outcome: Outcome) -> str:
    """Return GPU, precision, tp or not, sequence (long above LONG) and scale of a run as text, such as `h100 bf16, no tp, …`.

    Errors are also averaged by this cell, because those of a publisher's cells can cancel.
    """
    tp = "tp" if (outcome["tp"] or 1) > 1 else "no tp"
    length = "long" if (outcome["seq"] or 0) > LONG else "short"
    return f"{outcome['gpu']} {outcome['precision']}, {tp}, {length}, {group('gpus')(outcome)} GPUs"


LONG = 4096
"""Tokens above which a cell's sequences are long."""
GROUPS: Mapping[str, Callable[[Outcome], str]] = {
    "publisher": lambda row: str(row["publisher"]),
    "cell": cell,
    "gpu": lambda row: str(row["gpu"]),
    "framework": lambda row: str(row["framework"]),
    "gpus": group("gpus"),
    "launching": group("launching"),
    "parallelism": split,
    "precision": lambda row: str(row["precision"]),
}


def compared(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes that have a measured and a predicted time."""
    return [row for row in outcomes if row["error"] is not None]


def errors(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return `runs` (number), `mean_error`, `median_error`, `p90_error`, `bias`, `with_interval`, `inside`; {"runs": 0} for none.

    Errors are |predicted_s / measured_s - 1|; bias is their mean with sign. inside: share of the `with_interval` runs whose
    measured time is in the interval; None without any.
    """
    rows = compared(outcomes)
    if not rows:
        return {"runs": 0}
    size = sorted(abs(row["error"]) for row in rows)
    bounded = [row for row in rows if row["low_s"] is not None and row["high_s"] is not None]
    inside = sum(row["low_s"] <= row["measured_s"] <= row["high_s"] for row in bounded)
    return {
        "runs": len(rows),
        "mean_error": sum(size) / len(size),
        "median_error": median(size),
        "p90_error": size[min(len(size) - 1, int(0.9 * len(size)))],
        "bias": sum(row["error"] for row in rows) / len(rows),
        "with_interval": len(bounded),
        "inside": inside / len(bounded) if bounded else None,
    }


def moved(before: Sequence[Outcome], after: Sequence[Outcome]) -> dict[str, Any]:
    """Return {"moved": number of forecasts that differ by more than rounding, "moved_most": largest relative difference}.

    before, after: outcomes of the same runs in the same order.
    """
    pairs = [(old["predicted_s"], new["predicted_s"]) for old, new in zip(before, after, strict=True)]
    sizes = [abs(now / then - 1) for then, now in pairs if then and now]
    return {"moved": sum(size > 1e-9 for size in sizes), "moved_most": max(sizes, default=0.0)}


def grouped(outcomes: Sequence[Outcome], group_of: Callable[[Outcome], str]) -> dict[str, dict[str, Any]]:
    """Return {group: errors of its outcomes}, the largest group first. group_of: function from an outcome to its group."""
    by_group: defaultdict[str, list[Outcome]] = defaultdict(list)
    for row in compared(outcomes):
        by_group[group_of(row)].append(row)
    return {name: errors(by_group[name]) for name in sorted(by_group, key=lambda name: (-len(by_group[name]), name))}


def peers(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return {other tool: {"runs", "mean_error" of the tool, "ours": mean error here}} over the runs that both forecast."""
    by_tool: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for row in outcomes for name in row["peers_s"]):
        rows = [row for row in compared(outcomes) if name in row["peers_s"]]
        if rows:
            mean = sum(abs(row["peers_s"][name] / row["measured_s"] - 1) for row in rows) / len(rows)
            by_tool[name] = {"runs": len(rows), "mean_error": mean, "ours": errors(rows)["mean_error"]}
    return by_tool


FEWEST = 4
"""Smallest number of runs of a publisher that counts separately in the mean over publishers; smaller ones count as one."""


def by_publisher(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the `errors` of outcomes, the number of `publishers` and `publisher_mean_error`, the mean of their mean errors.

    The mean has equal weights (see FEWEST), and is None if no outcome has both times.
    """
    rows = compared(outcomes)
    counts = Counter(row["publisher"] for row in rows)
    by_name = grouped(rows, lambda row: row["publisher"] if counts[row["publisher"]] >= FEWEST else "")
    means = [group_errors["mean_error"] for group_errors in by_name.values()]
    return errors(outcomes) | {
        "publishers": len(counts),
        "publisher_mean_error": sum(means) / len(means) if means else None,
    }


def refusals(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return {kind of reason: number of refused or failed runs}, the largest first."""
    return dict(Counter(row["reason_kind"] for row in outcomes if row["status"] != "ok").most_common())


def worst(outcomes: Sequence[Outcome], count: int = 10) -> list[Outcome]:
    """Return the `count` outcomes whose predicted and measured times have the largest ratio, either way; worst first."""
    return sorted(compared(outcomes), key=lambda row: -abs(log(row["predicted_s"] / row["measured_s"])))[:count]
