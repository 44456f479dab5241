"""The table behind the intervals of step times: log errors of published runs, with equal weight per publisher.

The score of a run is its log error over the width of its kind (`report.calibration.PublishedSteps`), and an interval contains the
scores up to a `bound`. Publishers differ more than their runs do, so the publisher is the sampling unit: the bound is the
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
from clustersim.validate.evaluate import Outcome, expected_again, kind, log_error
from clustersim.validate.statistics import FEWEST
from clustersim.validate.strangers import publisher_group

SHARE = 0.8
"""Share of steps that an interval promises to contain."""
PUBLISHERS = 5
"""Smallest number of publishers of a table: four for a bound, and one to be evaluated by it."""


def table(outcomes: Sequence[Outcome], left_out: Sequence[Outcome]) -> dict[str, Any]:
    """Return the calibrated table of outcomes: the bound, those with each publisher left out, and their basis.

    outcomes: forecast as a stranger's. left_out: the same runs without their publisher's constants alone. Their errors are the
    levels, as forecasts for others know these frameworks and networks. Raises InputError for fewer than five publishers.
    """
    rows = [one for one in outcomes if one["status"] == "ok" and one["measured_s"]]
    names = sorted({one["publisher"] for one in rows})
    if len(names) < PUBLISHERS:
        raise InputError(
            f"--calibrate: {len(names)} publishers whose runs can be compared; {PUBLISHERS} are needed, add files of others"
        )
    known, levels = seen(rows), levels_of([one for one in left_out if one["status"] == "ok" and one["measured_s"]])
    pairs = [(score(one, known, levels), one["publisher"]) for one in rows]
    without = {
        name: bound([(score, of) for score, of in pairs if publisher_group(of) != name])
        for name in set(map(publisher_group, names))
    }
    inside = [score <= without[publisher_group(of)] for score, of in pairs]
    return {
        "share": SHARE,
        "rows": len(rows),
        "predictor": "neusight",
        "clocks": "sustained",
        "bound": round(bound(pairs), 4),
        "inside_when_left_out": round(sum(inside) / len(rows), 3),
        "without": {name: round(value, 4) for name, value in sorted(without.items())},
        "levels": levels,
        "seen": known,
        "groups": _counts(rows, inside),
    }


def held(outcomes: Sequence[Outcome], table: Mapping[str, Any]) -> list[Outcome]:
    """Return outcomes with the expected times and intervals of a calibrated table instead of the shipped one."""
    return [expected_again(one, one["without"], table) for one in outcomes]


def score(one: Outcome, seen: Mapping[str, Any], levels: Mapping[str, Any]) -> float:
    """Return the deviation of an outcome's expected time without its kin, in widths of its interval."""
    own = publisher_group(one["publisher"])
    off = log_error(one) - software_level(kind(one), {"levels": levels}, own).log
    return abs(off) / PublishedSteps(seen, own).width(kind(one))


def levels_of(rows: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return {publisher: its kin, and for each kind of trainer: last year, mean ln(measured / simulated), runs}."""
    found: dict[str, dict[tuple[str, bool], list[Outcome]]] = {}
    for one in rows:
        early = one["year"] is not None and one["year"] <= EARLY
        found.setdefault(one["publisher"], {}).setdefault((one["trainer"], early), []).append(one)

    def level(trainer: str, own: Sequence[Outcome]) -> list[Any]:
        """Return the last year, the mean log error and the number of runs of a kind of trainer."""
        year = max(one["year"] or EARLY + 1 for one in own)
        return [trainer, year, round(sum(map(log_error, own)) / len(own), 4), len(own)]

    return {
        name: {
            "kin": publisher_group(name),
            "trainers": [level(trainer, own) for (trainer, _), own in sorted(groups.items())],
        }
        for name, groups in sorted(found.items())
    }


def seen(rows: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return {publisher: {grouping: groups with steps, most_gpus, runs}}."""
    found: defaultdict[str, list[Outcome]] = defaultdict(list)
    for one in rows:
        found[one["publisher"]].append(one)
    return {
        name: {
            **{part: sorted({kind(one).groups[part] for one in own}) for part in ("machine", "framework", "experts")},
            "kin": publisher_group(name),
            "most_gpus": max(one["num_gpus"] for one in own),
            "runs": len(own),
        }
        for name, own in sorted(found.items())
    }


def bound(scores: Sequence[tuple[float, str]]) -> float:
    """Return the smallest score that SHARE of the publishers' weights do not exceed; scores: (score, publisher).

    Publishers of fewer than FEWEST runs have one weight together, as in the mean error.
    """
    runs = Counter(name for _, name in scores)
    named = [(value, name if runs[name] >= FEWEST else "") for value, name in sorted(scores)]
    counts = Counter(name for _, name in named)
    weights, wanted = accumulate(1 / counts[name] for _, name in named), SHARE * len(counts) * (1 - 1e-12)
    return next((value for (value, _), sofar in zip(named, weights, strict=True) if sofar >= wanted), float("inf"))


def _counts(rows: Sequence[Outcome], inside: Sequence[bool]) -> Mapping[str, Mapping[str, tuple[int, int]]]:
    """Return {grouping: {group: (runs, those inside when their publisher is left out)}}."""
    found: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in WORDS}
    for one, held in zip(rows, inside, strict=True):
        for name, group in kind(one).groups.items():
            runs, kept = found[name].get(group, (0, 0))
            found[name][group] = runs + 1, kept + held
    return {name: dict(sorted(groups.items())) for name, groups in found.items()}
