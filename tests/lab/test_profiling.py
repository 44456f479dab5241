"""The profiler: every case constructs and runs on a CPU at small sizes; files survive being killed; rows can be learned from."""

import contextlib
import csv
import gc
import math
import warnings
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

from small_kernels import SmallPlan, WallClock, small_case, small_trial  # noqa: E402
from small_kernels import cpu as small_device  # noqa: E402

from clustersim.cli.lab import app  # noqa: E402
from clustersim.errors import DataError, InputError  # noqa: E402
from clustersim.hardware import gpus  # noqa: E402
from clustersim.lab.data import own_measurements  # noqa: E402
from clustersim.lab.data.own_measurements import COLUMNS, read  # noqa: E402
from clustersim.lab.measure import cases, decoder, device, profile, timing  # noqa: E402
from clustersim.lab.measure.cases import DECODERS, Trial, linears  # noqa: E402
from clustersim.lab.measure.log import KEY, WHOLE_COLUMNS, WHOLE_KEY, MeasurementLog  # noqa: E402
from clustersim.lab.measure.profile import Bench, MeasurementPlan  # noqa: E402
from clustersim.lab.measure.runners import BUILDERS  # noqa: E402
from clustersim.lab.measure.trials import launch_cost  # noqa: E402
from clustersim.predictors.features import columns  # noqa: E402


@pytest.fixture(autouse=True)
def slow_cpu(monkeypatch):
    """A busy CPU takes as long as it likes: the rule that a GPU's kernel keeps near its roofline is not for it."""
    monkeypatch.setattr(own_measurements, "SLOWEST", 1e9)
    monkeypatch.setattr(profile, "CudaClock", WallClock)


LACKING = {  # what torch cannot do on a CPU
    "torch adds 16-bit products to fp32 on CUDA only",
    "RuntimeError: No viable backend for scaled_dot_product_attention was found.",
    "a CPU has neither streams nor graphs",
    "liger-kernel is not installed",
    "transformers is not installed",
    "liger-kernel computes the gradient of logits in the forward pass",
    "torch multiplies groups in fp8 on CUDA only",
}


@pytest.fixture
def cpu():
    return small_device("h200")


@pytest.mark.parametrize("suite", [s for s in profile.EVERY if s not in ("models", "mixtures")])
def test_every_case_of_a_suite_runs_on_a_cpu(suite, cpu, tmp_path):
    _all_run(suite, cpu, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["models", "mixtures"])
