"""Traces in Perfetto's own trace processor: nothing is dropped or repaired, and what it shows is what was written."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import share_cases
from browser import needs_browser
from trace_processor import Processor, processing

pytestmark = [needs_browser, pytest.mark.slow]
SPLIT = ("--tp", "2", "--pp", "4", "--set", "training.clip_gradients=true")


@pytest.fixture(scope="module")
def processor() -> Iterator[Processor]:
    with processing() as found:
        yield found


@pytest.fixture
def loaded(call: Callable[..., Any], processor: Processor) -> Callable[[str], list[dict[str, Any]]]:
    """Return a function that has a trace read, and gives its events; what the processor has of it must be as many."""

    def load(path: str) -> list[dict[str, Any]]:
        packed = Path(path).read_bytes()
        processor.load(packed)
        events = json.loads(gzip.decompress(packed))["traceEvents"]
        assert processor.query("select name, value from stats where value > 0 and severity != 'info'") == []
        count = Counter(event["ph"] for event in events)
        values = sum(len(event["args"]) for event in events if event["ph"] == "C")
        for table, wanted in (("slice", count["X"]), ("flow", count["t"] + count["f"]), ("counter", values)):
            assert processor.query(f"select count(*) as n from {table}") == [{"n": wanted}], table
        return events

    return load


def test_a_trace_of_a_run_is_read_whole(small, loaded, processor):
    small(*SPLIT)
    events = loaded("r/trace.json.gz")
    step = json.loads(Path("r/summary.json").read_text())["step_time_s"]
    (extent,) = processor.query("select min(ts) as first, max(ts + dur) as last from slice")
    assert extent == {"first": 0, "last": pytest.approx(step * 1e9, abs=1)}
    for thing, key in (("process", "process_name"), ("thread", "thread_name")):
        named = [row["name"] for row in processor.query(f"select name from {thing} where name is not null")]
        assert sorted(named) == sorted(event["args"]["name"] for event in events if event["name"] == key)
    work = "select extract_arg(arg_set_id, 'args.FLOP') as flop from slice where name = '0F3'"
    wanted = [e["args"]["FLOP"] for e in events if e["ph"] == "X" and e["name"] == "0F3"]
    assert [row["flop"] for row in processor.query(work)] == wanted


def test_all_ranks_with_every_kernel_are_read_whole(small, loaded, call):
    small(*SPLIT)
    assert call("trace", "r", "--ranks", "0-9,31", "--kernels", "--quiet") == (0, "", "")
    assert sum("shape" in event.get("args", {}) for event in loaded("r/trace-detailed.json.gz")) > 1000


def test_traces_of_several_jobs_and_of_played_traces_are_read_whole(small, loaded, call):
    for name, text in (("eight", share_cases.CLUSTER), ("tiny", share_cases.JOB)):
        Path(f"{name}.yaml").write_text(text)
    code, _, err = call("jobs", "eight.yaml", "tiny.yaml", "tiny.yaml", "--out", "j", "--quiet")
    assert (code, err) == (0, "")
    loaded("j/trace.json.gz")
    small("--tp", "2", "--pp", "2", "--global-batch", "16")
    assert call("export", "chakra", "r", "--out", "et", "--quiet")[0] == 0
    assert call("import", "chakra", "et", "cluster.yaml", "--trace", "played.json.gz", "--quiet")[0] == 0
    loaded("played.json.gz")
