"""Training on tiny tables: tables that are wrong, a law that is recovered, and determinism."""

import numpy as np
import polars as pl
import pytest

from clustersim import plugins
from clustersim.errors import DataError
from clustersim.hardware import gpus
from clustersim.lab.data import sources, tables
from clustersim.lab.data.tables import own_samples
from clustersim.lab.train import dataset
from clustersim.lab.train.ensemble import TrainingBudget
from clustersim.lab.train.learner import ROOM
from clustersim.lab.train.learners import linear as linear_learner
from clustersim.lab.train.learners import neusight as learner
from clustersim.model.kernel import gemm
from clustersim.predictors import weights_file
from clustersim.predictors.classes import SIMT, TENSOR
from clustersim.predictors.features import columns
from clustersim.predictors.kinds import neusight
from clustersim.predictors.kinds.neusight import products
from clustersim.predictors.learned import Learned


@pytest.fixture
def short(monkeypatch):
    for where, steps in (("habitat.BUDGET", 12), ("neusight.FEW_BUDGET", 12), ("neusight.BUDGET", 12)):
        brief = TrainingBudget(members=2, widths=(8, 8), steps=steps, batch=32, rate=3e-2)
        monkeypatch.setattr(f"clustersim.lab.train.learners.{where}", brief)
    own = TrainingBudget(members=1, widths=(8, 8), steps=8, batch=16)
    monkeypatch.setattr("clustersim.lab.train.learners.neusight.OWN_PLAN", own)


DRAWN = {"habitat": "mlp.0.weight", "neusight": "gemm.path"}


@pytest.mark.parametrize("name", ["linear", "habitat", "neusight"])
def test_training_depends_on_the_seed_alone(name, data, short):
    learn = plugins.load(ROOM, name, "train")
    first, again = learn(data, 1), learn(data, 1)
    assert first.meta == again.meta
    assert set(first.classes) == {*SIMT, *TENSOR, "memory"}
    for kind, parameters in first.classes.items():
        for key, value in parameters.items():
            np.testing.assert_array_equal(value, again.classes[kind][key])
    if name in DRAWN:
        other = learn(data, 2)
        key = DRAWN[name]
        assert (other.classes["fp32/linear"][key] != first.classes["fp32/linear"][key]).any()
    assert first.meta["errors"]["fp32/linear"]["h100-sxm"]["unseen"]
    assert set(first.meta["errors"]["half/linear"]) == {"a100-sxm-80gb", "h100-sxm"}


def named(weights, gpu):
    """Return the parameters that belong to a GPU."""
    return [f"{kind}|{key}" for kind, own in weights.classes.items() for key in own if f".{gpu}." in key]


def test_a_gpu_left_out_leaves_no_parameter(data, short):
    out = sources.named_data([data], ["A100_SXM", "t4"])
    assert out.leave_out == ("a100-sxm-80gb", "t4")
    for name, split in dataset.splits(out, 0).items():
        assert not {"a100_sxm", "Tesla T4"} & {*split.train.gpu}, name
    weights = learner.train(out, 0)
    assert weights.meta["left_out"] == ["a100-sxm-80gb", "t4"]
    assert not named(weights, "a100-sxm-80gb") + named(weights, "t4")
    assert all(not {"a100-sxm-80gb", "t4"} & {*facts["gpus"]} for facts in weights.meta["learned"].values())
    errors = weights.meta["errors"]["half/linear"]
    assert set(errors) == {"a100-sxm-80gb"}
    assert errors["a100-sxm-80gb"]["unseen"]
    assert "scalar" in errors["a100-sxm-80gb"]
    kept = named(weights, "h100-sxm")
    for kind, dtype in (("half", "bf16"), ("narrow", "fp8")):
        assert f"{kind}/linear|speed.h100-sxm.{dtype}" in kept
        assert f"{kind}/linear|own.h100-sxm.{dtype}.table" in kept
    assert "fp32/linear|speed.a100-pcie-40gb.fp32" in named(weights, "a100-pcie-40gb")
    assert not any("own." in key for key in weights.classes["fp32/linear"])


def test_what_is_trained_is_saved_and_forecasts_what_it_forecast(data, short, tmp_path):
    weights = learner.train(data, 0)
    weights_file.save(tmp_path / "w.safetensors", weights)
    some = [
        gemm("linear", "forward", dtype, 1, 512 * i, 777, 999) for i in range(1, 9) for dtype in ("fp32", "bf16", "fp8")
    ]
    opened = neusight.load(tmp_path / "w.safetensors")
    for name in ("h100", "b200", "l4"):
        before = Learned(neusight.METHOD, weights).predict(some, gpus.load(name))
        np.testing.assert_allclose(opened.predict(some, gpus.load(name)), before, rtol=1e-5)
        low, high = opened.interval(some, gpus.load(name))
        assert (low < high).all()


