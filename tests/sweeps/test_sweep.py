"""Sweeps: every point is what `run` gives, illegal ones say why, and nothing that was computed is ever lost."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pytest
from stored import sweep_row
from until import until

from clustersim import preparation
from clustersim.cli.sweep import Shown, point_table
from clustersim.errors import ClustersimError, InputError
from clustersim.pages.sweep import sweep_page
from clustersim.parallel import options as workload_options
from clustersim.parallel.options import KEYS
from clustersim.predictors.load import get
from clustersim.simulation import simulate
from clustersim.sweeps import evaluate, log, run, runner
from clustersim.sweeps.space import SweepSpace, degrees, listed, numbers, points, words
from clustersim.sweeps.table import ranked
from clustersim.units import duration

ROOT = Path(__file__).parents[2]
NODE = ROOT / "topologies" / "hgx_h100_8.yaml"
JOB = ROOT / "workloads" / "gpt3_xl.yaml"
AXES = {"tp": [1, 2, 3], "pp": [1, 2], "micro_batch": [1, 8]}
SPACE = [{"predictor": "roofline", "training.global_batch": 64, **point} for point in points(AXES)]
OPTIONS = ["--tp", "1-3", "--pp", "1,2", "--micro-batch", "1,8", "--set", "training.global_batch=64"]
OPTIONS += ["--predictor", "roofline"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return the rows of a sweep in this process, and its folder."""
    target = tmp_path_factory.mktemp("sweep") / "x"
    return run.run(NODE, JOB, SPACE, 1, target).rows, target


def test_every_point_is_what_run_gives(done):
    for point, row in zip(SPACE, done[0], strict=True):
        if row["status"] == "ok":
            alone = simulate(NODE, JOB, point).summary
            same = {
                k: v if isinstance(v, str) else pytest.approx(v, rel=1e-12) for k, v in evaluate.flat(alone).items()
            }
            assert row == {**row, **same, "player": row["player"]}  # `run` plays in SimPy
        else:
            with pytest.raises(InputError) as error:
                simulate(NODE, JOB, point)
            assert str(error.value) == row["reason"]
    assert len([row for row in done[0] if row["status"] == "ok"]) >= 4


@pytest.fixture
def calls(monkeypatch):
    """A list that grows with each call of the roofline predictor, of which nothing is known yet."""
    kind, made = type(get("roofline")), []
    predict = kind.predict
    monkeypatch.setattr(preparation, "FORECASTS", threading.local())
    monkeypatch.setattr(kind, "predict", lambda self, *arguments: made.append(1) or predict(self, *arguments))
    return made


def test_clusters_of_one_gpu_share_its_forecasts(calls):
    """Also clusters that are built again; another power limit is another GPU."""

    def calls_for(**overrides):
        before = len(calls)
        simulate(NODE, JOB, {"predictor": "roofline", "training.global_batch": 64, **overrides})
        return len(calls) - before

    assert calls_for() > 0
    assert calls_for() == calls_for(**{"cluster.nodes": 1, "cluster.name": "other"}) == 0
    assert calls_for(**{"cluster.node.gpus.power_limit": "500W"}) > 0


def test_kernels_of_clusters_of_one_gpu_are_forecast_in_one_call(calls):
    case = evaluate.load(evaluate.Files("topologies/leaf_spine_32.yaml", "workloads/gpt3_xl.yaml", {}))
    some = [
        {"predictor": "roofline", "cluster.nodes": nodes, "parallelism.tp": tp} for nodes in (2, 4) for tp in (2, 4)
    ]
    evaluate.learn(case, some)
    assert {evaluate.evaluate(case, point)["status"] for point in some} == {"ok"}
    assert len(calls) == 1