def test_every_step_runs_on_a_cpu(suite, cpu, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's compiler warns of its own deprecations
        _all_run(suite, cpu, tmp_path)


MIXTURE = small_trial(cases.trials(["mixtures"])[0]).model


def test_experts_in_groups_and_one_by_one_give_the_same(cpu):
    w, x = decoder.weights(MIXTURE, cpu), cpu.normal((2, 16, MIXTURE.hidden), "bf16", grad=True)
    inputs = (x, w["router"], w["fc1"], w["fc2"])
    both = [mixture(MIXTURE, w, x) for mixture in (decoder.grouped_mixture, decoder.looped_mixture)]
    slopes = [torch.autograd.grad(out.float().square().sum(), inputs) for out in both]
    for one, other in [both, *zip(*slopes, strict=True)]:
        assert torch.linalg.vector_norm((one - other).float()) < 0.02 * torch.linalg.vector_norm(other.float())


def test_rows_of_experts_are_tokens_in_the_order_of_experts(cpu):
    x, chosen = cpu.normal((16, MIXTURE.hidden), "bf16"), torch.stack([torch.randperm(4)[:2] for _ in range(16)])
    rows, order, ends = decoder.permuted(MIXTURE, x, chosen)
    experts = chosen.flatten()[order]
    assert (experts.diff() >= 0).all()
    assert ends.tolist() == chosen.flatten().bincount(minlength=4).cumsum(0).tolist()
    assert (rows == x[order // 2]).all()
    assert (decoder.unpermuted(MIXTURE, rows, order, torch.full((16, 2), 0.5)) == x).all()


def _all_run(suite, cpu, tmp_path):
    said = []
    bench, chosen = Bench(cpu, tmp_path / "k.csv", said.append), SmallPlan((suite,))
    rows = bench.run(chosen)
    lost = [text.partition("left out: ")[2] for text in said if "left out" in text]
    assert {text for text in lost if not any(text.startswith(known) for known in LACKING)} == set()
    assert rows == len(said) - len(lost) > 0
    if suite in cases.SUITES:
        assert (read(tmp_path / "k.csv").samples.seconds > 0).all()
    assert Bench(cpu, tmp_path / "k.csv", said.append).run(chosen) == 0


def test_a_row_is_the_case_that_was_measured(cpu, tmp_path):
    case = small_case(cases.cases(["gemm"])[0])
    bench = Bench(cpu, tmp_path / "k.csv", lambda _: None)
    list(bench._case(case))
    found = read(tmp_path / "k.csv")
    assert found.mode.tolist() == ["burst"]
    same = columns([case.kernel])
    for name in same.__slots__:
        assert (getattr(found.samples.table, name) == getattr(same, name)).all(), name
    [row] = csv.DictReader((tmp_path / "k.csv").read_text().splitlines())
    assert row["layout"] == "tn"
    assert float(row["low_s"]) <= float(row["latency_s"])


def test_suites_are_plain_and_complete():
    every = cases.cases(cases.SUITES)
    kernels = {(c.kernel.kind, c.kernel.op, c.kernel.dtype) for c in every}
    for op in ("forward", "dgrad", "wgrad"):
        assert {
            ("linear", op, "bf16"),
            ("linear", op, "fp8"),
            ("linear", op, "fp16"),
            ("grouped_gemm", op, "bf16"),
            ("grouped_gemm", op, "fp8"),
        } <= kernels
    assert {("flash_attention", op, "bf16") for op in ("forward", "backward")} <= kernels
    assert len([c for c in every if c.kernel.kind == "linear"]) > 300
    assert [c.tier for c in every] == sorted(c.tier for c in every)
    assert len({(c.kernel, c.layout, c.note) for c in every}) == len(every)
    assert max(c.kernel.flop for c in every) <= cases.MOST_FLOP
    columns([c.kernel for c in every])
    assert {t.mode for t in cases.trials(["models"])} == {"eager", "compiled"}


def test_linears_of_a_rank_are_megatrons():
    assert {one.name: one[1:] for one in linears(DECODERS["gpt3-175b"], 8)} == {
        "qkv": (12288, 4608),
        "projection": (1536, 12288),
        "fc1": (12288, 6144),
        "fc2": (6144, 12288),
        "logits": (12288, 6400),
    }
    assert linears(DECODERS["llama3-70b"], 8)[0][1:] == (8192, 1024 + 2 * 128)
    assert DECODERS["llama3-70b"].parameters == pytest.approx(70.55e9, rel=1e-3)
    assert DECODERS["gpt3-175b"].parameters == pytest.approx(175e9, rel=0.01)


@pytest.mark.parametrize("layout", ["tn", "nn", "nt"])
def test_operands_lie_as_the_layout_says(layout, cpu):
    from clustersim.lab.measure.runners import operands

    case = small_case(next(c for c in cases.cases(["gemm"]) if c.layout == layout and c.kernel.dtype == "bf16"))
    a, b = operands(case, cpu)
    assert (a.shape, b.shape) == ((case.kernel.m, case.kernel.k), (case.kernel.k, case.kernel.n))
    # cuBLAS is column-major: a row-major matrix is "n" to it as the second operand, transposed ("t") as the first
    assert ("t" if b.stride(0) == 1 else "n") + ("t" if a.stride(0) == 1 else "n") == layout


def test_a_killed_run_keeps_its_rows(tmp_path):
    path = tmp_path / "k.csv"
    log = MeasurementLog(path, COLUMNS, KEY)
    row = {"gpu": "h200", "m": 1, "causal": True, "latency_s": 1.23456789e-5, "power_w": math.nan, "note": "a, b"}
    log.append(row)
    with path.open("a") as file:
        file.write("h200,linear,forw")
    again = MeasurementLog(path, COLUMNS, KEY)
    assert row in again
    assert row | {"m": 2} not in again
    [kept] = csv.DictReader(path.read_text().splitlines())
    assert (kept["latency_s"], kept["power_w"], kept["causal"], kept["note"]) == ("1.234568e-05", "", "1", "a, b")


def test_another_table_is_not_written_over(tmp_path):
    path = tmp_path / "k.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"k.csv:1: is not a table of this profiler; name another file with --out"):
        MeasurementLog(path, COLUMNS, KEY)
    assert path.read_text() == "a,b\n1,2\n"
    with pytest.raises(InputError, match="cannot be written"):
        MeasurementLog(tmp_path / "none/k.csv", WHOLE_COLUMNS, WHOLE_KEY)


def test_a_case_that_fails_is_left_out_and_the_next_one_runs(cpu, tmp_path, monkeypatch):
    def broken(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB.\nmore")

    monkeypatch.setitem(BUILDERS, "attention", broken)
    said = []
    Bench(cpu, tmp_path / "k.csv", said.append).run(SmallPlan(("attention", "launch")))
    assert any(
        text.endswith("left out: OutOfMemoryError: CUDA out of memory. Tried to allocate 80 GiB.") for text in said
    )
    assert any("launch dispatch" in text and "ms" in text for text in said)


def test_time_is_up(cpu, tmp_path):
    said = []
    assert Bench(cpu, tmp_path / "k.csv", said.append).run(SmallPlan(("vector",), seconds=-1)) == 0
    assert said[-1].startswith("time is up after 0 of")


def test_quick_takes_the_first_tier(cpu, tmp_path):
    assert all(one.tier == 0 for one in MeasurementPlan.of("attention", None, True).work())
    assert any(isinstance(one, Trial) for one in MeasurementPlan.of(None, 5, True).work())
    Bench(cpu, tmp_path / "k.csv", lambda _: None).run(SmallPlan.of("attention", None, True))
    assert {*read(tmp_path / "k.csv").mode} == {"burst"}


def test_wrong_options_are_one_sentence():
    with pytest.raises(InputError, match=r"--suite: 'gem' is not a suite; did you mean 'gemm'\?"):
        MeasurementPlan.of("gem,attention", None, False)
    with pytest.raises(InputError, match="--minutes is -1; write a number above 0"):
        MeasurementPlan.of(None, -1, False)


def test_without_a_gpu_there_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    done = CliRunner().invoke(app, ["profile", "--out", str(tmp_path / "k.csv")])
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith("`lab profile` measures on a CUDA GPU, and this PyTorch is a CPU build;")
    assert not list(tmp_path.iterdir())


def test_a_gpu_without_a_description_is_named(monkeypatch):
    class Facts:
        name, total_memory = "NVIDIA Mystery 1", 2**30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Facts)
    with pytest.raises(InputError, match="describe 'NVIDIA Mystery 1' in a YAML file and name it with --gpu"):
        device.cuda()
    Facts.name = "NVIDIA H200"
    assert (device.cuda().gpu, device.cuda().l2) == ("h200-sxm", gpus.load("h200").l2)


def test_command_line(tmp_path, monkeypatch):
    out = tmp_path / "k.csv"
    monkeypatch.setattr(device, "cuda", small_device)
    monkeypatch.setattr(profile, "MeasurementPlan", SmallPlan)
    arguments = ["profile", "--gpu", "h200", "--suite", "attention,launch", "--quick", "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].endswith(f"new rows in {out} and {tmp_path / 'k_steps.csv'}")
    assert len(read(out).samples) > 0


def test_clocks_and_power_are_medians_of_the_late_readings():
    looks = iter([device.Reading(100, 1), device.Reading(200, 2), device.Reading(), *[device.Reading(300, 3)] * 1000])
    with device.BoardMeter(lambda: next(looks)) as watch:
        watch._done.wait(0.75)
    assert watch.reading(skip=0.5)[:2] == (300, 3)
    with device.BoardMeter(None) as nothing:
        pass
    assert all(math.isnan(value) for value in nothing.reading())


class Gpu:
    """A CUDA that keeps time by counting: every launch takes 10 us, a fill nothing."""

    def __init__(self, captures):
        self.now, self.captures, self.graphs = 0.0, captures, []

    def launch(self):
        self.now += 1e-5

    def install(self, monkeypatch):
        gpu, empty = self, torch.empty

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing

            def record(self, stream):
                self.at = gpu.now

            def synchronize(self):
                assert self.at >= 0

            def elapsed_time(self, other):
                return 1e3 * (other.at - self.at)

        class Graph:
            def replay(self):
                for _ in range(self.launches):
                    gpu.launch()

        class Capture:
            def __init__(self, graph, stream):
                self.graph = graph

            def __enter__(self):
                self.start = gpu.now

            def __exit__(self, *_):
                self.graph.launches = round((gpu.now - self.start) / 1e-5)
                gpu.graphs.append(self.graph.launches)
                if not gpu.captures:
                    raise RuntimeError("operation not permitted when stream is capturing")

        fakes = {"Event": Event, "CUDAGraph": Graph, "graph": Capture, "Stream": object, "synchronize": lambda: None}
        fakes["set_sync_debug_mode"] = lambda mode: None
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(16, **{**k, "device": "cpu"}))


@pytest.mark.parametrize("captures", [True, False])
def test_a_cuda_clock_tells_the_time_of_one_launch(captures, monkeypatch):
    gpu = Gpu(captures)
    gpu.install(monkeypatch)
    watch = timing.CudaClock()
    found = watch.time([gpu.launch] * 3, 20)
    assert found.samples == 20
    assert (found.seconds, found.low, found.high) == pytest.approx((1e-5, 1e-5, 1e-5))
    assert gpu.graphs == [51]  # three sets, often enough for half a millisecond
    gc.unfreeze()


def test_a_cuda_clock_times_launches(monkeypatch):
    gpu = Gpu(True)
    gpu.install(monkeypatch)
    watch, cpu = timing.CudaClock(), small_device("h200")
    monkeypatch.setattr(torch, "zeros", lambda *a, **k: SimpleNamespace(add_=lambda _: gpu.launch()))
    for variant in ("stream", "graph"):
        found = launch_cost(Trial("launch", variant=variant), cpu, watch)
        assert found["samples"] == 20
        assert found["seconds"] == pytest.approx(1e-5)
    gc.unfreeze()


@pytest.mark.parametrize("filler", ["idle", "copy"])
def test_a_kernel_takes_its_share_of_a_run_over_time(filler, monkeypatch):
    gpu = Gpu(True)
    gpu.install(monkeypatch)
    monkeypatch.setattr(
        torch.cuda, "_sleep", lambda cycles: setattr(gpu, "now", gpu.now + cycles * 1e-9), raising=False
    )
    monkeypatch.setattr(timing, "REST", 0.0)
    monkeypatch.setattr(timing.CudaClock, "_filler", _counted(gpu)) if filler == "copy" else None
    watch = timing.CudaClock()
    _, chunks = watch.series([gpu.launch] * 3, 0.25, filler, 0.005)
    assert chunks[0].start == 0
    assert [chunk.seconds for chunk in chunks] == pytest.approx([1e-5] * len(chunks))
    assert [chunk.busy for chunk in chunks] == pytest.approx([0.25] * len(chunks), rel=1e-3)
    gc.unfreeze()


def _counted(gpu):
    return lambda _, kind, seconds: lambda: setattr(gpu, "now", gpu.now + seconds)


def test_rows_over_time_are_medians_of_what_lies_in_them():
    chunks = [timing.Chunk(0.01 * i, 1.0 + (i >= 100), 0.5) for i in range(200)]
    times = [0.02, 0.03, 1.2, 1.3]
    readings = [
        device.Reading(1980, 300, 40, 1),
        device.Reading(1960, 500, 42, 4),
        *[device.Reading(1400, 700, 50, 4)] * 2,
    ]
    rows = list(profile.time_rows(chunks, times, readings))
    assert [row["t_s"] for row in rows] == pytest.approx([0.025 + 0.05 * i for i in range(20)] + [1.25, 1.75])
    assert (rows[0]["clock_mhz"], rows[0]["power_w"], rows[0]["reasons"]) == (1970, 400, 5)
    assert math.isnan(rows[1]["clock_mhz"])
    assert (rows[20]["latency_s"], rows[20]["clock_mhz"], rows[20]["temperature_c"]) == (2.0, 1400, 50)