def measured(path, gpu, factor, count=120):
    """Write a user's file of products on a GPU, `factor` times as long as the guesses to begin with forecast."""
    rng, board = np.random.default_rng(0), gpus.load(gpu)
    kernels = [gemm("linear", "forward", "bf16", 1, *(128 * rng.integers(8, 60, 3)).tolist()) for _ in range(count)]
    seconds = factor * products.forecast(GUESS, columns(kernels), board, alone=True)
    rows = [f"{gpu},linear,forward,bf16,{k.m},{k.n},{k.k},{t}" for k, t in zip(kernels, seconds, strict=True)]
    path.write_text("\n".join(["gpu,kind,op,dtype,m,n,k,latency_s", *rows]) + "\n")


GUESS = products.gemm.start(1, "tensor") | {"gemm.level": np.zeros((1, 1))}


@pytest.mark.parametrize("own", ["rtx-4090", "mine.yaml"])
def test_a_users_gpu_gets_a_speed_of_its_own(own, data, short, tmp_path, monkeypatch):
    if own.endswith(".yaml"):
        text = (gpus.FOLDER / "rtx-4090.yaml").read_text()
        own = str(tmp_path / own)
        (tmp_path / "mine.yaml").write_text(text.replace("name: rtx-4090", "name: mine"))
    board = gpus.load(own)
    files = [tmp_path / "fast.csv", tmp_path / "other.csv"]
    measured(files[0], own, 0.8)
    measured(files[1], "h100", 1.0)
    joined = dataset.splits(sources.Data((data, files[0])), 0)["half/linear"].train
    assert board.name in {gpus.load(name).name for name in joined.gpu.tolist()}
    monkeypatch.setattr("clustersim.lab.train.learners.neusight.BUDGET", TrainingBudget(members=1, steps=300, batch=64))
    samples = own_samples(sources.Data(tuple(files)))["half/linear"]
    found = learner.fit_products("half/linear", samples, 0)
    gain = products.speed(found, board, "bf16") - products.speed(found, gpus.load("h100"), "bf16")
    assert gain[0, 0] == pytest.approx(np.log(1 / 0.8), abs=0.06)
    part = samples.select(np.char.startswith(samples.gpu, own))
    ratio = products.forecast(found, part.table, board, alone=True) / part.seconds
    assert np.median(ratio) == pytest.approx(1, abs=0.05)


def test_a_training_with_a_users_gpu_and_file_forecasts_it(data, short, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        (gpus.FOLDER / "rtx-4090.yaml").read_text().replace("name: rtx-4090", "name: mine")
    )
    measured(tmp_path / "own.csv", str(tmp_path / "mine.yaml"), 0.8)
    weights = learner.train(sources.Data((data, tmp_path / "own.csv")), 0)
    assert "half/linear|own.mine.bf16.table" in named(weights, "mine")
    predictor, some = Learned(neusight.METHOD, weights), [gemm("linear", "forward", "bf16", 1, 4096, 4096, 4096)]
    for board in (gpus.load(str(tmp_path / "mine.yaml")), gpus.load("h200")):
        low, high = predictor.interval(some, board)
        assert 0 < low[0] < high[0]
        assert predictor.statement(some, board)[0].error is not None
    assert predictor.statement(some, gpus.load(str(tmp_path / "mine.yaml")))[0].on == "mine"


def test_regression_recovers_the_rates(data):
    weights = linear_learner.train(data)
    slope = weights.classes["fp32/linear"]["slope"]
    assert slope[0] == pytest.approx(1 / 0.7, rel=1e-3)
    assert weights.classes["fp32/linear"]["dispatch"] == pytest.approx(30e-6, rel=1e-2)
    assert weights.meta["errors"]["fp32/linear"]["h100-sxm"]["mean"] < 0.01
    assert weights.classes["memory"]["fraction"] > 0.7


def test_leaving_a_generation_out_leaves_no_row_of_it(data):
    groups = dataset.generations(dataset.splits(data, 0)["half/linear"].train)
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
        sources.named_data([tmp_path / "none"])


def test_no_folder_is_one_sentence(monkeypatch):
    monkeypatch.delenv("CLUSTERSIM_DATA", raising=False)
    with pytest.raises(DataError, match=r"pass --data DIR or set \$CLUSTERSIM_DATA"):
        sources.named_data()


def test_samples_carry_the_flop_and_bytes_of_their_kernels(data):
    train = tables.fp32(data, "train")
    first = train.of("linear").select([0]).table
    same = gemm("linear", "forward", "fp32", 1, *(int(x[0]) for x in (first.m, first.n, first.k)))
    assert (first.flop[0], first.bytes[0]) == (same.flop, same.bytes)
