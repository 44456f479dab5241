"""`import clustersim as cs`: what it offers, how little it imports, and that it says what the command line says."""

import json
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import clustersim as cs
from clustersim.simulation import simulate

ROOT = Path(__file__).parents[1]
FAST = {"predictor": "roofline"}


def test_a_plain_import_loads_nothing_heavy():
    code = "import sys, json, clustersim; print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "polars", "pydantic", "simpy", "yaml", "typer"} & set(json.loads(found))


def test_the_page_has_a_row_for_every_public_name():
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(cs.__all__)
    assert [name for name in cs.__all__ if not hasattr(cs, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = cs.simulat


def test_names_paths_and_objects_give_what_the_pipeline_gives():
    plain = simulate("hgx_h100_8", "gpt3_xl", {"parallelism.tp": 2, **FAST}).summary
    results = [
        cs.simulate("hgx_h100_8", "gpt3_xl", tp=2, **FAST),
        cs.simulate(ROOT / "topologies/hgx_h100_8.yaml", cs.load_workload("gpt3_xl", **FAST), tp=2),
        cs.simulate(cs.load_cluster("hgx_h100_8"), cs.load_workload("gpt3_xl", tp=2, **FAST)),
        cs.simulate("hgx_h100_8", cs.load_workload("gpt3_xl", tp=4, **FAST), **{"parallelism.tp": 2}),
    ]
    assert [one.step_time for one in results] == [plain["step_time_s"]] * 4
    assert [one.memory for one in results] == [plain["memory"]["peak_bytes"]] * 4


def test_a_result_is_frozen_and_has_frames_and_a_table():
    result = cs.simulate("hgx_h100_8", "gpt3_xl", tp=2, **FAST)
    with pytest.raises(FrozenInstanceError):
        result.found = None
    assert result.spans["end_s"].max() == pytest.approx(result.step_time)
    assert result.links.columns == ["tier", "index", "capacity_bytes_per_s", "bytes", "utilization"]
    assert "<th>step time</th>" in result._repr_html_()


def test_bad_input_is_an_error_of_one_sentence():
    with pytest.raises(cs.ClustersimError, match=r"parallelism\.tp: 3 does not divide"):
        cs.simulate("hgx_h100_8", "gpt3_xl", tp=3)
