"""The trace of a step: its schema, ranks and streams in order, arrows counted, arguments and memory as the tables have them."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import output_cases
import polars as pl
import pytest

from clustersim.report.links import link_bytes
from clustersim.report.trace_events import link_load
from clustersim.simulation import simulate

ROOT = Path(__file__).parents[2]

PHASES = {
    "M": {"ph", "pid", "name", "args"},
    "X": {"ph", "pid", "tid", "name", "ts", "dur"},
    "s": {"ph", "cat", "name", "id", "pid", "tid", "ts"},
    "t": {"ph", "cat", "name", "id", "pid", "tid", "ts", "bp"},
    "f": {"ph", "cat", "name", "id", "pid", "tid", "ts", "bp"},
    "C": {"ph", "name", "pid", "ts", "args"},
}
"""The keys that an event needs, by phase (Trace Event Format); those of an arrow's end bind it to the slice around it."""
SPLIT = ("--tp", "2", "--pp", "4", "--set", "training.clip_gradients=true")


@pytest.fixture
def result(small):
    """Return a function that runs the small job and gives the events of its trace and its metadata."""
    return lambda *options: read(small(*options) / "trace.json.gz")


def read(path):
    found = json.loads(gzip.decompress(path.read_bytes()), parse_constant=pytest.fail)
    return found["traceEvents"], found["otherData"]


def slices(events):
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    return found


def arrows(events, kind):
    ends = defaultdict(list)
    for event in events:
        if event.get("cat") == kind:
            ends[event["id"]].append(event)
    return ends


@pytest.mark.parametrize("options", [SPLIT, ("--no-fold", *SPLIT), ("--tp", "8", "--zero", "1")])
def test_every_event_is_one_of_the_format(result, options):
    events, _ = result(*options)
    for event in events:
        wanted = PHASES[event["ph"]]
        assert wanted <= event.keys() <= wanted | {"args", "tid"}
    boxes = slices(events)
    begun = [event["id"] for event in events if event["ph"] == "s"]
    assert len(set(begun)) == len(begun)
    assert all(isinstance(number, int) for number in begun)  # Perfetto drops others
    for event in events:
        if event["ph"] in "stf":
            begin = [start for start, end in boxes[event["pid"], event["tid"]] if start <= event["ts"] < end]
            assert begin, f"an arrow ends outside of every slice: {event}"


def test_ranks_and_streams_stand_in_order(result):
    events, metadata = result("--no-fold", *SPLIT)
    places = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [names[pid] for pid in sorted(places, key=places.get)] == [f"rank {rank}" for rank in range(32)]
    threads = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index" and e["pid"] == 1}
    assert min(order, key=order.get) == threads["compute"]
    assert metadata["clustersim"]
    assert metadata["ranks_shown"] == metadata["ranks"] == 32


@pytest.mark.parametrize("fold", [True, False])
def test_arrows_join_every_message_to_the_pass_that_waits_for_it(result, fold):
    """Forward over 3 boundaries and back again, for each of 8 microbatches, in each lane that is drawn."""
    events, metadata = result(*SPLIT, *([] if fold else ["--no-fold"]))
    lanes = metadata["ranks"] // 4 if not fold else metadata["rank_classes"] // 4
    found = arrows(events, "message")
    assert len(found) == 2 * 3 * 8 * lanes
    name = {e["pid"]: e["args"]["labels"][-1] for e in events if e["name"] == "process_labels"}
    named = {(e["pid"], e["ts"]): e["name"] for e in events if e["ph"] == "X" and e["tid"] == 1}
    for send, wait in found.values():
        assert (send["ph"], wait["ph"]) == ("s", "f")
        assert abs(int(name[send["pid"]]) - int(name[wait["pid"]])) == 1
        letter = named[wait["pid"], wait["ts"]][1]
        assert letter == ("F" if int(name[wait["pid"]]) > int(name[send["pid"]]) else "B")
        assert wait["ts"] >= send["ts"]


