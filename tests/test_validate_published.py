"""The shipped table of published runs: forecasts of no source may get worse unseen."""

import csv
from collections import defaultdict

import pytest

from clustersim.validate.evaluate import evaluate
from clustersim.validate.runs import read
from clustersim.validate.shipped import TABLE

SLACK = 0.005
"""By how much the mean error of a source may grow before someone must say why: half a point."""
UPDATE = "scripts/update-validation records the forecasts anew; the commit says why they got worse"


pytestmark = pytest.mark.slow  # a hundred runs are simulated


@pytest.fixture(scope="module")
def found():
    return {one.id: evaluate(one) for one in read(TABLE)}


def recorded():
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["id"]: float(row["predicted_s"]) for row in csv.DictReader(file)}


def test_every_shipped_run_has_a_public_source_and_is_simulated(found):
    assert 70 <= len(found) <= 100
    assert all(one.source for one in read(TABLE))
    assert {one["id"]: one["reason"] for one in found.values() if one["status"] != "ok"} == {}


def test_the_forecasts_of_no_source_got_worse(found):
    now, then = defaultdict(list), defaultdict(list)
    for name, forecast in recorded().items():
        one = found[name]
        now[one["source"]].append(abs(one["error"]))
        then[one["source"]].append(abs(forecast / one["measured_s"] - 1))
    for source, errors in now.items():
        mean, before = sum(errors) / len(errors), sum(then[source]) / len(errors)
        assert mean <= before + SLACK, f"{source}: mean error {mean:.1%}, recorded {before:.1%}; {UPDATE}"


def test_the_recorded_forecasts_are_still_about_what_comes_out(found):
    moved = {name: found[name]["predicted_s"] / forecast - 1 for name, forecast in recorded().items()}
    far = {name: f"{change:+.1%}" for name, change in moved.items() if abs(change) > 0.1}
    assert not far, f"{far}; {UPDATE}"