def test_the_table_is_ranked(done):
    rows, target = done
    table = pl.read_parquet(target / "points.parquet")
    assert len(table) == len(rows) == len(SPACE)
    ok = table.filter(pl.col("status") == "ok")
    assert table["status"].to_list()[: len(ok)] == ["ok"] * len(ok)
    assert ok["tokens_per_s"].is_sorted(descending=True)
    assert ok["reason"].to_list() == [""] * len(ok)
    by_point = {(row["tp"], row["pp"], row["micro_batch"]): row for row in rows}
    for row in table.to_dicts():
        found = by_point[row["tp"], row["pp"], row["micro_batch"]]
        assert {name: value for name, value in row.items() if value is not None} == found


def test_the_log_is_keyed_by_overrides(done):
    rows, target = done
    assert log.read(target)[1] == {log.key(point): row for point, row in zip(SPACE, rows, strict=True)}
    lines = (target / "points.jsonl").read_text().splitlines()
    assert [json.loads(line)["point"] for line in lines] == SPACE
    assert log.key({"a": 1, "b": 2}) == log.key({"b": 2, "a": 1})
    assert sorted(p.name for p in target.iterdir()) == ["manifest.json", "points.jsonl", "points.parquet"]
    assert json.loads((target / "manifest.json").read_text())["complete"] is True


def test_two_workers_have_the_forecasts_of_one(tmp_path):
    """To the last digit, which a matrix product does not promise when kernels come in other company."""
    space = [{"training.global_batch": 16, **point} for point in points({"tp": [1, 2, 4], "micro_batch": [1, 2]})]
    one, two = (run.run(NODE, JOB, space, workers, tmp_path / str(workers)) for workers in (1, 2))
    assert one.rows == two.rows
    for path in (tmp_path / "1").iterdir():
        assert (tmp_path / "2" / path.name).read_bytes() == path.read_bytes()
    assert one.cpu > 0
    assert two.cpu > 0
    again = run.run(NODE, JOB, space, 1, tmp_path / "1")
    assert (again.rows, again.resumed, again.damaged) == (one.rows, len(space), 0)


@pytest.fixture
def command(call):
    """Return a function that sweeps in an empty folder, and gives (exit code, stdout, stderr)."""
    return lambda *arguments: call("sweep", str(NODE), str(JOB), *arguments)


def test_an_unknown_objective_is_refused_before_any_point_is_simulated(command):
    code, out, err = command("--tp", "1,2", "--pareto", "inf", "--out", "x")
    assert (code, out) == (2, "")
    assert err.endswith("--pareto inf: not an objective; known: energy, gpus, memory, owned, rent, step\n")
    assert not Path("x").exists()


def test_the_command(command, done):
    code, out, err = command(*OPTIONS, "--workers", "1")
    assert (code, err) == (0, "")
    best = ranked(done[0])
    head, *rows = out.splitlines()[: len(best) + 1]
    assert head.split() == shlex.split("tokens/s step GPUs of 8 tp pp dp micro-batch MFU bubble memory")
    shown = [int(row.split()[1].replace(",", "")) for row in rows]
    assert shown == [round(row["tokens_per_s"]) for row in best]
    assert shown == sorted(shown, reverse=True)
    steps = [" ".join(row.split()[2:4]) for row in rows]  # as `run` prints them: tokens/s times seconds is the batch
    assert steps == [duration(row["expected_step_time_s"]) for row in best]
    assert f"\n{len(best)} of 12 points were simulated\n" in out
    assert "\n  4 are illegal, such as: parallelism.tp: 3 does not divide" in out
    assert [p.name for p in Path("results").iterdir()] == ["sweep-hgx_h100_8-gpt3_xl-predictor-roofline-global_batch64"]


def test_rows_that_are_unlikely_to_fit_are_marked(done):
    rows = [{**row, "run": ""} for row in ranked(done[0])]
    table = point_table(rows, SPACE, priced=False)
    assert "!" not in "".join(table)
    assert {row["memory_verdict"] for row in rows} == {"likely"}
    rows[1] |= {"peak_memory_bytes": 1.01 * rows[1]["gpu_memory_bytes"], "memory_verdict": "unlikely"}
    table = point_table(rows, SPACE, priced=True)
    assert [line[0:1] == "!" or " ! 80.4" in line for line in table] == [
        i in (2, len(rows) + 1) for i in range(len(table))
    ]
    assert table[len(rows) + 1] == "! unlikely to fit: none of 11 published mappings this full ran"