def test_arrows_go_along_all_ranks_of_a_collective(result):
    """Gradients are reduced over 4 replicas of each of 8 lanes; the norm is summed over all ranks of a replica."""
    events, _ = result("--no-fold", *SPLIT)
    sizes = Counter(len(ends) for ends in arrows(events, "collective").values())
    assert sizes[4] >= 8
    assert sizes[8] == 4
    for ends in arrows(events, "lock-step").values():
        assert [end["ph"] for end in ends] == ["s", *["t"] * (len(ends) - 2), "f"]
        assert len({end["ts"] for end in ends}) == 1


def test_arguments_say_what_a_slice_does(result):
    events, _ = result(*SPLIT)
    passes = [e for e in events if e["ph"] == "X" and e["name"] == "0F3"]
    assert passes
    assert passes[0]["args"].keys() == {"stage", "microbatch", "FLOP", "memory bytes", "kernels"}
    assert (passes[0]["args"]["stage"], passes[0]["args"]["microbatch"]) == (0, 3)
    sends = [e for e in events if e["ph"] == "X" and e["name"].startswith("send")]
    assert sends[0]["args"]["bytes"] == 2 * 512 * 1024 * 2  # 2 sequences of 512 tokens, 1,024 values of 2 bytes
    reduced = [e for e in events if e["ph"] == "X" and e["name"] == "all_reduce"]
    assert all(e["args"]["bytes"] > 0 and e["args"]["algorithm"] for e in reduced)
    assert any("link" in e["args"] for e in reduced)


def whole(call, *options):
    code, out, err = call("trace", "r", *options)
    assert (code, err) == (0, "")
    events, metadata = read(Path("r/trace-detailed.json.gz"))
    assert out == f"{len(events):,} events written to r/trace-detailed.json.gz (open it at https://ui.perfetto.dev)\n"
    return events, metadata


def test_a_large_trace_is_announced_before_it_is_written(result, call, monkeypatch):
    result(*SPLIT)
    monkeypatch.setattr("clustersim.report.trace.MAX_EVENTS", 1000)
    monkeypatch.setenv("CLUSTERSIM_PROGRESS", "1")
    code, _, err = call("trace", "r", "--ranks", "all", "--out", "whole.json.gz")
    assert code == 0
    lines = err.splitlines()
    events, _ = read(Path("whole.json.gz"))
    (said,) = [line for line in lines if not line.startswith("progress: ")]
    about = re.fullmatch(
        r"about ([\d,]+) events, ([\d.]+) MB packed: a browser moves 1,000 smoothly; --ranks 0,8-15 draws fewer ranks",
        said,
    )
    assert about, said
    assert int(about[1].replace(",", "")) == pytest.approx(len(events), rel=0.15)
    assert float(about[2]) * 1e6 == pytest.approx(Path("whole.json.gz").stat().st_size, abs=1e5)
    steps = lines[lines.index(said) + 1 :]
    assert steps[0] == "progress: write 0%"
    assert steps[-2:] == ["progress: write 97%", "progress: write arrows"]


def test_all_ranks_are_those_of_a_run_without_folding(result, call):
    """Slices, messages and collectives rank by rank: what folding draws once stands for as many as `--no-fold` draws."""
    result(*SPLIT)
    folded, metadata = whole(call, "--ranks", "all")
    assert metadata["ranks_shown"] == metadata["ranks"] == 32
    unfolded, _ = result("--no-fold", *SPLIT)
    for kind in ("message", "collective", "lock-step"):
        one, other = (
            Counter(
                tuple(sorted((e["pid"], e["tid"], round(e["ts"], 2)) for e in ends))
                for ends in arrows(events, kind).values()
            )
            for events in (folded, unfolded)
        )
        assert one == other, kind
    one, other = slices(folded), slices(unfolded)
    assert one.keys() == other.keys()
    for track in one:
        times, wanted = ([t for ends in sorted(boxes[track]) for t in ends] for boxes in (one, other))
        assert times == pytest.approx(wanted, abs=2e-3)


