"""Training on tiny tables: tables that are wrong, a law that is recovered, and determinism."""

import numpy as np
import polars as pl
import pytest

from clustersim import gpus, plugins
from clustersim.errors import DataError
from clustersim.predictors import curriculum, linear, sources, tables
from clustersim.predictors.classes import SIMT, TENSOR
from clustersim.predictors.model import ROOM
from clustersim.predictors.training import Plan
from clustersim.workload.kernel import gemm

FP32_GPUS = {"train": ("Tesla T4", "NVIDIA A100-PCIE-40GB"), "test": ("NVIDIA H100 80GB HBM3",)}
TENSOR_GPUS = ("a100_sxm", "h100_sxm")


def fp32_rows(rng, split, gpu):
    board = gpus.load(gpu)
    for op in ("linear", "bmm", "add", "softmax", "ln"):
        for _ in range(40):
            row = {"vendor": "nvidia", "split": split, "gpu": gpu, "op": op}
            if op in ("linear", "bmm"):
                b = int(rng.integers(1, 64)) if op == "bmm" else 1
                m, n, k = (int(x) for x in rng.integers(64, 4096, 3))
                seconds = 30e-6 + 2 * b * m * n * k / (0.7 * board.matrix_peak("fp32"))
                yield row | {"group": op, "b": b, "m": m, "n": n, "k": k, "h": None, "latency_s": seconds}
            else:
                b, h = int(rng.integers(2000, 60000)), int(rng.integers(512, 4096))
                group = "elem" if op == "add" else op
                seconds = 30e-6 + 8.0 * b * h / (0.8 * board.memory_bandwidth)
                yield row | {"group": group, "b": b, "m": None, "n": None, "k": None, "h": h, "latency_s": seconds}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for part in ("neusight", "kernels"):
        (folder / part).mkdir()
    rows = [row for split, names in FP32_GPUS.items() for gpu in names for row in fp32_rows(rng, split, gpu)]
    pl.DataFrame(rows).write_parquet(folder / tables.FP32)
    gemms, attentions = [], []
    for gpu in TENSOR_GPUS:
        for _ in range(40):
            m, n, k = (int(x) for x in rng.integers(128, 8192, 3))
            seconds = 3e-6 + 2 * m * n * k / (0.7 * gpus.load(gpu).matrix_peak("bf16"))
            gemms += [
                {"gpu": gpu, "dtype": dtype, "m": m, "n": n, "k": k, "latency_s": seconds}
                for dtype in ("bfloat16", "fp8")
            ]
            shape = {"batch": int(rng.integers(1, 9)), "seq": 512 * int(rng.integers(1, 9)), "heads": 16, "kv_heads": 8}
            work = 2 * shape["batch"] * 16 * shape["seq"] ** 2 * 128
            kernel = "flash_attention" if gpu == "a100_sxm" else "fa3"
            seconds = 5e-6 + work / (0.5 * gpus.load(gpu).matrix_peak("bf16"))
            attentions += [
                {"gpu": gpu, "kernel": kernel, "dtype": dtype, **shape, "head_dim": 128, "latency_s": seconds}
                for dtype in ("bfloat16", "fp8")
            ]
    pl.DataFrame(gemms).write_parquet(folder / tables.GEMM)
    pl.DataFrame(attentions).write_parquet(folder / tables.ATTENTION)
    return folder


@pytest.fixture
def short(monkeypatch):
    for module in ("neusight", "habitat"):
        brief = Plan(members=2, widths=(8, 8), steps=60, batch=32)
        monkeypatch.setattr(f"clustersim.predictors.{module}.PLAN", brief)


