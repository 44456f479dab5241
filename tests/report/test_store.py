"""Folders and files of results: nothing of anybody else's is ever replaced, and no result of another question unasked."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from clustersim import writing
from clustersim.errors import DiskFullError
from clustersim.report import names, store
from clustersim.report.store import question_of
from clustersim.sweeps import log
from clustersim.sweeps import run as sweeps

ROOT = Path(__file__).parents[2]
NODE = str(ROOT / "topologies" / "hgx_h100_8.yaml")
JOB = str(ROOT / "workloads" / "gpt3_xl.yaml")
FAST = ["--predictor", "roofline", "--global-batch", "64"]
RUN = ["run", NODE, JOB, *FAST]
SWEEP = ["sweep", NODE, JOB, *FAST, "--workers", "1"]
SHARE = ["share", NODE, JOB, *FAST]
Call = Callable[..., tuple[int, str, str]]


def refused(call: Call, *arguments: str) -> str:
    """Return the one sentence with which a command refuses, before any simulation."""
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err


FOREIGN = {
    "a manifest of another program": {"manifest.json": "{}", "src": None},
    "a manifest that is no JSON": {"manifest.json": "x"},
    "a version that is no text": {"manifest.json": '{"clustersim": 1}'},
    "one more file": {"manifest.json": '{"clustersim": "0.1.0"}', "note.txt": "mine"},
    "a folder": {"manifest.json": '{"clustersim": "0.1.0"}', "spans.parquet": None},
    "only files": {"summary.json": "{}"},
}


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
@pytest.mark.parametrize("command", [RUN, [*SWEEP, "--tp", "1"], SHARE], ids=lambda c: c[0])
@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_folder_that_is_no_result_is_never_touched(call, content, command, force):
    place = Path("p")
    place.mkdir()
    for name, text in content.items():
        if text is None:
            (place / name).mkdir()
            (place / name / "a.js").write_text("code")
        else:
            (place / name).write_text(text)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert "has files that do not belong to a result" in refused(call, *command, "--out", "p", *force)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_a_working_folder_with_files_is_refused_before_the_simulation(call):
    Path("note.txt").touch()
    assert ".: has files that do not belong to a result (note.txt)" in refused(call, *RUN, "--out", ".")
    assert [path.name for path in Path().iterdir()] == ["note.txt"]


def test_an_empty_working_folder_takes_a_result_and_the_same_again_but_no_other(call):
    assert call(*RUN, "--out", "named", "-q")[0] == 0
    place = Path("empty")
    place.mkdir()
    os.chdir(place)
    for _ in range(2):
        assert call(*RUN, "--out", ".", "-q") == (0, "", "")
        assert sorted(path.name for path in Path().iterdir()) == sorted(
            path.name for path in Path("../named").iterdir()
        )
    assert all(path.read_bytes() == (Path("../named") / path.name).read_bytes() for path in Path().iterdir())
    said = refused(call, *RUN, "--pp", "2", "--out", ".", "--force")
    assert ".: is the working folder, which cannot be replaced; name a folder inside with --out" in said


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed_and_stays(call, there):
    Path("link").symlink_to("real")
    if there:
        Path("real").mkdir()
    for command in (RUN, [*RUN, "--force", "--tp", "2"]):
        assert call(*command, "--out", "link", "-q")[0] == 0
        assert Path("link").is_symlink()
        assert (Path("real") / "summary.json").is_file()
    Path("ring").symlink_to("ring")
    refused(call, *RUN, "--out", "ring")


def test_another_question_never_replaces_a_result_unasked(call):
    assert call(*RUN, "--out", "x", "-q")[0] == 0
    before = Path("x/summary.json").read_bytes()
    sentence = refused(call, *RUN, "--tp", "2", "--out", "x")
    assert "x: holds another result (run of hgx_h100_8.yaml, gpt3_xl.yaml); choose another place with --out" in sentence
    assert "or replace it with --force" in sentence
    assert "holds another result" in refused(call, *SHARE, "--out", "x")
    assert "holds another result" in refused(call, *SWEEP, "--tp", "1", "--out", "x")
    assert Path("x/summary.json").read_bytes() == before
    assert call(*RUN, "--out", "x", "-q")[0] == 0  # the same one
    assert call(*RUN, "--tp", "2", "--out", "x", "-q", "--force")[0] == 0
    assert Path("x/summary.json").read_bytes() != before


def test_default_folders_are_named_after_the_question_and_counted_on(call):
    name = "results/hgx_h100_8-gpt3_xl-global_batch64-predictor-roofline"
    assert call(*RUN, "-q")[0] == 0
    assert call(*RUN, "--tp", "2", "-q")[0] == 0
    assert call(*RUN, "--ignore-memory", "-q")[0] == 0
    Path("other").mkdir()
    changed = Path("other/gpt3_xl.yaml")
    changed.write_text(Path(JOB).read_text() + "\n# edited\n")
    for _ in range(2):
        assert f"written to {name}-2/" in call("run", NODE, str(changed), *FAST)[1]
    found = sorted(str(path) for path in Path("results").iterdir())
    assert found == sorted([name, f"{name}-2", f"{name}-ignore-memory", name.replace("-global", "-tp2-global")])


def test_a_name_that_is_no_unicode_gets_a_default_folder(call):
    job = Path(os.fsdecode(b"job-\xff.yaml"))
    try:
        job.write_bytes(Path(JOB).read_bytes())
    except OSError:
        pytest.skip("this file system takes Unicode only")
    assert call("run", NODE, str(job), *FAST, "-q")[0] == 0
    assert [path.name for path in Path("results").iterdir()] == ["hgx_h100_8-job-_-global_batch64-predictor-roofline"]


def test_default_names_fit_every_file_system():
    name = names.default(
        [Path("a" * 250 + ".yaml"), Path("b/c.d.yaml")], {"x.y": "z" * 300, "model.a/b": 4}, {"f": True}
    )
    assert len(name.encode()) <= 160
    assert "/" not in name
    assert name != names.default([Path("a" * 251), Path("b/c.d.yaml")], {"x.y": "z" * 300, "model.a/b": 4}, {"f": True})
    assert (
        names.default(["share", Path("a.b.yaml")], {"p.tp": 4, "p.schedule": "1f1b"}, {})
        == "share-a.b-tp4-schedule-1f1b"
    )
    faults = {"faults": [{"link": "nic[13]", "rate": "3GB/s"}]}
    assert names.default([Path("a.yaml")], faults, {}) == "a-faults-_link_nic_13_rate_3GB_s_"


def test_a_sweep_goes_on_from_its_points(call):
    code, _, _ = call(*SWEEP, "--tp", "1,2", "-q")
    assert code == 0
    [folder] = Path("results").iterdir()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    found = json.loads(call(*SWEEP, "--tp", "1,2", "--json")[1])
    assert (found["points"], found["points_resumed"]) == (2, 2)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    found = json.loads(call(*SWEEP, "--tp", "1,2,4", "--json")[1])
    assert (found["points"], found["points_resumed"]) == (3, 2)
    found = json.loads(call(*SWEEP, "--tp", "8", "--json")[1])
    assert (found["points"], found["points_resumed"]) == (1, 0)
    assert len(log.read(folder)[1]) == 4
    assert ", 1 of them before" in call(*SWEEP, "--tp", "8")[1]
    assert json.loads(call(*SWEEP, "--tp", "1", "--set", "clocks=boost", "--json")[1])["points_resumed"] == 0
    assert len(list(Path("results").iterdir())) == 2


def test_an_axis_that_is_new_asks_for_nothing_new_at_the_value_it_had(call):
    """The rows are those of a sweep from nothing; a key that was said before and no longer is likewise."""
    assert call(*SWEEP, "--tp", "1,2", "-q")[0] == 0
    more = [*SWEEP, "--tp", "1,2,4", "--recompute", "none,full", "--nodes", "1"]
    again, fresh = (json.loads(call(*more, "--json", *out)[1]) for out in ([], ["--out", "fresh"]))
    assert (again["points"], again["points_resumed"], fresh["points_resumed"]) == (6, 2, 0)
    assert again["rows"] == fresh["rows"]
    less = json.loads(call(*SWEEP, "--tp", "1,4", "--json")[1])
    assert (less["points"], less["points_resumed"]) == (2, 2)
    assert json.loads(call(*SWEEP, "--tp", "1", "--seq", "512", "--json")[1])["points_resumed"] == 0


def test_damaged_lines_of_a_log_are_left_out_and_simulated_again(call):
    assert call(*SWEEP, "--tp", "1,2,4", "--out", "x", "-q")[0] == 0
    path = Path("x/points.jsonl")
    before = path.read_bytes()
    lines = before.splitlines(keepends=True)
    path.write_bytes(lines[0][:40] + b"\n" + b'{"point": 3, "row": {}}\n' + b"\xff\n" + lines[1] + lines[2][:-20])
    code, out, err = call(*SWEEP, "--tp", "1,2,4", "--out", "x", "--json")
    assert (code, json.loads(out)["points_resumed"]) == (0, 1)
    assert err == "3 damaged lines of x/points.jsonl were left out\n"
    assert path.read_bytes() == before


def test_a_second_sweep_on_a_folder_is_refused(call):
    assert call(*SWEEP, "--tp", "1", "--out", "x", "-q")[0] == 0
    with writing.locked(Path("x") / writing.LOCK):
        for command in ([*SWEEP, "--tp", "1,2"], [*RUN, "--force"]):
            sentence = refused(call, *command, "--out", "x")
            assert f"x: is being written by process {os.getpid()} on " in sentence
    assert call(*SWEEP, "--tp", "1,2", "--out", "x", "-q")[0] == 0


def test_what_is_hashed_and_given_to_workers_is_what_was_read(tmp_path, monkeypatch):
    """The workload is edited as soon as it has been read: every point and the manifest are of the text before."""
    job = tmp_path / "job.yaml"
    job.write_bytes(Path(JOB).read_bytes())
    before, check = job.read_bytes(), sweeps.check

    def edit(files, space):
        case = check(files, space)
        job.write_text("nonsense")
        return case

    monkeypatch.setattr(sweeps, "check", edit)
    space = [{"predictor": "roofline", "training.global_batch": 64, "parallelism.tp": tp} for tp in (1, 2, 4)]
    found = sweeps.run(Path(NODE), job, space, 2, tmp_path / "x")
    assert [row["status"] for row in found.rows] == ["ok"] * 3
    manifest = json.loads((tmp_path / "x" / "manifest.json").read_text())
    assert manifest["inputs"]["workload"]["sha256"] == hashlib.sha256(before).hexdigest()


def test_files_that_inputs_name_count_too(call):
    text = Path(ROOT / "clustersim/hardware/gpus/h100-sxm.yaml").read_text().replace("name: h100-sxm", "name: mine")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("aliases"))
    Path("mine.yaml").write_text(text)
    Path("node.yaml").write_text("cluster: {nodes: 1, node: {extends: hgx-h100, gpus: {model: mine.yaml}}}\n")
    assert call("run", "node.yaml", JOB, *FAST, "--out", "x", "-q")[0] == 0
    inputs = json.loads(Path("x/manifest.json").read_text())["inputs"]
    assert inputs["included 1"]["path"] == "mine.yaml"
    Path("mine.yaml").write_text(text + "\n# edited\n")
    assert "holds another result" in refused(call, "run", "node.yaml", JOB, *FAST, "--out", "x")


# Files of options


WRONG = [
    (
        [*RUN, "--timeline", "a.gif"],
        "--timeline a.gif: the ending says what is written; write a name that ends in .svg or .png or .pdf",
    ),
    ([*RUN, "--timeline", "job.yaml.svg"], "is read as an input"),
    ([*RUN, "--timeline", "folder.svg"], "not a file"),
    ([*RUN, "--timeline", "file/a.svg"], "cannot be written"),
    ([*RUN, "--timeline", "x/a.svg", "--out", "x"], "lies in the folder of the result"),
    (["show", NODE, "--draw", "a.gif"], "write a name that ends in .svg or .png"),
    (["show", NODE, "--draw", "node.svg"], "is read as an input"),
    (["show", NODE, "--export", "ns3", "a.yaml"], "write a name that ends in .txt or .topo or without an ending"),
    (["show", NODE, "--export", "graphml", "a.svg"], "write a name that ends in .graphml or .xml"),
    (["show", NODE, "--export", "ns3", "node"], "is read as an input"),
    (["predictor", "train", "linear", "--out", "a.yaml"], "write a name that ends in .safetensors"),
    (["predictor", "show", "-p", "neusight", "--card", "a.py"], "write a name that ends in .md"),
    (["predictor", "profile", "--out", "a.yaml"], "write a name that ends in .csv"),
]


@pytest.mark.parametrize(
    ("arguments", "what"), WRONG, ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else ""
)
def test_a_file_that_cannot_be_written_is_refused_first(call, monkeypatch, arguments, what):
    monkeypatch.setattr("clustersim.simulation.run", lambda *_, **__: pytest.fail("simulated"))
    Path("file").write_text("")
    Path("folder.svg").mkdir()
    Path("job.yaml.svg").symlink_to(JOB)
    for name in ("node.svg", "node"):
        Path(name).symlink_to(NODE)
    assert what in refused(call, *arguments)


def test_links_are_followed_and_streams_written_through(call, tmp_path):
    Path("link.svg").symlink_to("real.svg")
    os.mkfifo("fifo")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(Path("fifo").read_bytes()))
    reader.start()
    for name in ("link.svg", "fifo", "/dev/null", "/dev/stderr"):
        code, _, err = call(*RUN, "--no-save", "-q", "--timeline", name)
        assert (code, err) == (0, "")
    reader.join(10)
    assert Path("link.svg").is_symlink()
    assert Path("real.svg").read_bytes() == found[0]
    assert found[0].startswith(b"<svg")
    assert Path("/dev/null").is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "link.svg", "real.svg"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    writing.save(path, "old")
    said = r"a: cannot be written \(No space left on device\); make room, or choose"
    with pytest.raises(DiskFullError, match=said), writing.saving(path) as file:
        file.write(b"new")
        raise OSError(28, "No space left on device")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


# What killed processes leave


def abandoned(parent: Path, aside: str | None = None) -> Path:
    """Make what a process killed while saving leaves, with a folder that it had put aside."""
    place = parent / ".clustersim-1-abcdefgh"
    (place / "new").mkdir(parents=True)
    (place / writing.LOCK).write_text("process 1")
    if aside:
        (place / writing.ASIDE / aside).mkdir(parents=True)
        (place / writing.ASIDE / aside / "summary.json").write_text("old")
    return place


def test_leftovers_are_removed_and_what_was_put_aside_comes_back(tmp_path):
    place = abandoned(tmp_path, "x")
    (tmp_path / ".clustersim-1-12345678").write_text("half a file")
    (tmp_path / ".clustersim-notes").write_text("mine")
    writing.clear(tmp_path)
    assert not place.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".clustersim-notes", "x"]
    assert (tmp_path / "x" / "summary.json").read_text() == "old"


def test_the_work_of_a_living_process_is_left_alone(tmp_path):
    with writing.workplace(tmp_path) as place:
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from pathlib import Path; from clustersim import writing; "
             "writing.clear(Path(sys.argv[1]))", str(tmp_path)],
            check=True, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0
        assert place.is_dir()
    assert not list(tmp_path.iterdir())


def test_another_result_that_appears_meanwhile_is_not_replaced(tmp_path):
    def fill(place):
        store.write_manifest(place, one)

    def late(place):
        fill(place)
        assert store.put(tmp_path / "x", two, lambda p: store.write_manifest(p, two)) == tmp_path / "x"

    one, two = question_of("run", {}, {}, {"a": 1}), question_of("run", {}, {}, {"a": 2})
    assert store.put(tmp_path / "x", one, late) == tmp_path / "x-2"
    assert (store.question_digest(tmp_path / "x"), store.question_digest(tmp_path / "x-2")) == (
        two.question,
        one.question,
    )
