"""What differs between results, key by key and second by second; and a profiler's trace beside a forecast."""

from __future__ import annotations

import gzip
import json
import math
from itertools import product
from pathlib import Path

import output_cases
import pytest

from clustersim.errors import InputError
from clustersim.explain.differences import Comparison, compared
from clustersim.explain.gpu_trace import measured
from clustersim.explain.text import compared as lines
from clustersim.explain.text import plain

FASTER = "--tp", "4", "--pp", "2", "--set", "parallelism.overlap.p2p=true"


@pytest.fixture
def results(small):
    """Return a function that runs the small job and gives the folder."""
    return lambda name, *options: small(*options, out=name)


def test_differences_are_the_keys_that_were_changed_and_no_default(results):
    found = compared([results("a", "--tp", "4", "--pp", "2"), results("b", *FASTER, "--nic", "200Gb/s")])
    assert found.differences == {
        "cluster.node.nics.rate": (50e9, 25e9),
        "fabric.link.rate": ("400Gb/s", "200Gb/s"),
        "parallelism.overlap.p2p": (False, True),
    }


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("results/a", "results/b"), ["a", "b"]),
        (("results/a", "old/a"), ["results/a", "old/a"]),
        (("results/" + "x" * 30, "results/" + "x" * 30 + "-tp_8"), ["1", "2"]),
        (("superpod_h100_128-llama3_70b", "superpod_h100_128-llama3_70b-2"), ["…llama3_70b", "…llama3_70b-2"]),
    ],
)
def test_columns_are_called_by_what_differs_of_their_folders(results, names, columns):
    found = compared([results("a", "--tp", "4", "--pp", "2"), results("b", *FASTER)])
    named = Comparison(tuple(one._replace(name=name) for one, name in zip(found.results, names, strict=True)))
    text = lines(named)
    assert [line.split()[-3:-1] for line in text if line.startswith("where")] == [columns] * 2
    assert all(name in line for name, line in zip(names, text, strict=False))


def test_a_folder_that_is_mistyped_is_guessed(results, call):
    results("results/tree-gpt3", "--tp", "4", "--pp", "2")
    for typed in ("results/tree-gpt", "tree-gpt3", "result/tree-gpt3"):
        code, _, err = call("explain", typed)
        assert code == 2
        assert f"{typed}: is no result; did you mean 'results/tree-gpt3'? give the folder of a run" in err


def test_what_parts_change_adds_up_to_what_the_step_changes(results):
    found = compared([results("a", "--tp", "4", "--pp", "2"), results("b", *FASTER), results("c", "--tp", "2")])
    steps = [one.summary.step_time_s for one in found.results]
    for what in ("breakdown_s", "critical_path_s", "by_stream_s", "by_link"):
        parts = found.seconds(what).values()
        for place, step in enumerate(steps):
            change = math.fsum(values[place] - values[0] for values in parts)
            assert change == pytest.approx(step - steps[0], rel=1e-9, abs=1e-12), what


def test_a_file_that_has_changed_since_is_named_and_the_summary_compared(results, call):
    results("a", "--tp", "4", "--pp", "2")
    Path("job.yaml").write_text(output_cases.JOB.replace("hidden: 1024", "hidden: 2048"))
    results("b", "--tp", "8", "--pp", "2")
    code, out, err = call("compare", "a", "b")
    assert (code, err) == (0, "")
    assert "workload (its keys are not known: job.yaml has changed since)" in out
    assert "parallelism.tp" in out


def test_the_same_result_twice_differs_in_nothing(results, call):
    results("a", "--tp", "4")
    code, out, err = call("compare", "a", "a")
    assert (code, err) == (0, "")
    assert out.endswith("nothing in the inputs differs\n")
    code, out, _ = call("compare", "a", "a", "--json")
    assert json.loads(out)["differences"] == []


