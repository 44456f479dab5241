"""Results that were edited, damaged, or written by another release: one sentence with the file and the key, or a new answer."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from commands import command
from stored import sweep_row

from clustersim.config.results import Manifest, SweepLine, parsed
from clustersim.report import store
from clustersim.sweeps import log

RUN = tuple(shlex.split("run nvlink_h100_4 gpt2_large --tp 2 --pp 2 --predictor roofline --quiet --out run"))
SWEEP = tuple(shlex.split("sweep nvlink_h100_4 gpt2_large --tp 1,2 --predictor roofline --workers 1 --out sweep"))
READERS = ("explain", "report", "trace", "rerun")
CUT_OFF = "is cut off or damaged, so that nothing says what was run; run the simulation again"


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Return a folder with a run and a sweep in it."""
    place = tmp_path_factory.mktemp("kept")
    for words in (RUN, SWEEP):
        command(*words, cwd=place)
    return place


@pytest.fixture
def results(kept, tmp_path, call):
    """Copy them into the working folder."""
    for name in ("run", "sweep"):
        shutil.copytree(kept / name, tmp_path / name)
    return tmp_path


def edit(path: Path, text: str, value: object) -> None:
    """Put a value at a dotted key of a JSON file."""
    data = json.loads(path.read_text())
    here = data
    *above, last = text.split(".")
    for part in above:
        here = here[part]
    here[last] = value
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("options", 3), ("options.overrides", 1.0), ("options.overrides", None), ("options.plugins", [3]),
        ("options.flops", "half"), ("options.engine", "other"), ("inputs", []), ("inputs.topology", 3),
        ("inputs.topology.path", 3), ("inputs.workload.sha256", None), ("question", 1), ("versions", "x"),
        ("format", 2),
    ],
)  # fmt: skip
def test_a_manifest_that_says_nothing_that_was_run_is_one_sentence(results, call, key, value):
    edit(results / "run/manifest.json", key, value)
    for words in ((one, "run") for one in READERS):
        code, out, err = call(*words)
        assert (code, out) == (2, ""), words
        assert err.startswith(
            f"clustersim: run/manifest.json: is damaged, or of another release ({key.split('.')[0]}"
        ), err
        assert err.endswith("and so says nothing that was run; run the simulation again\n")
    assert call("compare", "run", "run")[0] == 2


@pytest.mark.parametrize("text", ['{"clustersim": "0.1.0", "comm', "", "{}", "[]"])
def test_a_manifest_that_is_cut_off_is_one_sentence(call, tmp_path, text):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/manifest.json").write_text(text)
    for words in (*((one, "a") for one in (*READERS, "explore")), ("compare", "a", "a")):
        assert call(*words) == (2, "", f"clustersim: a/manifest.json: {CUT_OFF}\n"), words


@pytest.mark.parametrize("key", ["topology", "options.overrides.x", "seed"])
@pytest.mark.parametrize("value", ["1e300", "1e999", "Infinity", "NaN", "9" * 50])
def test_a_number_without_end_is_one_sentence(results, call, key, value):
    path = results / "run/manifest.json"
    edit(path, key, "HERE")
    path.write_text(path.read_text().replace('"HERE"', value))
    code, _out, err = call("rerun", "run")
    assert (code, len(err.splitlines())) in ((2, 1), (0, 0)), err
    assert code == 2 or (key, value) == ("topology", "1e300")  # a key that nobody asks for


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("step_time_s", "x", "step_time_s: x must be a number"),
        ("step_time_s", 0, "step_time_s: 0 must be greater than 0"),
        ("breakdown_s", 5, "breakdown_s: 5 must be a mapping of keys"),
        ("breakdown_s.compute", None, "breakdown_s.compute is empty; it must be a number"),
        ("critical_path.by_link", [3], "critical_path.by_link.0: 3 must be a mapping of keys"),
        ("cluster", 3, "cluster: 3 must be a mapping of keys"),
    ],
)
def test_a_summary_that_cannot_be_compared_names_its_key(results, call, key, value, sentence):
    edit(results / "run/summary.json", key, value)
    said = f"clustersim: run/summary.json: {sentence}; run the simulation again\n"
    assert call("compare", "run", "run") == (2, "", said)