def test_kernels_lie_inside_their_passes_and_are_all_there(result, call):
    result(*SPLIT)
    events, metadata = whole(call, "--kernels", "--ranks", "0,5-6")
    assert metadata["kernels_shown"]
    assert {e["pid"] for e in events if e["ph"] == "X"} == {1, 6, 7}
    own = sorted(
        (e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (1, 1)), key=lambda e: (e["ts"], -e["dur"])
    )
    passes = [e for e in own if "kernels" in e.get("args", {})]
    kernels = [e for e in own if "shape" in e.get("args", {})]
    assert len(kernels) == sum(one["args"]["kernels"] for one in passes)
    for one in passes:
        inside = [
            k for k in kernels if one["ts"] - 1e-3 <= k["ts"] and k["ts"] + k["dur"] <= one["ts"] + one["dur"] + 1e-3
        ]
        assert len(inside) == one["args"]["kernels"]
        assert sum(k["args"]["FLOP"] for k in inside) == pytest.approx(one["args"]["FLOP"], rel=1e-9)


@pytest.mark.parametrize("split", [("--tp", "4", "--pp", "2"), ("--tp", "8", "--zero", "1"), SPLIT])
def test_the_area_under_the_load_of_a_link_is_its_bytes(result, call, split):
    result(*split)
    events, _ = whole(call)
    table = {f"{row['tier']}[{row['index']}]": row for row in pl.read_parquet("r/links.parquet").to_dicts()}
    loads = defaultdict(list)
    for e in events:
        if e["ph"] == "C" and e["name"].startswith("load of "):
            loads[e["name"].removeprefix("load of ")].append((e["ts"], e["args"]["share"]))
    assert loads
    for link, steps in loads.items():
        area = sum(share * (after - ts) for (ts, share), (after, _) in pairwise(steps)) / 1e6
        assert area * table[link]["capacity_bytes_per_s"] == pytest.approx(table[link]["bytes"], rel=1e-2)
        assert max(share for _, share in steps) <= 1.01
        assert steps[-1][1] == 0


def test_collectives_of_one_family_load_a_link_differently_within_a_pass():
    found = simulate(ROOT / "topologies/mi300x_16.yaml", ROOT / "workloads/qwen3_8b.yaml")
    steps = link_load(found.record, 0)
    area = sum(share * (after - at) for (at, share), (after, _) in pairwise(steps))
    assert area * found.topology.capacity[0] == pytest.approx(link_bytes(found.plan)[0], rel=1e-4)


def test_the_power_state_is_that_of_passes(result, call):
    Path("fast.yaml").write_text(output_cases.JOB.replace("predictor: roofline", "predictor: neusight\nclocks: 0.75"))
    result("--tp", "8")
    code, _, err = call("run", "cluster.yaml", "fast.yaml", "--tp", "8", "--out", "r", "--quiet", "--force")
    assert (code, err) == (0, "")
    events, _ = whole(call)
    clocks = {e["args"]["share"] for e in events if e["ph"] == "C" and e["name"] == "clock of products"}
    assert clocks == {0.75, 1.0}


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        ("0,x", "write kinds, all, or numbers such as 0,8-15"),
        ("31-32", "the job has the ranks 0 to 31; write some of them"),
    ],
)
def test_ranks_that_are_none_are_one_sentence(result, call, ranks, sentence):
    result("--tp", "8")
    assert call("trace", "r", "--out", "x.gz", "--ranks", ranks) == (
        2,
        "",
        f"clustersim: --ranks {ranks}: {sentence}\n",
    )


def test_memory_is_that_of_its_table(result):
    events, _ = result(*SPLIT)
    table = pl.read_parquet("r/memory.parquet")
    counted = [e for e in events if e["ph"] == "C" and e["name"] == "memory (GiB)"]
    assert len(counted) == len(table)
    assert max(e["args"]["total"] for e in counted) == pytest.approx(table["total_bytes"].max() / 2**30, rel=1e-5)