@pytest.mark.parametrize("text", ["<script>", "a\x1b[31mb", "\u202eevil", "x" * 10_000, 'quote"', "line\nline"])
def test_hostile_values_are_one_printable_line(text):
    assert plain(text).isprintable()
    assert len(plain(text)) <= 44


# a trace of PyTorch's profiler


def kernel(name, start, took, stream, **args):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": took, "args": {"stream": stream, **args}}


GEMM, NORM = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "void at::native::vectorized_layer_norm_kernel<float>"
EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 1000, "dur": 1000},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "ts": 2000, "dur": 1000},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1000, "dur": 5, "tid": 1},
    kernel(GEMM, 500, 100, 7),
    *(
        event
        for start in (1000, 2000)
        for event in (
            kernel(GEMM, start, 400, 7),
            kernel("flash_fwd_splitkv_kernel", start + 400, 100, 7),
            kernel(NORM, start + 500, 50, 7),
            kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", start + 450, 200, 20),
            kernel("ncclDevKernel_Generic", start + 700, 100, 20, **{"Collective name": "allreduce"}),
            {**kernel("Memcpy DtoD", start + 900, 50, 7), "cat": "gpu_memcpy"},
        )
    ),
]


def traced(path, events=EVENTS, **more):
    text = json.dumps({"schemaVersion": 1, "traceEvents": events, **more}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_a_lambda_is_no_lamb(tmp_path):
    silu = "void at::native::vectorized_elementwise_kernel<4, silu_kernel(at::TensorIteratorBase&)::{lambda()#1}>"
    found = measured(traced(tmp_path / "t.json", [kernel(silu, 0, 10, 7), kernel("fused_lamb_stage1", 10, 20, 7)]))
    assert found.by_class == pytest.approx({"element-wise and memory": 10e-6, "optimizer": 20e-6})


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_the_mean_of_its_marked_steps(tmp_path, name):
    found = measured(traced(tmp_path / name, distributedInfo={"rank": 5, "world_size": 8}))
    assert (found.rank, found.steps, found.on_gpu) == (5, 2, True)
    us = 1e-6
    assert found.step_time == pytest.approx(1000 * us)
    kinds = {"products": 400, "attention": 100, "norm and softmax": 50, "communication": 300}
    kinds["element-wise and memory"] = 50
    assert found.by_class == pytest.approx({kind: t * us for kind, t in kinds.items()})
    assert found.by_collective == pytest.approx({"reduce_scatter": 200 * us, "all_reduce": 100 * us})
    assert found.by_stream == pytest.approx({"7": 600 * us, "20": 300 * us})
    assert found.exposed == pytest.approx((100 + 100) * us)  # of 300 us of NCCL 100 lie beside computation
    assert found.idle == pytest.approx((50 + 100 + 50) * us)
    assert found.gaps == 3
    assert found.longest_gap == pytest.approx(100 * us)


def test_classes_and_idle_time_add_up_to_the_step(tmp_path):
    """Nothing is lost: busy streams less what overlaps, and idle time, are the step."""
    found = measured(traced(tmp_path / "trace.json"))
    overlap = found.by_class["communication"] - found.exposed
    assert sum(found.by_class.values()) - overlap + found.idle == pytest.approx(found.step_time)


def test_a_trace_lies_beside_the_forecast_of_its_rank(results, call):
    results("a", "--tp", "4", "--pp", "2")
    traced(Path("trace.json"), distributedInfo={"rank": 20})
    code, out, err = call("compare", "a", "trace.json", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["rank"], found["steps_in_trace"]) == (20, 2)
    step = found["step"][0]
    assert step["trace_s"] == pytest.approx(1e-3)
    assert step["ratio"] == pytest.approx(step["trace_s"] / step["forecast_s"])
    kernels = {row["name"]: row["forecast_s"] for row in found["kernels"]}
    summary = json.loads(Path("a/summary.json").read_text())
    import polars as pl

    ranks = pl.read_parquet("a/ranks.parquet").filter(pl.col("rank") <= 20)
    last = ranks.filter(pl.col("rank") == ranks["rank"].max()).row(0, named=True)
    assert kernels["all"] == pytest.approx(last["compute_s"] + last["optimizer_s"], rel=1e-9)
    assert found["step"][2]["forecast_s"] == pytest.approx(last["bubble_s"], rel=1e-12)
    assert step["forecast_s"] == summary["step_time_s"]
    code, out, err = call("compare", "a", "trace.json", "--rank", "0")
    assert (code, err) == (0, "")
    assert out.startswith("rank 0 of the forecast and the trace: kernels of a GPU; the mean of 2 marked steps\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not valid JSON"),
        ("3", "has no traceEvents"),
        ('{"traceEvents": 3}', "has no traceEvents"),
        ('{"traceEvents": []}', "has neither kernels (cat: kernel) nor operators"),
        ('{"traceEvents": [3, {}, {"ph": "X", "cat": "kernel", "ts": "a", "dur": 1}]}', "has neither kernels"),
    ],
)
def test_what_is_no_trace_is_one_sentence(tmp_path, text, sentence):
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(InputError) as raised:
        measured(tmp_path / "trace.json")
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("a",), "a: a single result cannot be compared; give two or more, or one and a trace"),
        (("a", "b", "x.json"), "x.json: a trace is compared with one result; give only that and the trace"),
        (("a", "b", "--rank", "3"), "--rank 3: is for a trace; give one behind the result"),
        (("a", "b"), "a: is no result; give the folder of a run, such as one below results/"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(call, arguments, sentence):
    assert call("compare", *arguments) == (2, "", f"clustersim: {sentence}\n")


ODD = (None, [], {}, "x", True, -1, 1e300, 10**400, float("nan"), float("inf"))


@pytest.mark.parametrize("category", ["kernel", "cpu_op", "user_annotation"])
def test_an_event_with_a_value_that_its_key_cannot_have_is_left_out_or_read_as_text(tmp_path, category):
    whole = {"ph": "X", "cat": category, "name": "ProfilerStep#1", "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0}
    whole |= {"args": {"stream": 7}}
    other = {**whole, "cat": "kernel", "name": "gemm", "ts": 11.0, "dur": 2.0}
    for key, odd in product(whole, ODD):
        (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [{**whole, key: odd}, other]}))
        try:
            found = measured(tmp_path / "trace.json")
        except InputError as error:
            assert "nothing ran between its marks" in str(error), (key, odd)
        else:
            assert 0 < found.step_time < 1e-4, (key, odd)