@pytest.mark.parametrize(("goal", "name"), [("owned", "owned"), ("energy", "kWh/1T tokens"), ("rent", "USD/1T tokens")])
def test_what_is_minimized_has_a_column(done, goal, name):
    assert point_table([{**row, "run": ""} for row in ranked(done[0])], SPACE, True, goal)[0].endswith(f"  {name}")


def test_no_legal_point_is_said(command):
    code, out, err = command("--pp", "16", "--tp", "1,2", "--workers", "1", "--predictor", "roofline")
    assert code == 2
    assert err.startswith("clustersim: none of 2 points has a result: parallelism.pp: the cluster is too small")
    assert out.startswith("0 of 2 points were simulated")
    assert "the cluster is too small" in out
    words = ("--pp", "16,32", "--workers", "1", "--predictor", "roofline")
    assert command(*words, "--json")[0] == 2
    assert command(*words, "--shard", "1/2")[0] == 0  # others of the array may have some
    with pytest.raises(InputError, match=r"none of its 4 points has a result to draw: .* the cluster is too small"):
        sweep_page(next(Path("results").glob("*roofline")))


def test_the_split_of_a_row_is_shown_whole(done):
    """A degree that no point varies is a column where it is not 1: tp, pp, dp and cp multiply to the GPUs."""
    rows = ranked(done[0])
    head = ["tp", "pp", "dp", "micro-batch", "MFU"]
    for more, degrees_ in (({}, []), ({"cp": 4}, ["cp"]), ({"ep": 2}, ["ep"]), ({"cp": 4, "ep": 2}, ["cp", "ep"])):
        text = point_table([{**row, **more} for row in rows], SPACE, priced=False)[0]
        assert text.split()[5:-2] == [*head[:3], *degrees_, *head[3:]]
    one = point_table([{**rows[0], "cp": 4}, *rows[1:]], [{KEYS["cp"]: 1}, {KEYS["cp"]: 4}], priced=False)[0]
    assert one.split().count("cp") == 1


def test_a_sweep_of_networks_says_what_they_cost_who_owns_them(done):
    """Rents are of GPUs alone: more uplinks at the same step cost nothing there."""
    rows = [{**row, "oversubscription": "2"} for row in ranked(done[0])]
    space_ = [{"fabric.oversubscription": ratio} for ratio in "12"]
    head, first, *_ = point_table(rows, space_, priced=True)
    assert head.split()[-3:] == ["USD/1T", "tokens", "owned"]
    assert first.split()[-1] == f"{rows[0]['usd_owned_per_1t_tokens']:,.0f}"
    assert "owned" not in point_table(rows, SPACE, priced=True)[0]


def test_a_best_point_that_is_unlikely_to_fit_is_said_with_the_best_that_likely_does(done):
    rows = [{**row, "run": f"clustersim run a b --tp {place}"} for place, row in enumerate(ranked(done[0]))]
    found = run.Sweep(rows, done[1], 0, 0, 0.0, SPACE)
    shown = Shown(NODE, JOB, found)
    assert "unlikely" not in shown.text(20)
    rows[0]["memory_verdict"] = rows[1]["memory_verdict"] = "unlikely"
    said = "it is unlikely to fit; the best that likely fits, row 3:\n  clustersim run a b --tp 2\n"
    assert said in shown.text(20)
    for row in rows:
        row["memory_verdict"] = "unlikely"
    assert "it is unlikely to fit, as all others are\n" in shown.text(20)


