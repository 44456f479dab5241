"""The table behind the intervals of step times: quantiles of the errors of published runs, each source weighing as much.

The log error of a run, ln(measured / predicted), is bounded by `low` below and by `high` · (BASE + launching share) above.
Both are quantiles over the calibration runs. For honesty they are found again with each source left out, and that source's
runs are judged by those: so `inside_when_left_out` is what a source nobody has seen may expect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from clustersim.errors import InputError
from clustersim.report.calibration import BASE, Kind, Quantiles
from clustersim.validate.evaluate import Outcome, log_error

LEVELS = (0.1, 0.9)


def table(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the calibrated table of outcomes: quantiles, those with each source left out, and what they rest on.

    Raises InputError for fewer than two sources.
    """
    rows = [one for one in outcomes if one["status"] == "ok" and one["measured_s"]]
    sources = Counter(one["source"] for one in rows)
    if len(sources) < 2:
        raise InputError("--calibrate needs runs of two sources or more, so that one can be left out; add another file")
    without = {name: quantiles([one for one in rows if one["source"] != name]) for name in sorted(sources)}
    left_out = [inside(one, without[one["source"]]) for one in rows]
    found = quantiles(rows)
    return {
        "levels": list(LEVELS),
        "rows": len(rows),
        "sources": dict(sorted(sources.items())),
        "low": found.low,
        "high": found.high,
        "inside": round(sum(inside(one, found) for one in rows) / len(rows), 3),
        "inside_when_left_out": round(sum(left_out) / len(rows), 3),
        "without": {name: {"low": one.low, "high": one.high} for name, one in without.items()},
        "seen": {
            "predictor": "neusight",
            "clocks": "sustained",
            "experts": any(one["ep"] not in (None, 1) for one in rows),
            "machines": _machines(rows, left_out),
            "most_gpus": max(one["num_gpus"] for one in rows),
            "most_launching": round(max(one["launching"] for one in rows), 2),
        },
    }


def _machines(rows: Sequence[Outcome], left_out: Sequence[bool]) -> dict[str, list[int]]:
    """Return how many runs each machine has, and how many lie inside when their source is left out."""
    found: dict[str, list[int]] = {}
    for one, well in zip(rows, left_out, strict=True):
        counts = found.setdefault(machine(one), [0, 0])
        counts[0] += 1
        counts[1] += well
    return dict(sorted(found.items()))


def quantiles(rows: Sequence[Outcome]) -> Quantiles:
    """Return the quantiles of the log errors of rows, every source with one weight."""
    return Quantiles(
        round(_quantile(rows, log_error, LEVELS[0]), 4),
        round(_quantile(rows, lambda one: log_error(one) / (BASE + one["launching"]), LEVELS[1]), 4),
    )


def inside(outcome: Outcome, found: Quantiles) -> bool:
    """Return whether the measured time lies in the interval."""
    low, high = found.around(outcome["predicted_s"], outcome["launching"])
    return bool(low <= outcome["measured_s"] <= high)


def machine(outcome: Outcome) -> str:
    """Return the machine of an outcome as intervals name it, such as `hopper 16-bit`."""
    return Kind(outcome["architecture"], outcome["precision"], 1, 0.0, False, "", "").machine


def _quantile(rows: Sequence[Outcome], score: Callable[[Outcome], float], level: float) -> float:
    """Return the smallest score that a share `level` of the weights does not exceed."""
    counts = Counter(one["source"] for one in rows)
    ranked = sorted((score(one), 1 / counts[one["source"]]) for one in rows)
    wanted, sofar = level * len(counts), 0.0
    for value, weight in ranked:
        sofar += weight
        if sofar >= wanted * (1 - 1e-12):
            return value
    return ranked[-1][0]
