"""What `--json` prints: whatever the command, one object with the same top, which no key of a command hides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clustersim import __version__

ROOT = Path(__file__).parents[2]
NODE = str(ROOT / "topologies/hgx_h100_8.yaml")
JOB = str(ROOT / "workloads/gpt2_large.yaml")
FEW = ("--set", "training.global_batch=8", "--set", "predictor=roofline")
SWEEP = ("sweep", NODE, JOB, "--tp", "1,2", *FEW, "--workers", "1")
COMMANDS = {
    "run": ("run", NODE, JOB, *FEW, "--no-save"),
    "share": ("share", NODE, JOB, *FEW, "--no-save"),
    "jobs": ("jobs", NODE, JOB, *FEW, "--no-save"),
    "sweep": SWEEP,
    "show": ("show", NODE),
    "schedule": ("schedule", "1f1b"),
    "show a schedule": ("show", "--schedule", "1f1b"),
    "show both": ("show", NODE, "--schedule", "1f1b"),
    "collective": ("collective", "all_reduce", "-t", NODE, "-b", "1M", "-e", "1M"),
    "kernels": ("kernels", JOB),
    "predict": ("predict", JOB, "--gpu", "h100-sxm", "--predictor", "roofline"),
    "lab show": ("lab", "show", "-p", "linear"),
}


@pytest.fixture
def answer(call):
    """Return a function that runs a command line with --json in an empty folder and gives the object that it prints."""

    def run(*arguments: str) -> dict:
        code, out, err = call(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out, parse_constant=pytest.fail)

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_same_top(answer, name):
    found = answer(*COMMANDS[name])
    assert list(found)[:3] == ["schema_version", "clustersim", "command"]
    assert (found["schema_version"], found["clustersim"]) == (1, __version__)
    assert found["command"] == name.removesuffix(" a schedule").removesuffix(" both")
    assert len(found) > 3


@pytest.mark.parametrize("command", ["run", "share", "jobs"])
def test_summary_json_is_what_json_prints(answer, command):
    found = answer(*COMMANDS[command][:-1], "--out", "x")
    assert json.loads(Path("x/summary.json").read_text(encoding="utf-8")) == found


def test_a_schedule_in_figures(answer):
    """1F1B of 4 stages and 8 microbatches: (m + p - 1)(1 + 2) units, of which (p - 1)·3 are bubble."""
    found = answer("show", "--schedule", "1f1b", "--stages", "4", "--microbatches", "8")["schedule"]
    assert (found["makespan_units"], found["bubble_units"]) == (33, 9)
    assert found["in_flight_by_rank"] == [4, 3, 2, 1]
    assert found["actions_by_rank"][3][:4] == ["3F0", "3B0", "3F1", "3B1"]
    assert answer("schedule", "1f1b", "--pp", "4", "--microbatches", "8")["schedule"] == found


def test_the_rows_of_a_sweep_are_ranked_counted_and_cut_to_top(answer):
    found = answer(*SWEEP[:3], "--tp", "1,2,3,4", *SWEEP[5:])
    assert (found["points"], found["points_simulated"], found["points_illegal"]) == (4, 3, 1)
    assert (found["points_not_fitting"], found["points_failed"]) == (0, 0)
    speeds = [row["tokens_per_s"] for row in found["rows"]]
    assert len(speeds) == 3
    assert speeds == sorted(speeds, reverse=True)
    cut = answer(*SWEEP[:3], "--tp", "1,2,3,4", *SWEEP[5:], "--top", "1")
    assert cut["rows"] == found["rows"][:1]
    assert cut["points_simulated"] == 3
