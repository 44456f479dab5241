"""The table behind the intervals of step times: log errors of published runs, with equal weight per publisher.

The score of a run is its log error over the width of its kind of step (`report.calibration.PublishedSteps`). An interval contains
the scores up to a `bound`. Publishers differ more than their runs do, so the publisher is the sampling unit: the bound is the
quantile of publishers' scores, with equal weights (as in hierarchical conformal prediction; Lee, Barber and Willett 2023, arXiv
2306.06342, whose guarantee for few publishers adds one infinite score, with which coverage exceeds the promise). Each publisher
is evaluated with the bound and the steps of the others, and without values read from it. None is excluded because its runs fail.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from clustersim.errors import InputError
from clustersim.report.calibration import EARLY, WORDS, PublishedSteps, software_level
from clustersim.validate.evaluate import Outcome, kind, log_error, with_expected
from clustersim.validate.statistics import FEWEST
from clustersim.validate.strangers import publisher_group

SHARE = 0.8
"""Share of steps that an interval promises to contain."""
PUBLISHERS = 5
"""Smallest number of publishers of a table: four for a bound, and a fifth to be evaluated by it."""


def table(outcomes: Sequence[Outcome], left_out: Sequence[Outcome]) -> dict[str, Any]:
    """Return the table of intervals as plain data. Raises InputError for fewer than PUBLISHERS publishers.

    `bound`: largest score inside an interval; `without`: {publisher group: bound without it}; `levels`, `seen`, `groups`:
    results of `levels_of`, `known_groups` and `_counts`; `inside_when_left_out`: share of `rows` (number) inside. outcomes:
    forecasts as a stranger's, which give the scores. left_out: the same runs, only without constants read from their publisher;
    they give the levels, as forecasts for others know these frameworks.
    """
    rows = [row for row in outcomes if row["status"] == "ok" and row["measured_s"]]
    names = sorted({row["publisher"] for row in rows})
    if len(names) < PUBLISHERS:
        raise InputError(
            f"--calibrate: {len(names)} publishers whose runs can be compared; {PUBLISHERS} are needed, add files of others"
        )
    groups = known_groups(rows)
    levels = levels_of([row for row in left_out if row["status"] == "ok" and row["measured_s"]])
    pairs = [(score(row, groups, levels), row["publisher"]) for row in rows]
    without = {
        name: bound([(value, publisher) for value, publisher in pairs if publisher_group(publisher) != name])
        for name in set(map(publisher_group, names))
    }
    inside = [value <= without[publisher_group(publisher)] for value, publisher in pairs]
    return {
        "share": SHARE,
        "rows": len(rows),
        "predictor": "neusight",
        "clocks": "sustained",
        "bound": round(bound(pairs), 4),
        "inside_when_left_out": round(sum(inside) / len(rows), 3),
        "without": {name: round(value, 4) for name, value in sorted(without.items())},
        "levels": levels,
        "seen": groups,
        "groups": _counts(rows, inside),
    }


def recalibrated(outcomes: Sequence[Outcome], table: Mapping[str, Any]) -> list[Outcome]:
    """Return outcomes with the expected times and intervals of `table` instead of the shipped table."""
    return [with_expected(row, row["without"], table) for row in outcomes]


def score(row: Outcome, groups: Mapping[str, Any], levels: Mapping[str, Any]) -> float:
    """Return |ln(measured / expected)| of an outcome, in units of its interval width, both without its publisher group.

    groups, levels: parts `seen` and `levels` of the table.
    """
    publisher = publisher_group(row["publisher"])
    error = log_error(row) - software_level(kind(row), {"levels": levels}, publisher).log
    return abs(error) / PublishedSteps(groups, publisher).width(kind(row))


def levels_of(rows: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return {publisher: {"kin": its group, "trainers": [[trainer, last year, mean ln(measured / simulated), runs], …]}}.

    A trainer has an entry for runs until EARLY, and an entry for later runs and runs without a year.
    """
    by_trainer: dict[str, dict[tuple[str, bool], list[Outcome]]] = {}
    for row in rows:
        early = row["year"] is not None and row["year"] <= EARLY
        by_trainer.setdefault(row["publisher"], {}).setdefault((row["trainer"], early), []).append(row)

    def level(trainer: str, runs: Sequence[Outcome]) -> list[Any]:
        """Return [trainer, last year, mean log error, number of runs]."""
        year = max(row["year"] or EARLY + 1 for row in runs)
        return [trainer, year, round(sum(map(log_error, runs)) / len(runs), 4), len(runs)]

    return {
        name: {
            "kin": publisher_group(name),
            "trainers": [level(trainer, runs) for (trainer, _), runs in sorted(groups.items())],
        }
        for name, groups in sorted(by_trainer.items())
    }


def known_groups(rows: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return {publisher: {grouping: sorted groups that it has, "kin": its group, "most_gpus": number, "runs": number}}."""
    by_publisher: defaultdict[str, list[Outcome]] = defaultdict(list)
    for row in rows:
        by_publisher[row["publisher"]].append(row)
    return {
        name: {
            **{part: sorted({kind(row).groups[part] for row in runs}) for part in ("machine", "framework", "experts")},
            "kin": publisher_group(name),
            "most_gpus": max(row["num_gpus"] for row in runs),
            "runs": len(runs),
        }
        for name, runs in sorted(by_publisher.items())
    }


def bound(scores: Sequence[tuple[float, str]]) -> float:
    """Return the smallest score that SHARE of the publishers do not exceed, each with weight 1. scores: (score, publisher).

    Publishers of fewer than FEWEST runs have one weight together, as in the mean error.
    """
    runs = Counter(name for _, name in scores)
    named = [(value, name if runs[name] >= FEWEST else "") for value, name in sorted(scores)]
    counts = Counter(name for _, name in named)
    weights, least = accumulate(1 / counts[name] for _, name in named), SHARE * len(counts) * (1 - 1e-12)
    return next((value for (value, _), sofar in zip(named, weights, strict=True) if sofar >= least), float("inf"))


def _counts(rows: Sequence[Outcome], inside: Sequence[bool]) -> Mapping[str, Mapping[str, tuple[int, int]]]:
    """Return {grouping: {group: (runs, runs inside their interval)}}. inside: whether each row is, its publisher left out."""
    counts: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in WORDS}
    for row, is_inside in zip(rows, inside, strict=True):
        for name, group in kind(row).groups.items():
            runs, inside_count = counts[name].get(group, (0, 0))
            counts[name][group] = runs + 1, inside_count + is_inside
    return {name: dict(sorted(groups.items())) for name, groups in counts.items()}
