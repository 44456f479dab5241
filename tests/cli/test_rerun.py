"""A result folder, simulated again from its manifest."""

import json
import re
import shlex
import shutil

import pytest
import yaml
from commands import command
from documents import ROOT

from clustersim.errors import InputError
from clustersim.question import StoredRun

OPTIONS = shlex.split("--tp 2 --pp 2 --predictor roofline --set model.vocab=50304 --flops full --engine auto")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("rerun")
    command("run", "nvlink_h100_4", "gpt2_large", *OPTIONS, "--out", "result", "--quiet", cwd=place)
    return place / "result"


def test_the_same_answer_to_the_last_bit(folder):
    kept = json.loads((folder / "summary.json").read_text())
    again = json.loads(json.dumps(StoredRun.of(folder).again().summary))
    assert again == {key: kept[key] for key in again}


@pytest.mark.parametrize("prices", [(), ("--price", "1")])
def test_a_report_has_the_prices_of_the_run(call, tmp_path, prices):
    words = ("run", "nvlink_h100_4", "gpt2_large", *OPTIONS, "--quiet", "--html", "--out", "result", *prices)
    assert call(*words)[0] == 0
    assert call("report", "result", "--out", "later.html", "--quiet")[0] == 0
    both = [(tmp_path / name).read_text() for name in ("result/report.html", "later.html")]
    first, later = (re.search(r'"costs": ?(\{[^}]*"kwh"[^}]*\})', page).group(1) for page in both)
    assert later == first


def test_the_command_asks_the_same(folder, tmp_path, call):
    command = StoredRun.of(folder).command.split()
    assert command[:4] == ["clustersim", "run", "nvlink_h100_4", "gpt2_large"]
    assert sorted(command[4:]) == sorted(OPTIONS)
    code, _out, err = call(*command[1:], "--out", "result", "--quiet")
    assert code == 0, err
    questions = [json.loads((one / "manifest.json").read_text())["question"] for one in (folder, tmp_path / "result")]
    assert questions[0] == questions[1]


def test_inputs_that_have_changed_are_named(tmp_path, call):
    workload = tmp_path / "mine.yaml"
    data = yaml.safe_load((ROOT / "docs/examples/pipeline.yaml").read_text())
    workload.write_text(yaml.safe_dump(data))
    code, _out, err = call("run", "nvlink_h100_4", "mine.yaml", "--out", "result", "--quiet")
    assert code == 0, err
    manifest = json.loads((tmp_path / "result/manifest.json").read_text())
    manifest["inputs"]["workload"]["path"] = str(workload)
    (tmp_path / "result/manifest.json").write_text(json.dumps(manifest))
    data["training"]["seq"] = 512
    workload.write_text(yaml.safe_dump(data))
    with pytest.raises(
        InputError, match=r"mine.yaml: has changed since .*result was written; run it again: clustersim run"
    ):
        StoredRun.of(tmp_path / "result").again()


@pytest.mark.parametrize(
    "content", ["", "{}", '{"clustersim": "0.1.0", "command": "sweep"}', '{"clustersim": "0.1.0", "command": "run"}']
)
def test_what_is_no_run_is_said_so(tmp_path, content):
    if content:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"give the folder of a run|not of a run|run the simulation again"):
        StoredRun.of(tmp_path).again()


def test_plugins_are_asked_for(folder, tmp_path):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["options"]["plugins"] = ["package.module:function"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"add --plugins package\.module:function"):
        StoredRun.of(tmp_path).again()


def test_the_command_says_whether_the_same_comes_out(folder, call, tmp_path):
    code, out, err = call("rerun", str(folder))
    assert (code, err) == (0, "")
    assert out.startswith("clustersim run nvlink_h100_4 gpt2_large")
    assert "the same comes out: " in out
    assert json.loads(call("rerun", str(folder), "--json")[1])["same"] is True
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    kept = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps({**kept, "step_time_s": 2 * kept["step_time_s"]}))
    code, out, _ = call("rerun", str(other))
    assert code == 1
    assert "another result comes out: " in out
    assert out.rstrip().endswith("other than in summary.json: step_time_s")
    (other / "summary.json").write_text("[")
    code, _, err = call("rerun", str(other))
    assert code == 2
    assert f"{other}/summary.json: not valid JSON" in err
    code, _, err = call("rerun", str(tmp_path))
    assert code == 2
    assert "give the folder of a run" in err