def test_an_infinite_step_is_no_step(results, call):
    path = results / "run/summary.json"
    edit(path, "step_time_s", "HERE")
    path.write_text(path.read_text().replace('"HERE"', "1e999"))
    for words in (("rerun", "run"), ("compare", "run", "run")):
        code, out, err = call(*words)
        assert (code, out) == (2, "")
        assert err.startswith("clustersim: run/summary.json: not valid JSON (1e999 is not a finite number)")


def test_a_sweep_without_its_log_begins_anew_and_has_nothing_to_show(results, call):
    before = (results / "sweep/points.jsonl").read_text()
    (results / "sweep/points.jsonl").unlink()
    for words in (("explore", "sweep"), ("plot", "sweep", "--kind", "scaling", "--out", "a.svg")):
        code, out, err = call(*words)
        assert (code, out) == (2, "")
        assert err == "clustersim: sweep: has no points yet; run the sweep again, which goes on from there\n"
    code, _, err = call(*SWEEP, "--quiet")
    assert (code, err) == (0, "")
    assert (results / "sweep/points.jsonl").read_text() == before


def test_a_log_that_cannot_be_read_is_one_sentence(results, call):
    (results / "sweep/points.jsonl").unlink()
    (results / "sweep/points.jsonl").mkdir()
    for words in (("explore", "sweep"), (*SWEEP, "--quiet")):
        code, out, err = call(*words)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert "points.jsonl" in err


@pytest.mark.parametrize("value", ["Infinity", "NaN", "1e999", '"x"', "-1", "null", "true", "[1]", "9" * 400])
@pytest.mark.parametrize("column", ["step_time_s", "tokens_per_s", "tp", "mfu", "peak_memory_bytes"])
def test_a_row_with_a_number_that_is_none_is_simulated_again(tmp_path, column, value):
    text = json.dumps({"point": {"parallelism.tp": 1}, "row": sweep_row(**{column: "HERE"})}).replace('"HERE"', value)
    whole = SweepLine.written({"parallelism.tp": 2}, sweep_row(tp=2))
    (tmp_path / log.LOG).write_text(f"{text}\n{whole}")
    points, rows, damaged = log.read(tmp_path)
    if (column, value) == ("mfu", "-1") or (column, value) == ("peak_memory_bytes", "-1"):
        assert (len(rows), damaged) == (2, 0)
        return
    assert (list(points.values()), damaged) == ([{"parallelism.tp": 2}], 1)
    assert list(rows.values()) == [sweep_row(tp=2)]


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{}", '{"point": 3, "row": {}}', '{"point": {}, "row": []}', '{"point": {}}']
)
def test_a_line_that_is_none_is_damaged(tmp_path, text):
    (tmp_path / log.LOG).write_text(f"{text}\n")
    assert log.read(tmp_path) == ({}, {}, 1)


def test_every_row_that_a_sweep_writes_is_read_back(results):
    lines = (results / "sweep/points.jsonl").read_text().splitlines()
    assert len(log.read(results / "sweep")[1]) == len(lines) == 2
    assert [SweepLine.written(**parsed(line)) for line in lines] == [f"{line}\n" for line in lines]


def test_what_is_written_is_what_is_read_and_keys_of_later_releases_stay(tmp_path):
    asked = store.question_of(
        "sweep", {"topology": Path("c.yaml")}, {"c.yaml": b""}, {"overrides": {"a.b": 1}, "costs": {"x": [1.5]}}
    )
    store.write_manifest(tmp_path, asked, points=[{"a": 1}], complete=True)
    data = json.loads((tmp_path / "manifest.json").read_text())
    assert data["options"] == {"overrides": {"a.b": 1}, "costs": {"x": [1.5]}}
    assert list(data) == [*list(Manifest.model_fields)[:-1]]
    (tmp_path / "manifest.json").write_text(json.dumps({**data, "later": [1]}))
    found = store.manifest(tmp_path)
    assert found is not None
    assert found.written() == {**data, "later": [1]}
    assert (store.question_digest(tmp_path), store.complete(tmp_path)) == (asked.question, True)
