"""`clustersim jobs`: what it takes, prints and writes, and what it says of bad input."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from share_cases import CLUSTER, JOB

from clustersim.config.node_ranges import parse, written
from clustersim.errors import InputError

JOBS = """\
placement: spread
steps: 2
jobs:
  - {workload: tiny.yaml, name: one, nodes: 4}
  - workload: tiny.yaml
    start: 1ms
    nodes: 1,3,5-6
    set: {parallelism.tp: 2, training.precision: bf16}
"""
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(call: Call) -> Call:
    """Return a function that runs `clustersim jobs` in a folder with the files above and gives (code, stdout, stderr)."""
    for name, text in (("eight.yaml", CLUSTER), ("tiny.yaml", JOB), ("jobs.yaml", JOBS)):
        Path(name).write_text(text)

    def run(*arguments: str, **files: str) -> tuple[int, str, str]:
        for name, text in files.items():
            Path(f"{name}.yaml").write_text(text)
        return call("jobs", "eight.yaml", *arguments)

    return run


def summary(call: Call, *arguments: str, **files: str) -> dict:
    code, out, err = call(*arguments, "--json", "--no-save", **files)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_same_workload_twice_gets_numbered_names_and_equal_shares(call):
    jobs = summary(call, "tiny.yaml", "tiny.yaml", "tiny.yaml")["jobs"]
    assert [job["name"] for job in jobs] == ["tiny-1", "tiny-2", "tiny-3"]
    assert [job["nodes"] for job in jobs] == [[0, 1], [2, 3], [4, 5]]  # 8 // 3 nodes each
    assert {job["parallelism"]["dp"] for job in jobs} == {8}


def test_the_cluster_is_changed_by_the_options_of_run(call):
    options = ["--nodes", "4", "--gpu", "b200", "--nic", "200Gb/s", "--set", "fabric.switch_latency=1us"]
    code, out, err = call("tiny.yaml", "tiny.yaml", *options, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [job["nodes"] for job in found["jobs"]] == [[0, 1], [2, 3]]
    asked = next(json.loads(path.read_text())["options"] for path in Path("results").glob("*/manifest.json"))
    keys = {"cluster.nodes": 4, "cluster.gpu": "b200", "cluster.nic": "200Gb/s", "fabric.switch_latency": "1us"}
    assert {key: asked["overrides"][key] for key in keys} == keys
    assert summary(call, "tiny.yaml", *options[:4])["jobs"] != summary(call, "tiny.yaml", "--nodes", "4")["jobs"]
    code, _, err = call("tiny.yaml", "--nic", "200GB", "--no-save")
    assert code == 2
    assert "did you mean 200Gb/s, in bits?" in err


def test_auto_takes_of_its_share_what_the_batch_allows(call):
    jobs = summary(call, "tiny.yaml", "tiny.yaml", "--set", "training.global_batch=8")["jobs"]
    assert [(job["gpus"], len(job["nodes"]), job["idle_gpus"]) for job in jobs] == [(8, 2, 0)] * 2
    jobs = summary(call, "tiny.yaml", "--set", "training.global_batch=9")["jobs"]
    assert [(job["gpus"], len(job["nodes"]), job["idle_gpus"]) for job in jobs] == [(9, 3, 3)]


def test_auto_shares_what_explicit_jobs_leave(call):
    text = "jobs: [{workload: tiny.yaml, nodes: '2-3'}, {workload: tiny.yaml}, {workload: tiny.yaml, set: {parallelism.dp: 4}}]"
    found = summary(call, "jobs.yaml", jobs=text)
    assert [job["nodes"] for job in found["jobs"]] == [
        [2, 3],
        [0, 1, 4, 5],
        [6],
    ]  # 48 sequences: 16 replicas of 20 GPUs
    assert found["free_nodes"] == 1


def test_a_file_of_jobs(call):
    found = summary(call, "jobs.yaml")
    one, two = found["jobs"]
    assert (found["placement"], found["steps"]) == ("spread", 2)
    assert (one["name"], one["nodes"], one["start_s"]) == ("one", [0, 2, 4, 7], 0)
    assert (two["name"], two["nodes"], two["start_s"]) == ("tiny", [1, 3, 5, 6], 1e-3)
    assert two["parallelism"]["tp"] == 2
    for job in (one, two):
        assert sum(step["counted"] for step in job["steps"]) >= 2
        assert job["step_together_min_s"] <= job["step_together_s"] <= job["step_together_max_s"]
        assert job["slowdown"] == pytest.approx(job["step_together_s"] / job["step_alone_s"])
        for how in ("alone", "together"):
            assert sum(job[f"breakdown_{how}_s"].values()) == pytest.approx(job[f"step_{how}_s"], rel=1e-9)
            assert job[f"exposed_{how}_s"] <= job[f"step_{how}_s"]


def test_options_go_before_the_file_of_jobs(call):
    found = summary(call, "jobs.yaml", "--placement", "packed", "--steps", "1", "--set", "parallelism.tp=4")
    assert (found["placement"], found["steps"]) == ("packed", 1)
    assert found["jobs"][0]["nodes"] == [0, 2, 4, 7]  # the free ones in order
    assert [job["parallelism"]["tp"] for job in found["jobs"]] == [4, 4]


def test_the_terminal_shows_times_and_meetings(call):
    code, out, err = call("jobs.yaml", "--no-save")
    assert (code, err) == (0, "")
    for words in (
        "2 jobs on eight",
        "slowdown",
        "exposed communication",
        "one and tiny share 8 links",
        "leaf-up",
        "roofline",
    ):
        assert words in out
    assert "share no link" in call("tiny.yaml", "tiny.yaml", "--no-save")[1]


def test_the_files_of_a_result(call):
    assert call("jobs.yaml", "--quiet") == (0, "", "")
    folder = Path("results/jobs-eight-jobs")
    names = ["jobs.parquet", "links.parquet", "manifest.json", "steps.parquet", "summary.json", "trace.json.gz"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert sorted(path.name for path in Path("results").iterdir()) == [folder.name]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert list(manifest["inputs"]) == ["topology", "jobs", "workload 1", "workload 2"]
    assert manifest["options"]["placement"] == "spread"
    found = json.loads((folder / "summary.json").read_text())
    jobs, steps, links = (pl.read_parquet(folder / f"{name}.parquet") for name in ("jobs", "steps", "links"))
    assert jobs["slowdown"].to_list() == [job["slowdown"] for job in found["jobs"]]
    assert steps.filter("counted").group_by("job", maintain_order=True).agg(pl.col("step_s").mean())[
        "step_s"
    ].to_list() == (pytest.approx([job["step_together_s"] for job in found["jobs"]]))
    totals = links.group_by("tier", "index").agg(pl.col("utilization").sum(), pl.col("utilization_of_all").first())
    assert (totals["utilization"] - totals["utilization_of_all"]).abs().max() < 1e-12  # type: ignore[operator]
    busiest = found["meetings"][0]["tiers"][0]
    one = links.filter(pl.format("{}[{}]", "tier", "index") == busiest["busiest"])
    assert dict(zip(one["job"], one["bytes_per_s"], strict=True)) == pytest.approx(busiest["bytes_per_s"])


def test_the_trace_has_a_process_a_job_whose_slices_do_not_overlap(call):
    call("jobs.yaml", "--quiet")
    events = json.loads(gzip.decompress(Path("results/jobs-eight-jobs/trace.json.gz").read_bytes()))["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["one", "tiny"]
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(tracks) <= named
    for slices in tracks.values():
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(sorted(slices)))
    assert min(begin for (pid, _), slices in tracks.items() if pid == 2 for begin, _ in slices) >= 1000


ERRORS = {
    ("jobs.yaml tiny.yaml", ""): "jobs.yaml: is a file of jobs; name it alone, or name workloads only",
    ("tiny.yaml tiny.yaml --set parallelism.dp=24", ""): (
        "the jobs want 12 nodes (tiny-1 6, tiny-2 6) and eight has 8; lower parallelism.dp, leave a job out or take a larger "
        "cluster"
    ),
    ("tiny.yaml tiny.yaml --set parallelism.dp=6", ""): (
        "tiny.yaml (command line): parallelism.dp: tp 1 × pp 1 × dp 6 needs 6 GPUs, part of a node of 4, and jobs share no node; "
        "use dp 8 or auto, or say in a file of jobs how many `nodes` it gets"
    ),
    ("jobs.yaml", "placement: 'random:-1'\njobs: [{workload: tiny.yaml}]"): (
        "jobs.yaml:1:12: placement: random:-1: '-1' is not a seed; "
        "write a whole number of at most 18 digits, such as random:7"
    ),
    ("jobs.yaml", "jobs:\n- {workload: tiny.yaml, nodes: 0-3}\n- {workload: tiny.yaml, nodes: '2-5'}"): (
        "jobs.yaml:3:32: jobs.1.nodes: tiny-2 and tiny-1 both want nodes 2-3; jobs share no node"
    ),
    ("jobs.yaml", "jobs: [{workload: tiny.yaml, nodes: 6-9}]"): (
        "jobs.yaml:1:37: jobs.0.nodes: tiny wants node 8; eight has 0 to 7"
    ),
    ("jobs.yaml", "jobs: [{workload: tiny.yaml, nodes: 6-3}]"): (
        "jobs.yaml:1:37: jobs.0.nodes: '6-3' is not a range of nodes; write 0-7, or 0-3,8-11, the lower number first"
    ),
    ("jobs.yaml", "jobs: [{workload: tiny.yaml, nodes: '1-3,2'}]"): (
        "jobs.yaml:1:37: jobs.0.nodes: '1-3,2' names node 2 twice; write each once"
    ),
    ("jobs.yaml", "jobs: [{workload: tiny.yaml, nodes: 1, set: {parallelism.tp: 4, parallelism.dp: 4}}]"): (
        "jobs.yaml:1:37: jobs.0.nodes: tiny needs 16 GPUs (tp 4 × pp 1 × dp 4) and its one node has 4; "
        "lower a degree, or give it more nodes"
    ),
    ("jobs.yaml", "jobs:\n- {workload: tiny.yaml, nodes: 8}\n- workload: tiny.yaml\n"): (
        "jobs.yaml:3:3: jobs.1.nodes: no node is left for tiny-2: eight has 8, other jobs take 8, and jobs with dp auto (1) "
        "share the rest; lower parallelism.dp of the others"
    ),
    ("tiny.yaml tiny.yaml tiny.yaml --set parallelism.pp=4 --set parallelism.tp=4", ""): (
        "tiny.yaml: tiny-1 needs 16 GPUs (tp 4 × pp 4) and its 2 of the 8 nodes have 8; lower a degree, or give it more nodes"
    ),
    ("jobs.yaml", "jobs:\n- workload: tiny.yaml\n  set:\n    parallelism.tp: 3\n"): (
        "jobs.yaml:4:5: parallelism.tp: 3 does not divide 8 attention heads; use 1, 2, 4, 8"
    ),
    (
        "jobs.yaml",
        "jobs:\n- workload: tiny.yaml\n  set: {training.7: 3}\n",
    ): "jobs.yaml:3:9: unknown key '7'; known: attention, *",
    ("jobs.yaml", "jobs:\n- workload: tiny.yaml\n  set: {name.x: 3}\n"): (
        "jobs.yaml:3:9: name.x: name is a single value and has no keys; write a dotted key like parallelism.tp"
    ),
    ("jobs.yaml", "jobs: [{workload: gone.yaml}]"): (
        "jobs.yaml:1:19: jobs.0.workload: no file gone.yaml; paths are relative to this file, or give its whole path"
    ),
    ("jobs.yaml", "jobs: [{workload: tiny.yaml, name: a}, {workload: tiny.yaml, name: a}]"): (
        "jobs.yaml:1:68: jobs.1.name: a is taken; give each job its own"
    ),
    ("jobs.yaml", "jobs: []"): "jobs.yaml:1:7: jobs: has 0 entries; write 1 to 1000",
    (
        "jobs.yaml --steps 10000",
        "jobs: [{workload: tiny.yaml, name: long, set: {training.global_batch: 4800}}, {workload: tiny.yaml, name: short}]",
    ): (
        "10,000 steps of long are 3,000,000 passes, too many to play (1,000,000); lower steps or training.global_batch"
    ),
    (
        "jobs.yaml --ignore-memory --steps 10",
        "jobs: [{workload: tiny.yaml, name: long, set: {training.global_batch: 480, model.hidden: 4096, model.layers: 2000}}, "
        "{workload: tiny.yaml, name: short, set: {model.layers: 1}}]",
    ): (
        "during 10 of long, * steps of short are * passes, too many to play (1,000,000); lower steps, or give short a larger "
        "training.global_batch"
    ),
}


@pytest.mark.parametrize(("arguments", "jobs"), ERRORS)
def test_every_error_is_one_sentence_with_its_remedy(call, arguments, jobs):
    message = ERRORS[arguments, jobs]
    code, out, err = call(*arguments.split(), **({"jobs": jobs} if jobs else {}))
    assert (code, out) == (2, "")
    start, *rest = message.split("*")
    assert err.startswith(f"clustersim: {start}")
    for part in rest:
        assert part in err
    if not rest:
        assert err == f"clustersim: {message}\n"
    assert not Path("results").exists()


def test_ranges_of_nodes_read_as_they_are_written():
    assert parse("0-3, 8-11,5") == (0, 1, 2, 3, 5, 8, 9, 10, 11)
    assert written(parse("0-3,8-11,5")) == "0-3,5,8-11"
    assert written([0, 2, 4, 6], 2) == "0,2,…"
    for text in ("", "a", "1-", "-1", "3-1", "1,,2", "0-99999999"):
        with pytest.raises(InputError, match=r"not a range of nodes|more than"):
            parse(text)


def test_a_name_that_looks_like_a_numbered_one_stays_its_own(call):
    text = "jobs: [{workload: tiny.yaml}, {workload: tiny.yaml, name: tiny-1}, {workload: tiny.yaml}]"
    assert [job["name"] for job in summary(call, "jobs.yaml", jobs=text)["jobs"]] == ["tiny-2", "tiny-1", "tiny-3"]