def test_overrides_that_are_words_among_numbers(tmp_path):
    """`auto` and a number share a column; an algorithm of tp does not end up in the column of tp."""
    space = [
        {"parallelism.dp": dp, "parallelism.algorithms.tp": "tree", "predictor": "roofline", "training.global_batch": 8}
        for dp in ("auto", "3")
    ]
    rows = run.run(NODE, JOB, space, 1, tmp_path / "x").rows
    assert [row["status"] for row in rows] == ["ok", "illegal"]
    table = pl.read_parquet(tmp_path / "x" / "points.parquet")
    assert table["dp"].to_list() == [1, None]
    assert table["tp"].to_list() == [1, None]
    assert table["parallelism.algorithms.tp"].to_list() == ["tree", "tree"]


def test_every_swept_axis_is_a_column_and_no_other(command):
    more = shlex.split("--recompute none,full --global-batch 64,128 --zero 0,1 --set training.gradients=fp32,bf16")
    code, out, err = command("--tp", "2", "--predictor", "roofline", "--workers", "1", *more)
    assert (code, err) == (0, "")
    columns = out.splitlines()[0].split()
    swept = ["zero", "global-batch", "recompute", "training.gradients"]
    assert columns == ["tokens/s", "step", "GPUs", "of", "8", "tp", "pp", "dp", *swept, "MFU", "bubble", "memory"]
    rows = [line.split() for line in out.splitlines()[1:17]]
    assert len({tuple(row[8:12]) for row in rows}) == 16
    assert all(line == line.rstrip() for line in out.splitlines())


ODD = "a job's, $HOME.yaml"
AXES_OF_ALL_KINDS = {
    "counts": ["--tp", "1,2", "--pp", "1,2", "--dp", "auto,1", "--micro-batch", "1,2"],
    "words": ["--recompute", "none,full", "--precision", "bf16,fp16", "--zero", "0,1"],
    "chunks": ["--vpp", "1,2", "--schedule", "1f1b,interleaved", "--pp", "2", "--seq", "512"],
    "settings": [
        "--set",
        "training.gradients=fp32,bf16",
        "--set",
        "parallelism.overlap={grad_reduce: true, p2p: true}",
    ],
}


@pytest.mark.parametrize("kind", AXES_OF_ALL_KINDS)
def test_the_command_of_the_best_point_gives_its_numbers(call, kind):
    Path(ODD).write_text(JOB.read_text(encoding="utf-8"), encoding="utf-8")
    options = [*AXES_OF_ALL_KINDS[kind], "--set", "training.global_batch=32", "--predictor", "roofline"]
    words = ["sweep", str(NODE), ODD, *options, "--clocks", "0.9", "--workers", "1"]
    found = json.loads(call(*words, "--json")[1])
    folded = call(*words, "--out", "again")[1].partition("the best one alone:\n")[2].partition("\n\n")[0]
    one = subprocess.run(["bash", "-c", f"printf '%s\\n' {folded}"], capture_output=True, text=True, check=True).stdout
    words = shlex.split(found["best_run"])
    assert one.splitlines() == words
    code, out, err = call(*words[1:], "--json", "--no-save")
    assert (code, err) == (0, "")
    alone = evaluate.flat(json.loads(out))
    figures = {key: value for key, value in alone.items() if isinstance(value, float)}
    assert "step_time_s" in figures
    assert {key: found["rows"][0][key] for key in figures} == pytest.approx(figures, rel=1e-12, abs=0)
    assert found["rows"][0]["step_time_s"] == alone["step_time_s"]


