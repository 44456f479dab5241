"""`clustersim init`: what it writes runs, also with every commented line in force, and nothing is lost."""

import json
import re

import pytest
from jsonschema import Draft7Validator

from clustersim.cli.schema import document
from clustersim.config.yaml import read
from clustersim.simulation import simulate

COMMENTED = re.compile(r"^(\s*)# (\w+: .*|\w+:|  - \{.*)$", re.MULTILINE)
NAMES = ["cluster.yaml", "workload.yaml"]


def test_what_it_writes_runs_as_it_is(call, tmp_path):
    code, out, err = call("init", "mine/deep")
    assert (code, err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "mine/deep").iterdir()) == NAMES
    [command] = re.findall(r"clustersim (run .*)", out)
    code, out, err = call(*command.split(), "--no-save")
    assert (code, err) == (0, "")
    assert "my-model on my-cluster: 128 × h100-sxm" in out
    assert "memory      likely fits" in out


def test_every_line_that_is_commented_out_works_too(call, tmp_path):
    call("init")
    for name in NAMES:
        path = tmp_path / name
        text, count = COMMENTED.subn(r"\1\2", path.read_text(encoding="utf-8"))
        assert count >= 4
        path.write_text(text.replace("  node: hgx-h100 ", "  # ", 1), encoding="utf-8")
        what = name.removesuffix(".yaml")
        assert list(Draft7Validator(document(what)).iter_errors(read(path).data)) == []
    summary = simulate(*NAMES, {"predictor": "roofline"}).summary
    assert summary["cluster"]["gpu"] == "h200-sxm"


def test_nothing_is_overwritten_without_force(call, tmp_path):
    own = tmp_path / "workload.yaml"
    own.write_text("mine")
    code, out, err = call("init")
    assert (code, out) == (2, "")
    assert err == "clustersim: workload.yaml: is there already; give another folder, or replace it with --force\n"
    assert own.read_text() == "mine"
    assert not (tmp_path / "cluster.yaml").exists()
    assert call("init", "--force")[0] == 0
    assert own.read_text().startswith("# A training job")
    code, _, err = call("init", "workload.yaml")
    assert code == 2
    assert "workload.yaml: cannot be written" in err


@pytest.mark.parametrize("name", NAMES)
def test_schemas_lie_beside_the_files_that_name_them(call, tmp_path, name):
    assert call("init", "--schemas")[0] == 0
    [schema] = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", (tmp_path / name).read_text(), re.MULTILINE)
    assert (
        list(Draft7Validator(json.loads((tmp_path / schema).read_text())).iter_errors(read(tmp_path / name).data)) == []
    )
