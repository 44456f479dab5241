"""Mappings that were published as tuned ones: each is a member of the space, likely fits, and no winner is slower than it."""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path

import pytest

from clustersim.config.yaml import parse
from clustersim.frameworks.table import offers
from clustersim.optimization.answer import answer
from clustersim.optimization.objective import objective
from clustersim.optimization.search import Limits, free
from clustersim.parallel.load import unbuilt
from clustersim.sweeps.evaluate import SweepInputs, evaluate
from clustersim.sweeps.space import SweepSpace
from clustersim.validate.adapt import adapt
from clustersim.validate.runs import read

DATA = Path(os.environ.get("CLUSTERSIM_DATA", "")) / "validation"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="$CLUSTERSIM_DATA names no folder of measured tables"),
]
MAPPINGS = (
    *("BLOOM-001", "DGXC-026", "DGXC-096", "DGXC-124", "FMS-003", "KORTH22-005", "KORTH22-007", "MLMREADME-001"),
    *("MLPERF-016", "MLPERF60-009", "MTNLG-003", "NEMO2407-004", "NEMO25-001", "NEMO25-003", "NEMO25-006", "SC21-007"),
    *("SC21-008", "SC21-010", "SMOLLM3-001", "TITAN-011", "MOEZOO-001", "XTUNER-001"),
)
"""Runs on 64 to 11,616 GPUs whose publishers looked for the best mapping: papers, submissions to MLPerf, performance guides."""
DROPPED_CUT = "MLPERF60-009"
"""A run whose stages are written out; the search cuts by what layers compute, which takes up to 3 % longer here."""


@cache
def published():
    files = ("calibration", "dev", "open", "open_4")
    runs = (run for name in files for run in read(DATA / f"training_runs_{name}.csv"))
    return {run.id: run for run in runs if run.id in MAPPINGS}


@cache
def found(name):
    """Return the row of a published mapping, and that of the winner after a few simulations."""
    setup = adapt(published()[name])
    texts = parse(setup.topology, "cluster"), unbuilt(parse(setup.workload, "workload"))
    own = evaluate(SweepInputs(*texts), {})
    space = SweepSpace({}, {}, frozenset(), tuple(free([])))
    best = answer(
        SweepInputs(*texts, unlikely=False), space, objective("soonest"), 1, limits=Limits(simulations=12)
    ).best[0]
    return own, best.row


@pytest.mark.parametrize("name", MAPPINGS)
def test_no_winner_is_slower_than_what_was_published_and_each_is_what_its_framework_offers(name):
    """One test, as workers that each had one of the two would search twice."""
    own, best = found(name)
    assert own["status"] == "ok"
    assert own["memory_verdict"] == "likely"
    most = 1.03 if name == DROPPED_CUT else 1 + 1e-9
    assert best["expected_step_time_s"] <= own["expected_step_time_s"] * most
    assert own["ranks"] >= best["ranks"]
    framework = SweepInputs(*(parse("{}", "x"), unbuilt(parse(adapt(published()[name]).workload, "workload")))).base
    for key, choice in offers(framework.training.framework).items():
        if (column := key.rpartition(".")[2]) in best and not key.startswith("parallelism.overlap"):
            assert best[column] in choice.values, key


def test_promises_of_winners_are_near_what_was_measured():
    """The winner is the split whose forecast errs most to its favour: promises are 7 % too short in the mean, where forecasts of
    the published mappings are 2 %."""
    errors = [math.log(found(name)[1]["expected_step_time_s"] / published()[name].sec_per_iter) for name in MAPPINGS]
    assert abs(math.expm1(sum(errors) / len(errors))) < 0.1
