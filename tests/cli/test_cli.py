"""The command line: what it imports, prints and writes, and that the same inputs give the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clustersim import __version__
from clustersim.cli import progress
from clustersim.cli.main import main

ROOT = Path(__file__).parents[2]
CLUSTER = str(ROOT / "topologies" / "superpod_h100_128.yaml")
NODE = str(ROOT / "topologies" / "hgx_h100_8.yaml")
JOB = str(ROOT / "workloads" / "gpt3_2.7b.yaml")
SPLIT = ["--tp", "2", "--pp", "2", "--dp", "2", "--global-batch", "32", "--predictor", "roofline"]
RUN = ["run", NODE, JOB, *SPLIT]
NAME = "hgx_h100_8-gpt3_2.7b-tp2-pp2-dp2-global_batch32-predictor-roofline"
FILES = shlex.split("links.parquet manifest.json memory.parquet ranks.parquet spans.parquet summary.json trace.json.gz")


HEAVY = "torch networkx optuna matplotlib plotly ray pandas scipy polars starlette uvicorn"
UNUSED = {
    *shlex.split(HEAVY),
    *("numpy.char", "numpy.ma"),
    *(f"clustersim.cli.{other}" for other in ("sweep", "lab", "validate", "predict", "collective", "listing", "show")),
}
"""What a run has no use for."""


def imported(*arguments: str) -> set[str]:
    """Return the modules that a command line imports."""
    code = (
        "import sys\nsys.argv[0] = 'clustersim'\nfrom clustersim.cli.main import main\n"
        "try:\n    main()\nfinally:\n    print('modules:', *sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("modules: ")[2].split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []], ids=str)
def test_help_imports_nothing_heavy(arguments):
    heavy = {"torch", "numpy", "polars", "networkx", "pydantic", "yaml", "simpy", "rich", "safetensors"}
    assert not imported(*arguments) & heavy


@pytest.mark.parametrize(("predictor", "files"), [("roofline", ["--no-save"]), ("neusight", [])])
def test_run_imports_neither_torch_nor_what_it_does_not_need(predictor, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = imported(*RUN[:-1], predictor, *files, "--quiet")
    assert "simpy" in found
    assert not found & UNUSED
    plugins = [name.split(".")[1:4] for name in found if re.match(r"clustersim\.\w+\.kinds\.", name)]
    used = {room: {one[2] for one in plugins if one[0] == room} for room in ("topology", "predictors", "schedules")}
    assert used == {"topology": {"single_node"}, "predictors": {predictor}, "schedules": {"one_f_one_b"}}


def test_old_names_are_kept_and_not_advertised(call):
    """`share` is `jobs`, `show --schedule` is `schedule`."""
    assert [line.split()[0] for line in call("--help")[1].splitlines() if line.startswith("  share")] == []
    assert "--schedule" not in call("show", "--help")[1]
    old = call("show", "--schedule", "interleaved", "--stages", "2", "--chunks", "2", "--microbatches", "4")
    assert old == call("schedule", "interleaved", "--pp", "2", "--vpp", "2", "--microbatches", "4")
    job = (NODE, JOB, "--set", "predictor=roofline", "--no-save")
    assert call("share", *job) == call("jobs", *job)


def test_version(call):
    assert call("--version") == (0, f"clustersim {__version__}\n", "")


@pytest.fixture(scope="module")
def summary(tmp_path_factory) -> dict:
    command = [sys.executable, "-m", "clustersim", *RUN, "--set", "training.recompute=selective", "--json"]
    folder = tmp_path_factory.mktemp("json")
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    data = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert data == json.loads((folder / "results" / f"{NAME}-recompute-selective" / "summary.json").read_text())
    return data


def test_json_has_every_promised_key(summary):
    speed = {"step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu", "flop_rule"}
    assert speed <= summary.keys()
    parts = {"compute", "tp", "pp", "dp", "ep", "cp", "bubble", "optimizer"}
    assert summary["breakdown_s"].keys() == parts
    assert summary["critical_path_s"].keys() == parts - {"bubble"}
    assert {"fits", "peak_bytes", "capacity_bytes", "by_pipeline_rank"} <= summary["memory"].keys()
    assert {"ranks", "rank_classes", "events"} <= summary["simulated"].keys()
    assert summary["busiest_links"]
    assert summary["predictor"]["name"] == "roofline"
    assert summary["predictor"]["error"]
    assert summary["not_modelled"]


def test_json_is_consistent(summary):
    split, step = summary["parallelism"], summary["step_time_s"]
    gpus = split["tp"] * split["pp"] * split["dp"]
    assert gpus == summary["simulated"]["ranks"]
    assert gpus + summary["simulated"]["idle_gpus"] == summary["cluster"]["gpus"]
    assert split["microbatches"] * split["micro_batch"] * split["dp"] == split["global_batch"]
    for parts in (summary["breakdown_s"], summary["critical_path_s"]):
        assert sum(parts.values()) == pytest.approx(step, rel=1e-9)
        assert all(v >= 0 for v in parts.values())
    assert summary["tokens_per_s"] == pytest.approx(split["global_batch"] * 2048 / step, rel=1e-12)
    assert summary["tokens_per_s_per_gpu"] == pytest.approx(summary["tokens_per_s"] / gpus, rel=1e-12)
    assert summary["model_tflops_per_gpu"] == pytest.approx(summary["model_flop"] / step / gpus / 1e12, rel=1e-12)
    assert summary["mfu"] == pytest.approx(summary["model_tflops_per_gpu"] / summary["peak_tflops_per_gpu"], rel=1e-12)
    assert summary["mfu"] < summary["hfu"] < 1


def test_mfu_follows_its_stated_rule(summary):
    """3 × forward of (4h² of attention + 8h² of MLP) a layer, half of 4·s·h for causal scores, and the head."""
    h, layers, s, vocab = 2560, 32, 2048, 50304 + 128 * (-(50304 // 128) % 2)
    forward = 2 * 32 * s * (layers * (12 * h * h + s * h) + h * vocab)
    assert summary["model_flop"] == pytest.approx(3 * forward, rel=1e-9)
    assert "causal attention counted half" in summary["flop_rule"]


def test_memory_adds_up(summary):
    memory = summary["memory"]
    totals = [sum(v for k, v in m.items() if k != "total_bytes") for m in memory["by_pipeline_rank"]]
    assert totals == pytest.approx([m["total_bytes"] for m in memory["by_pipeline_rank"]], rel=1e-12)
    assert memory["peak_bytes"] == max(m["total_bytes"] for m in memory["by_pipeline_rank"])
    assert memory["fits"] == (memory["verdict"] == "likely")


def test_output_that_is_not_unicode_still_prints():
    command = [sys.executable, "-m", "clustersim", *RUN, "--no-save"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert b"step time" in done.stdout
    assert done.stderr == b""


def test_no_save_writes_nothing(call):
    assert call(*RUN, "--no-save")[0] == 0
    assert not list(Path().iterdir())


def test_same_inputs_same_bytes(tmp_path):
    """In processes with different hash seeds, so that no order of a set gets into a result."""
    results = []
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "clustersim", *RUN, "--out", "x"]
        folder = tmp_path / seed
        folder.mkdir()
        subprocess.run(command, check=True, cwd=folder, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
        results.append({p.name: p.read_bytes() for p in (folder / "x").iterdir()})
    assert results[0].keys() == set(FILES)
    assert [name for name in FILES if results[0][name] != results[1][name]] == []


def contents(folder: str | Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt(), ZeroDivisionError()])
@pytest.mark.parametrize("victim", ["write_events", "links_table"])
def test_an_interrupted_save_leaves_the_old_result(call, monkeypatch, failure, victim):
    assert call(*RUN, "--out", "a/x")[0] == 0
    before = contents("a/x")

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(f"clustersim.report.result.{victim}", fail)
    command = [*RUN, "--micro-batch", "2", "--force", "--out"]
    if isinstance(failure, ZeroDivisionError):
        for target in ("a/x", "b/c/x"):
            with pytest.raises(ZeroDivisionError):
                call(*command, target)
    else:
        code, sentence = (1, "No space left") if isinstance(failure, OSError) else (130, "clustersim: interrupted\n")
        for target in ("a/x", "b/c/x"):
            got, out, err = call(*command, target)
            assert (got, out, err.count("\n")) == (code, "", 1)
            assert sentence in err
    assert contents("a/x") == before
    assert [str(p) for p in Path().rglob("*")].count("a/x") == 1
    assert sorted(p.name for p in Path().rglob("*") if p.is_dir()) == ["a", "x"]


def test_a_failed_replacement_brings_the_old_result_back(call, monkeypatch):
    assert call(*RUN, "--out", "x")[0] == 0
    before, rename = contents("x"), Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == "new" and Path(target).name == "x":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    code, _, err = call(*RUN, "--micro-batch", "2", "--force", "--out", "x")
    assert (code, "Input/output error" in err) == (2, True)
    assert contents("x") == before
    assert [p.name for p in Path().iterdir()] == ["x"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "clustersim", *RUN, "--no-save"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "clustersim: standard output cannot be written (No space left on device); send it elsewhere\n"


def test_an_input_that_is_a_pipe(tmp_path):
    """It can be read once only: its hash is that of what was read."""
    command = f"cat '{JOB}' | '{sys.executable}' -m clustersim run '{NODE}' /dev/stdin --out x {' '.join(SPLIT)}"
    subprocess.run(["bash", "-c", command], capture_output=True, check=True, cwd=tmp_path)
    inputs = json.loads((tmp_path / "x" / "manifest.json").read_text())["inputs"]
    assert inputs["workload"] == {
        "path": "/dev/stdin",
        "sha256": hashlib.sha256(Path(JOB).read_bytes()).hexdigest(),
        "text": Path(JOB).read_text(),
    }
    rerun = [sys.executable, "-m", "clustersim", "rerun", "x"]
    said = subprocess.run(
        rerun, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    ).stdout
    assert "the same comes out" in said


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_leaves_one_line_and_no_files(tmp_path):
    command = [sys.executable, "-m", "clustersim", "run", CLUSTER, JOB, "--no-fold", "--predictor", "roofline"]
    command += ["--pp", "8", "--global-batch", "65536"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (130, "", "clustersim: interrupted\n")
    assert not list(tmp_path.iterdir())


def test_kernels_on_a_gpu_have_seconds_between_two_ends(call):
    code, out, err = call("kernels", JOB, "--gpu", "h100", "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["kernels"]
    timed = [row for row in rows if row["kind"] != "exchange"]
    assert all(row["seconds"] > 0 for row in timed)
    assert all(row["seconds"] is None for row in rows if row["kind"] == "exchange")
    known = [row for row in timed if row["seconds_low"]]
    assert {"linear", "layernorm"} <= {row["kind"] for row in known}
    assert all(row["seconds_low"] < row["seconds_high"] for row in known)
    code, out, _ = call("kernels", JOB, "--gpu", "h100")
    assert code == 0
    assert all(word in out for word in ("time", "low", "high"))


@pytest.mark.parametrize(
    ("given", "used"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3"), ({"OMP_NUM_THREADS": "2"}, None)]
)
def test_small_matrices_are_multiplied_in_one_thread_unless_the_user_says_otherwise(monkeypatch, capsys, given, used):
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "PYDANTIC_DISABLE_PLUGINS"):
        monkeypatch.setenv(name, "unset")  # so that what main sets is taken back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["clustersim", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert os.environ.get("OPENBLAS_NUM_THREADS") == used


def test_a_long_command_says_now_and_then_how_far_it_is_where_there_is_no_terminal(monkeypatch, capsys):
    clock = iter(range(0, 10_000, 5))
    tell = progress.rarely(lambda: next(clock))
    for step in range(1, 40):
        tell(f"simulate: {step} done")
    said = [f"after {5 * step} s: simulate: {step} done" for step in (1, 13, 25, 37)]
    assert capsys.readouterr().err.splitlines() == said
    monkeypatch.setattr(progress, "FIRST", 0.0)
    for variable, silent, lines in ((None, False, 1), (None, True, 0), ("0", False, 0)):
        monkeypatch.delenv("CLUSTERSIM_PROGRESS", raising=False)
        if variable:
            monkeypatch.setenv("CLUSTERSIM_PROGRESS", variable)
        assert list(progress.tracked(iter("abc"), 3, silent)) == list("abc")
        assert capsys.readouterr().err == "after 0 s: simulate: 1 of 3 done\n" * lines
        with progress.progressing(silent) as step:
            step("load")
            step("build")
        assert capsys.readouterr().err == "after 0 s: load\n" * lines


@pytest.mark.parametrize(("engine", "hints"), [("simpy", True), ("auto", False)])
def test_a_run_that_takes_long_names_the_faster_engine(engine, hints, call, monkeypatch):
    monkeypatch.setenv("CLUSTERSIM_PROGRESS", "1")
    said = call(*RUN, "--no-save", "--engine", engine)[2].splitlines()
    simulated = [line for line in said if line.startswith("progress: simulate ")]
    assert simulated and all(line.endswith("% (--engine auto takes less time)") == hints for line in simulated)