@pytest.mark.parametrize(
    ("axes", "pairs"),
    [
        ({"vpp": [1, 2], "schedule": ["1f1b", "interleaved"]}, [("1f1b", 1), ("interleaved", 2)]),
        ({"vpp": [2, 4], "schedule": ["gpipe", "interleaved"]}, [("gpipe", 1), ("interleaved", 2), ("interleaved", 4)]),
        ({"vpp": [1, 2], "schedule": ["zero_bubble"]}, [("zero_bubble", 1), ("zero_bubble", 2)]),
        ({"schedule": ["1f1b", "interleaved"]}, [("1f1b", 1), ("interleaved", None)]),
        (
            {"vpp": [1], "schedule": ["interleaved", "1f1b"]},
            [("interleaved", 1), ("1f1b", 1)],
        ),  # the first says why not
        ({"vpp": [2], "schedule": ["1f1b"]}, [("1f1b", 2)]),
        ({"schedule": ["1f1b", "dualpipev"]}, [("1f1b", 1), ("dualpipev", 2)]),
        ({"schedule": ["dualpipev"]}, [("dualpipev", 2)]),
        ({"vpp": [1, 4], "schedule": ["dualpipev", "interleaved"]}, [("dualpipev", 2), ("interleaved", 4)]),
    ],
)
def test_chunks_are_crossed_with_the_schedules_that_can_have_them(axes, pairs):
    found = [(point["parallelism.schedule"], point.get("parallelism.vpp")) for point in points(axes)]
    assert found == pairs


def test_chunks_given_by_set_are_those_of_an_option():
    asked = SweepSpace({"parallelism.schedule": ["1f1b", "interleaved"]}, {"parallelism.vpp": "2"}, frozenset())
    assert [point["parallelism.vpp"] for point in asked.space()] == [1, 2]


def test_values_of_a_setting_are_parted_at_commas_outside_brackets_and_quotes():
    assert listed("none, full,none") == ["none", "full"]
    assert listed("{a: 1, b: [2, 3]}") == ["{a: 1, b: [2, 3]}"]
    assert listed("'a,b',c") == ["'a,b'", "c"]


def test_reasons_are_counted_by_kind(command):
    options = ["--tp", "1,3,5", "--pp", "1,2", "--vpp", "1,2", "--predictor", "roofline", "--workers", "1"]
    _, out, _ = command(*options, "--json")
    found = json.loads(out)
    kinds = {(one["status"], one["reason"].split(":")[0]): one["points"] for one in found["reasons"]}
    assert kinds == {
        ("illegal", "parallelism.tp"): 8,
        ("illegal", "parallelism.vpp"): 1,
    }  # pp 2 with vpp 2 is interleaved
    assert sum(kinds.values()) == found["points_illegal"]


def test_run_sweep_and_share_have_the_same_options(call):
    for name in ("run", "sweep", "jobs", "share"):
        page = call(name, "--help")[1]
        assert [one.flag for one in workload_options.OPTIONS if not re.search(rf" {one.flag}[ ,]", page)] == []
    assert {"vpp", "recompute", "seq", "precision", "zero"} <= workload_options.KEYS.keys()


def test_the_space_of_a_sweep():
    assert numbers("tp", "1, 2,4-6,2") == [1, 2, 4, 5, 6]
    assert words("schedule", "gpipe, 1f1b,gpipe") == ["gpipe", "1f1b"]
    assert degrees("dp", "auto,8,1-2") == [8, 1, 2, "auto"]
    assert degrees("dp", "auto") == ["auto"]
    assert numbers("zero", "0,1", least=0) == [0, 1]
    assert numbers("tp", None) == words("schedule", None) == []
    assert list(points({"tp": [1, 2], "pp": [], "schedule": ["1f1b"]})) == [
        {"parallelism.tp": 1, "parallelism.schedule": "1f1b"},
        {"parallelism.tp": 2, "parallelism.schedule": "1f1b"},
    ]


@pytest.mark.parametrize(
    "failure", [ClustersimError("a worker died"), ZeroDivisionError("a bug")], ids=lambda e: e.args[0]
)
def test_a_failure_keeps_what_is_done(tmp_path, monkeypatch, failure):
    def rows(files, case, space, workers, spent, crew):
        for index in range(5):
            yield index, sweep_row(tokens_per_s=1.0, step_time_s=1.0)
        raise failure

    monkeypatch.setattr(runner, "rows", rows)
    with pytest.raises(type(failure)) as error:
        run.run(NODE, JOB, SPACE, 2, tmp_path / "x")
    assert ("a worker died; points.jsonl in" in str(error.value)) == isinstance(failure, ClustersimError)
    assert list(log.read(tmp_path / "x")[1]) == [log.key(point) for point in SPACE[:5]]
    assert json.loads((tmp_path / "x" / "manifest.json").read_text())["complete"] is False
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["manifest.json", "points.jsonl", "x"]