def test_a_forecast_is_no_measured_trace(call):
    run = ("run", "nvlink_h100_4", "gpt2_large", "--tp", "2", "--pp", "2", "--out", "a", "--quiet")
    assert call(*run)[0] == 0
    said = (
        "clustersim: a/trace.json.gz: is a forecast, which clustersim wrote; give a measured trace, of torch.profiler\n"
    )
    assert call("compare", "a", "a/trace.json.gz") == (2, "", said)


@pytest.mark.slow
def test_a_real_trace_of_a_cpu(tmp_path):
    """PyTorch's own profiler: two steps of a small network, operators without what they call."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, schedule

    net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.Linear(256, 256))
    path = tmp_path / "real.json.gz"
    asked = schedule(wait=1, warmup=1, active=2, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=asked, on_trace_ready=lambda p: p.export_chrome_trace(str(path))
    ) as profiler:
        for _ in range(4):
            net(torch.randn(64, 256)).sum().backward()
            profiler.step()
    found = measured(path)
    assert (found.steps, found.on_gpu) == (2, False)
    assert found.by_class["products"] > 0
    assert found.by_class["norm and softmax"] > 0
    busy = sum(found.by_stream.values())
    assert sum(found.by_class.values()) == pytest.approx(busy)
    assert found.idle + busy >= found.step_time * (1 - 1e-9)
