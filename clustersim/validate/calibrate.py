"""The table behind the intervals of step times: the scores of published runs, each source weighing as much.

The score of a run is how far off its forecast is (`report.calibration.score`); an interval holds the scores up to a `bound`.
Sources differ more than their runs do, so a source is what is drawn: the bound is the quantile of the scores of k sources, and
of one more that nobody has seen and whose scores are beyond all (hierarchical conformal prediction; Lee, Barber and Willett
2023, arXiv 2306.06342). 80 % then needs four sources. Each source is judged by the bound of the others.

A group of runs (of a machine, launching share, number of GPUs or framework) of which too few lie inside gets no interval and
takes no part: whatever makes it different, the others say nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from clustersim.errors import InputError
from clustersim.report.calibration import WORDS, score
from clustersim.validate.evaluate import Outcome, kind, log_error

SHARE = 0.8
"""Of the steps that an interval promises to hold."""
LEAST = 0.6
"""Share of a group's runs that must lie inside for it to get an interval."""
FEW = 5
"""Runs of a group below which their share says nothing."""
SOURCES = 5
"""Fewest sources of a table: four for a bound, and one to be judged by it."""
Counts = dict[str, dict[str, list[int]]]
"""{grouping: {group: [runs, those inside when their source is left out]}}."""


def table(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the calibrated table of outcomes: the bound, those with each source left out, and what they rest on.

    Raises InputError for fewer than five sources.
    """
    rows = [one for one in outcomes if one["status"] == "ok" and one["measured_s"]]
    dropped: Counts = {name: {} for name in WORDS}
    while True:
        left_out = _without(rows)
        counts = _counts(rows, left_out)
        worst = _worst(counts)
        if worst is None:
            break
        name, group = worst
        dropped[name][group] = counts[name][group]
        rows = [one for one in rows if kind(one).groups[name] != group]
    inside = sum(_inside(one, left_out) for one in rows)
    return {
        "share": SHARE,
        "rows": len(rows),
        "sources": dict(sorted(Counter(one["source"] for one in rows).items())),
        "bound": round(bound(rows), 4),
        "inside_when_left_out": round(inside / len(rows), 3),
        "without": {name: round(value, 4) for name, value in left_out.items()},
        "groups": counts,
        "dropped": dropped,
        "seen": {
            "predictor": "neusight",
            "clocks": "sustained",
            "experts": len({one["source"] for one in rows if one["ep"] not in (None, 1)}) > 1,
            "most_gpus": max(one["num_gpus"] for one in rows),
        },
    }


def bound(rows: Sequence[Outcome]) -> float:
    """Return the smallest score that SHARE of the sources' weights do not exceed, with one unseen source beyond all.

    Infinite for fewer than four sources.
    """
    counts = Counter(one["source"] for one in rows)
    ranked = sorted((_score(one), 1 / counts[one["source"]]) for one in rows)
    wanted, sofar = SHARE * (len(counts) + 1) * (1 - 1e-12), 0.0
    for value, weight in ranked:
        sofar += weight
        if sofar >= wanted:
            return value
    return float("inf")


def _without(rows: Sequence[Outcome]) -> dict[str, float]:
    """Return the bound with each source left out. Raises InputError where a bound would be infinite."""
    sources = sorted({one["source"] for one in rows})
    if len(sources) < SOURCES:
        raise InputError(
            f"--calibrate: {len(sources)} sources whose runs can be compared; {SOURCES} are needed, add files of others"
        )
    return {name: bound([one for one in rows if one["source"] != name]) for name in sources}


def _counts(rows: Sequence[Outcome], left_out: Mapping[str, float]) -> Counts:
    found: Counts = {name: {} for name in WORDS}
    for one in rows:
        for name, group in kind(one).groups.items():
            counts = found[name].setdefault(group, [0, 0])
            counts[0] += 1
            counts[1] += _inside(one, left_out)
    return {name: dict(sorted(groups.items())) for name, groups in found.items()}


def _worst(counts: Counts) -> tuple[str, str] | None:
    """Return the grouping and group of which the smallest share lies inside; None where all have enough."""
    far = [
        (inside / runs, name, group)
        for name, groups in counts.items()
        for group, (runs, inside) in groups.items()
        if runs >= FEW and inside < LEAST * runs
    ]
    return min(far)[1:] if far else None


def _inside(one: Outcome, left_out: Mapping[str, float]) -> bool:
    return _score(one) <= left_out[one["source"]]


def _score(one: Outcome) -> float:
    return score(log_error(one), one["launching"])
