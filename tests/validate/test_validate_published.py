"""The shipped table of published runs, and the page about all of them: no publisher's forecasts may get worse unseen."""

import csv
import os
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import validation_page

from clustersim.report.store import question_of
from clustersim.validate import log, run
from clustersim.validate.evaluate import evaluate
from clustersim.validate.report import report
from clustersim.validate.runs import PUBLISHED, read
from clustersim.validate.strangers import Knowledge

WORSE = 0.02
"""By how much the mean error of a publisher may grow before someone must say why: two points …"""
MORE_BIASED = 0.03
"""… and its bias three."""
UPDATE = "scripts/update-validation records the forecasts anew; the commit says why they got worse"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found():
    return {one.id: evaluate(one, view=Knowledge(one.publisher)) for one in read(PUBLISHED)}


def recorded():
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return {row["id"]: float(row["predicted_s"]) for row in csv.DictReader(file)}


@pytest.mark.slow
def test_every_shipped_run_has_a_public_source_and_is_simulated(found):
    runs_of = Counter(one.publisher for one in read(PUBLISHED))
    assert len(found) >= 120
    assert len(runs_of) >= 23
    assert max(runs_of.values()) <= 4
    assert all(one.source for one in read(PUBLISHED))
    assert {one["id"]: one["reason"] for one in found.values() if one["status"] != "ok"} == {}


@pytest.mark.slow
def test_the_forecasts_of_no_publisher_got_worse(found):
    now, then = defaultdict(list), defaultdict(list)
    for name, forecast in recorded().items():
        one = found[name]
        now[one["publisher"]].append(one["error"])
        then[one["publisher"]].append(forecast / one["measured_s"] - 1)
    for publisher, errors in now.items():
        count = len(errors)
        mean, before = (sum(map(abs, these)) / count for these in (errors, then[publisher]))
        assert mean <= before + WORSE, f"{publisher}: mean error {mean:.1%}, recorded {before:.1%}; {UPDATE}"
        bias, before = (abs(sum(these)) / count for these in (errors, then[publisher]))
        assert bias <= before + MORE_BIASED, f"{publisher}: bias {bias:.1%}, recorded {before:.1%}; {UPDATE}"


@pytest.mark.slow
def test_the_recorded_forecasts_are_still_about_what_comes_out(found):
    moved = {name: found[name]["predicted_s"] / forecast - 1 for name, forecast in recorded().items()}
    far = {name: f"{change:+.1%}" for name, change in moved.items() if abs(change) > 0.1}
    assert not far, f"{far}; {UPDATE}"


def block(path, name):
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.search(rf"<!-- begin {name} -->\n(.*?)\n<!-- end {name} -->", text, re.S)[1]


def test_readme_and_page_tell_the_same_and_the_page_is_short():
    assert block("docs/validation.md", "publishers").startswith(block("README.md", "validation"))
    page = (ROOT / "docs/validation.md").read_text(encoding="utf-8")
    assert page.index("<!-- begin publishers -->") < page.index("##")
    assert len(re.findall(r"[^\s|]+", page)) <= 2500


def test_the_page_has_the_record_of_first_contacts():
    assert validation_page.first_contacts() == block("docs/validation.md", "contacts")
    assert "a8f545ed" in validation_page.first_contacts()


@pytest.mark.slow
@pytest.mark.data
def test_no_figure_of_the_page_is_older_than_the_code(tmp_path):
    runs = run.load(validation_page.complete_runs(Path(os.environ["CLUSTERSIM_DATA"]) / "validation"))
    asked = question_of("validate", {}, {}, {})
    with log.opened(tmp_path / "out", asked) as kept:
        outcomes = run.simulate(runs, [], 1, kept)
    assert validation_page.publishers(
        report(outcomes[None], unseen=outcomes[run.UNSEEN], strangers=outcomes[run.STRANGER])
    ) == block("docs/validation.md", "publishers"), UPDATE