@pytest.mark.parametrize("name", ["linear", "habitat", "neusight"])
def test_training_depends_on_the_seed_alone(name, data, short):
    learn = plugins.load(ROOM, name, "train")
    first, again = learn(data, 1), learn(data, 1)
    assert first.meta == again.meta
    assert set(first.classes) == {*SIMT, *TENSOR, "memory"}
    for kind, parameters in first.classes.items():
        for key, value in parameters.items():
            np.testing.assert_array_equal(value, again.classes[kind][key])
    if name != "linear":
        other = learn(data, 2)
        assert (other.classes["fp32/linear"]["mlp.0.weight"] != first.classes["fp32/linear"]["mlp.0.weight"]).any()
    assert first.meta["errors"]["fp32/linear"]["h100-sxm"]["unseen"]
    assert set(first.meta["errors"]["half/linear"]) == {"a100-sxm-80gb", "h100-sxm"}


def test_regression_recovers_the_rates(data):
    weights = linear.train(data)
    slope = weights.classes["fp32/linear"]["slope"]
    assert slope[0] == pytest.approx(1 / 0.7, rel=1e-3)
    assert weights.classes["fp32/linear"]["dispatch"] == pytest.approx(30e-6, rel=1e-2)
    assert weights.meta["errors"]["fp32/linear"]["h100-sxm"]["mean"] < 0.01
    assert weights.classes["memory"]["fraction"] > 0.7


def test_nonnegative_regression():
    rng = np.random.default_rng(0)
    design = rng.random((50, 3))
    np.testing.assert_allclose(linear.nonnegative(design, design @ [1.0, 0.0, 2.0]), [1, 0, 2], atol=1e-9)
    assert (linear.nonnegative(design, -design.sum(axis=1)) == 0).all()


def test_leaving_a_generation_out_leaves_no_row_of_it(data):
    groups = curriculum._generations(curriculum.courses(data, 0)["half/linear"].learned)
    assert list(groups) == ["ampere", "hopper"]
    assert (groups["ampere"] ^ groups["hopper"]).all()


def test_missing_tables_and_columns_are_named(tmp_path, data):
    with pytest.raises(DataError, match=r"no such table; the folder of measurements should hold neusight/kernels_fp32"):
        tables.fp32(tmp_path, "train")
    (tmp_path / "neusight").mkdir()
    pl.read_parquet(data / tables.FP32).drop("latency_s").write_parquet(tmp_path / tables.FP32)
    with pytest.raises(DataError, match=r"has no column latency_s; expected vendor, split"):
        tables.fp32(tmp_path, "train")
    (tmp_path / tables.FP32).write_text("not parquet")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        tables.fp32(tmp_path, "train")
    with pytest.raises(DataError, match="no such file or folder"):
        sources.given([tmp_path / "none"])


def test_no_folder_is_one_sentence(monkeypatch):
    monkeypatch.delenv("CLUSTERSIM_DATA", raising=False)
    with pytest.raises(DataError, match=r"pass --data DIR or set \$CLUSTERSIM_DATA"):
        sources.given()


def test_samples_carry_the_flop_and_bytes_of_their_kernels(data):
    train = tables.fp32(data, "train")
    first = train.of("linear").select([0]).table
    same = gemm("linear", "forward", "fp32", 1, *(int(x[0]) for x in (first.m, first.n, first.k)))
    assert (first.flop[0], first.bytes[0]) == (same.flop, same.bytes)


def test_command_line(data, tmp_path, capsys, monkeypatch):
    from typer.testing import CliRunner

    from clustersim.cli.predictor import app

    out = tmp_path / "linear.safetensors"
    done = CliRunner().invoke(app, ["train", "linear", "--data", str(data), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert out.is_file()
    arguments = ["evaluate", "--data", str(data), "-p", "linear", "--weights", str(out), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    import json

    rows = json.loads(done.output)["errors"]
    assert {row["new"] for row in rows} == {"GPU", "nothing"}
    assert {"predictor", "kind", "gpu", "mean", "median", "p90", "samples"} <= set(rows[0])
    assert CliRunner().invoke(app, ["show", "-p", "neusight"]).exit_code == 0