def test_wrong_input_leaves_an_older_sweep_alone(done, tmp_path):
    target = tmp_path / "x"
    run.run(NODE, JOB, SPACE[:1], 1, target)
    before = {p.name: p.read_bytes() for p in target.iterdir()}
    for space in ([{"training.sek": 1}], [{"parallelism.schedule": "1f2b"}]):
        with pytest.raises(InputError):
            run.run(NODE, JOB, space, 1, target)
    assert {p.name: p.read_bytes() for p in target.iterdir()} == before


PLUGIN = """\
import os, signal, time
from clustersim.predictors.kinds.roofline import Roofline

class Saboteur(Roofline):
    def statement(self, kernels, gpu):
        mark = os.environ["MARK"] + str(os.getpid())
        with open(mark, "a") as file:
            file.write("x")
        if os.path.getsize(mark) == 3:
            {what}
        return super().statement(kernels, gpu)

def load():
    return Saboteur()
"""


def start(folder: Path, what: str, workers: int = 2, *more: str) -> subprocess.Popen[str]:
    """Start a sweep whose workers do `what` at their third point."""
    (folder / "saboteur.py").write_text(PLUGIN.format(what=what))
    arguments = [*OPTIONS[:-1], "saboteur:load", "--plugins", "saboteur:load", "--workers", str(workers), "--out", "x"]
    return subprocess.Popen(
        [sys.executable, "-m", "clustersim", "sweep", str(NODE), str(JOB), *arguments, *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "MARK": str(folder / "mark-")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def rows_in(folder: Path) -> int:
    path = folder / "x" / "points.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def workers_of(folder: Path) -> list[int]:
    return [int(p.name.removeprefix("mark-")) for p in folder.glob("mark-*")]


LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@LINUX
def test_a_worker_that_dies_ends_the_sweep_and_loses_nothing(tmp_path):
    with start(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)") as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.count("\n")) == (1, "", 1)
    assert "a worker process died, perhaps for lack of memory, and" in err
    assert "try fewer --workers" in err
    kept = rows_in(tmp_path)
    assert f"has the {kept} others" in err
    assert kept >= 2
    assert len(log.read(tmp_path / "x")[1]) == kept


@LINUX
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_at_a_terminal(tmp_path, workers):
    """The terminal signals the whole group: one sentence, no traceback of a worker, no process left, nothing lost."""
    with start(tmp_path, "time.sleep(60)", workers) as process:
        until(lambda: rows_in(tmp_path) >= 2)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    kept = rows_in(tmp_path)
    done = f"points.jsonl in x has the {kept} of 12 points that are done"
    assert err == f"clustersim: interrupted; {done}, and the same command goes on from there\n"
    until(lambda: not any(map(alive, workers_of(tmp_path))))


@LINUX
@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_of_a_sweep_leaves_no_worker_says_nothing_and_loses_no_point(tmp_path, workers):
    """The same command goes on where the killed one was, and its files are those of a sweep that nobody killed."""
    start(tmp_path, "pass", workers).communicate(timeout=60)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    shutil.rmtree(tmp_path / "x")
    with start(tmp_path, "time.sleep(60)", workers) as process:
        until(lambda: rows_in(tmp_path) >= 2)
        process.kill()
        assert process.communicate(timeout=20) == ("", "")  # until the last of them is gone
    until(lambda: not any(map(alive, workers_of(tmp_path))))
    kept = len(log.read(tmp_path / "x")[1])
    with start(tmp_path, "pass", workers, "--json") as again:
        out, err = again.communicate(timeout=60)
    assert (again.returncode, err) == (0, "")
    assert 2 <= json.loads(out)["points_resumed"] == kept < len(SPACE)
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == whole
