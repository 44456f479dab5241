"""What a result holds: time adds up to the step, bytes are conserved on links, the trace is one that Perfetto reads."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest
from output_cases import JOB, NODES, SINGLES, SPLITS, simulate

from clustersim.config.yaml import parse
from clustersim.model.operator import Collective
from clustersim.parallel.load import build as build_workload
from clustersim.parallel.stages import stages
from clustersim.report import trace
from clustersim.report.result import save
from clustersim.report.store import put, question_of, write_json, write_manifest
from clustersim.simulation import run
from clustersim.topology.build import build as build_topology


def keep(result, folder):
    """Save a result as the command does."""
    found = result.summary, result.parts, result.record, result.facts.memory
    save(folder, *found, question_of("run", {}, {}, {}))


@pytest.fixture(scope="module", params=SPLITS)
def stored(request, tmp_path_factory):
    """A result, and the folder where it is saved."""
    result = simulate(request.param)
    folder = tmp_path_factory.mktemp("results") / "x"
    keep(result, folder)
    return result, folder


def close(value):
    return pytest.approx(value, rel=1e-9, abs=1e-15)


def test_the_parts_of_every_rank_add_up_to_the_step(stored):
    result, folder = stored
    ranks, step = pl.read_parquet(folder / "ranks.parquet"), result.summary["step_time_s"]
    parts = [name for name in ranks.columns if name.endswith("_s")]
    assert {"compute_s", "tp_s", "pp_s", "dp_s", "ep_s", "cp_s", "optimizer_s", "bubble_s"} == set(parts)
    assert ranks.select(pl.sum_horizontal(parts)).to_series().to_list() == close([step] * len(ranks))
    assert ranks.select(pl.min_horizontal(parts).min()).item() >= 0
    assert ranks["ranks"].sum() == result.summary["simulated"]["ranks"]
    split = result.summary["parallelism"]
    by_stage = ranks.group_by("pipeline_rank").agg(pl.col("ranks").sum())
    assert set(by_stage["ranks"]) == {split["tp"] * split["dp"]}
    assert sorted(by_stage["pipeline_rank"]) == list(range(split["pp"]))


def test_spans_lie_in_the_step_and_hold_every_pass(stored):
    result, folder = stored
    spans, step = pl.read_parquet(folder / "spans.parquet"), result.summary["step_time_s"]
    assert spans["asked_s"].min() == 0
    assert spans["end_s"].max() == close(step)
    assert (spans["asked_s"] <= spans["start_s"]).all()
    assert (spans["start_s"] <= spans["end_s"]).all()
    passes = spans.filter(pl.col("kind") == "F").unique(("rank", "stage", "microbatch"))
    split = result.summary["parallelism"]
    everything = split["microbatches"] * split["vpp"] * result.summary["simulated"]["ranks"]
    assert passes["ranks"].sum() == everything


def test_the_breakdown_is_the_time_of_the_spans(stored):
    _, folder = stored
    spans = pl.read_parquet(folder / "spans.parquet").filter(pl.col("stream") == "compute", pl.col("stage") >= 0)
    ranks = pl.read_parquet(folder / "ranks.parquet")
    took = spans.group_by("rank").agg((pl.col("end_s") - pl.col("start_s")).sum().alias("took"))
    both = ranks.join(took, on="rank").with_columns(named=pl.col("compute_s") + pl.col("tp_s"))
    assert len(both) == len(ranks)
    assert both["took"].to_list() == close(both["named"].to_list())


def events(folder):
    with gzip.open(folder / "trace.json.gz", "rt") as file:
        return json.load(file, parse_constant=pytest.fail)


def test_slices_on_one_track_nest_or_are_disjoint(stored):
    _, folder = stored
    tracks = defaultdict(list)
    for event in events(folder)["traceEvents"]:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)  # whole nanoseconds, as Perfetto counts
            tracks[event["pid"], event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
    assert tracks
    for slices in tracks.values():
        around: list[int] = []
        for begin, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def test_a_trace_that_is_cut_shows_whole_ranks_and_says_so(tmp_path, monkeypatch):
    cluster, overrides = SPLITS["pipeline"]
    jobs = build_topology(parse(cluster + "faults: [{gpu: 3, slowdown: 1.5}]\n")), build_workload(parse(JOB), overrides)
    whole = run(*jobs).summary["trace"]
    assert whole == {"rank_classes": 8, "rank_classes_shown": 8, "ranks": 8, "ranks_shown": 8}
    monkeypatch.setattr(trace, "MAX_EVENTS", 400)
    result = run(*jobs)
    assert trace.left_out(result.summary) == [
        "trace.json.gz shows 4 of 8 classes of ranks, each of them whole: more than 400 events would be too many for a browser; "
        "`clustersim trace RESULT --ranks all` cuts nothing"
    ]
    keep(result, tmp_path / "x")
    written = events(tmp_path / "x")
    assert result.summary["trace"] == {**whole, "rank_classes_shown": 4, "ranks_shown": 4}
    assert result.summary["trace"].items() <= written["otherData"].items()
    slices = [event for event in written["traceEvents"] if event["ph"] == "X" and event["tid"] == 1]
    ranks = pl.read_parquet(tmp_path / "x" / "spans.parquet").filter(pl.col("stream") == "compute")
    lane = [1, 3, 5, 7]  # dp 0 of each of the 4 pipeline ranks: ranks 0, 2, 4, 6
    assert sorted({event["pid"] for event in slices}) == lane
    every = ranks.filter(pl.col("rank").is_in([0, 2, 4, 6]), pl.col("end_s") > pl.col("start_s"))
    assert len(slices) == len(every)
    assert len(slices) <= sum(event["ph"] == "X" for event in written["traceEvents"]) <= 400
    monkeypatch.setattr(trace, "MAX_EVENTS", 1)
    assert run(*jobs).summary["trace"]["rank_classes_shown"] == 1


def test_compute_slices_of_the_trace_are_the_spans(stored):
    _, folder = stored
    spans = pl.read_parquet(folder / "spans.parquet").filter(pl.col("stream") == "compute")
    computed = [e for e in events(folder)["traceEvents"] if e["ph"] == "X" and e["tid"] == 1]
    assert len(computed) == len(spans.filter(pl.col("end_s") > pl.col("start_s")))
    assert sum(e["dur"] for e in computed) / 1e6 == pytest.approx((spans["end_s"] - spans["start_s"]).sum(), rel=1e-6)


COLUMNS = {
    "spans": "rank ranks stream kind stage microbatch asked_s start_s end_s compute_s",
    "memory": "pipeline_rank stage kind microbatch start_s end_s activations_bytes workspace_bytes "
    "gradients_bytes gathered_bytes parameters_bytes optimizer_bytes framework_bytes buffers_bytes total_bytes",
    "ranks": "rank ranks pipeline_rank compute_s tp_s pp_s dp_s ep_s cp_s optimizer_s bubble_s",
    "links": "tier index capacity_bytes_per_s bytes utilization",
}
"""Of the tables of a result, as docs/results.md names them."""


@pytest.mark.parametrize("name", COLUMNS)
def test_a_table_has_the_columns_that_the_page_names(name, stored):
    assert pl.read_parquet(stored[1] / f"{name}.parquet").columns == COLUMNS[name].split()


def test_as_many_bytes_go_up_as_come_down(stored):
    result, folder = stored
    links = pl.read_parquet(folder / "links.parquet")
    by_tier = dict(links.group_by("tier").agg(pl.col("bytes").sum()).rows())
    for name in {tier.removesuffix("-up").removesuffix("-down") for tier in by_tier}:
        assert by_tier[f"{name}-up"] == close(by_tier[f"{name}-down"])
    assert (links["utilization"] <= 1 + 1e-9).all()
    assert (links["bytes"] > 0).all()
    used = links["bytes"] / links["capacity_bytes_per_s"] / result.summary["step_time_s"]
    assert links["utilization"].to_list() == close(used.to_list())


def tier(folder, name):
    return pl.read_parquet(folder / "links.parquet").filter(pl.col("tier") == name)["bytes"].to_list()


@pytest.fixture
def saved(tmp_path):
    def simulate_and_save(cluster, **overrides):
        keys = {key.replace("__", "."): value for key, value in overrides.items()}
        result = run(build_topology(parse(cluster)), build_workload(parse(JOB), keys))
        keep(result, tmp_path / "x")
        return result, tmp_path / "x"

    return simulate_and_save


@pytest.mark.parametrize("zero", [0, 1])
def test_bytes_of_a_ring_over_nics(saved, zero):
    """All-reduce: 2(n-1)/n·S from every rank; ZeRO: (n-1)/n of the gradients (fp32) and of the weights (bf16)."""
    result, folder = saved(SINGLES, parallelism__zero=zero)
    parameters = sum(stage.parameters for stage in stages(result.job))
    each = 7 / 8 * parameters * (4 + 2 if zero else 2 * 4)
    assert tier(folder, "nic-up") == close([each] * 8)
    assert tier(folder, "nic-down") == close([each] * 8)
    for name in ("leaf-up", "leaf-down"):  # two nodes a leaf: half of the ring's hops leave it
        assert sum(tier(folder, name)) == close(4 * each)


def test_bytes_of_a_ring_inside_a_node(saved):
    """Tensor parallelism: every exchange of the layers once a microbatch, 2(n-1)/n·S up from each GPU."""
    result, folder = saved(NODES, parallelism__tp=4, parallelism__dp=1)
    (stage,) = stages(result.job)
    size = sum(item.size for item in (*stage.forward, *stage.backward) if isinstance(item, Collective))
    assert size > 0
    assert tier(folder, "nvlink-up") == close([2 * 3 / 4 * size * result.job.microbatches] * 4)
    assert tier(folder, "nic-up") == []


def test_bytes_of_a_pipeline_over_nics(saved):
    """Activations forward, their gradients back: 2·b·s·h bytes a microbatch and boundary in bf16, each way."""
    result, folder = saved(SINGLES, parallelism__pp=4, parallelism__dp=1, model__tied_embeddings=False)
    message = 2 * 2 * 512 * 1024 * result.job.microbatches
    assert tier(folder, "nic-up") == close([message, 2 * message, 2 * message, message])
    assert tier(folder, "nic-down") == close([message, 2 * message, 2 * message, message])


def test_bytes_of_tied_embeddings(saved):
    """First and last stage all-reduce the gradient of the embedding: 2(n-1)/n·S with n = 2."""
    _, untied = saved(SINGLES, parallelism__pp=2, parallelism__dp=1, model__tied_embeddings=False)
    before = tier(untied, "nic-up")
    result, tied = saved(SINGLES, parallelism__pp=2, parallelism__dp=1)
    shared = 4 * stages(result.job)[0].shared
    assert tier(tied, "nic-up") == close([b + shared for b in before])


def test_many_threads_replace_one_folder(tmp_path):
    asked = question_of("run", {}, {}, {})

    def write(number: int) -> None:
        def fill(place):
            write_manifest(place, asked.model_copy(update={"seed": number}))
            write_json(place / "summary.json", number)

        for _ in range(20):
            assert put(tmp_path / "x", asked, fill) == tmp_path / "x"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    numbers = [json.loads((tmp_path / "x" / name).read_text()) for name in ("manifest.json", "summary.json")]
    assert numbers[0]["seed"] == numbers[1]
