"""Weights files: what is damaged or foreign is one sentence; numpy forecasts what torch has learned."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save as pack

from clustersim import plugins
from clustersim.errors import DataError, InputError
from clustersim.hardware import gpus
from clustersim.model.kernel import attention, gemm
from clustersim.predictors import weights_file
from clustersim.predictors.base import ROOM
from clustersim.predictors.classes import GROUPED, MEMORY, SIMT, TENSOR
from clustersim.predictors.features import columns
from clustersim.predictors.kinds.neusight import products
from clustersim.predictors.mlp import standardise

LEARNED = ("habitat", "linear", "neusight")


def load(name, path=None):
    return plugins.load(ROOM, name, "load")(path)


@pytest.mark.parametrize("name", LEARNED)
def test_shipped_weights_say_where_they_come_from(name):
    meta = load(name).weights.meta
    assert meta["predictor"] == name
    assert set(meta["learned"]) == set(meta["errors"])
    assert {*SIMT, *TENSOR} <= set(meta["learned"]) <= {*SIMT, *TENSOR, *GROUPED}
    assert {"h100-sxm", "l4", "a100-pcie-80gb"} <= set(meta["errors"]["fp32/linear"])
    assert meta["errors"]["fp32/linear"]["h100-sxm"]["unseen"]
    assert not {"h100-sxm", "l4", "a100-pcie-80gb"} & set(meta["learned"]["fp32/linear"]["gpus"])


def test_shipped_weights_are_small():
    assert sum(path.stat().st_size for path in weights_file.FOLDER.iterdir()) <= 5e6


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_truncated_weights(name, share, tmp_path):
    whole = weights_file.shipped(name).read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match=rf"cut.safetensors: damaged or not a safetensors file; .*lab train {name}"):
        load(name, path)


@pytest.mark.parametrize("raw", [b"", b"\0" * 64, b"\xff" * 64, os.urandom(512), b"PK\3\4 a zip", b"{}", "ü".encode()])
def test_files_that_are_no_weights(raw, tmp_path):
    path = tmp_path / "foreign.safetensors"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"foreign.safetensors: damaged or not a safetensors file"):
        load("neusight", path)


NONE = "holds no weights of 'neusight'"


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        (None, NONE),
        ({"format": "other"}, NONE),
        ({weights_file.FORMAT: "[1]"}, NONE),
        ({weights_file.FORMAT: "{"}, "damaged"),
    ],
)
def test_weights_of_something_else(meta, said, tmp_path):
    path = tmp_path / "other.safetensors"
    path.write_bytes(pack({"model.layers.0.weight": np.zeros(3, dtype=np.float32)}, meta))
    with pytest.raises(DataError, match=f"other.safetensors: {said}"):
        load("neusight", path)


def test_weights_that_are_not_finite(tmp_path):
    weights = load("linear").weights
    broken = {**weights.classes, "fp32/bmm": {**weights.classes["fp32/bmm"], "slope": np.array([np.nan, 1.0])}}
    weights_file.save(tmp_path / "w.safetensors", weights_file.Weights(broken, weights.meta))
    with pytest.raises(DataError, match=r"fp32/bmm\|slope is not finite"):
        load("linear", tmp_path / "w.safetensors")


def without(weights, *names):
    """Return weights with other classes or metadata missing, as files of other versions have them."""
    meta = {key: value for key, value in weights.meta.items() if key not in names}
    return weights_file.Weights({key: value for key, value in weights.classes.items() if key not in names}, meta)


@pytest.mark.parametrize("name", ["errors", "learned"])
def test_metadata_that_lacks_what_forecasts_say(name, tmp_path):
    path = tmp_path / "w.safetensors"
    weights_file.save(path, without(load("linear").weights, name))
    with pytest.raises(DataError, match=rf"w.safetensors: lacks {name} in the metadata"):
        load("linear", path)


@pytest.mark.parametrize("name", LEARNED)
def test_every_class_that_is_missing_is_named(name, tmp_path):
    weights, path = load(name).weights, tmp_path / "w.safetensors"
    for kind in (*SIMT, *TENSOR, MEMORY):
        weights_file.save(path, without(weights, kind))
        with pytest.raises(DataError, match=rf"w.safetensors: lacks {kind} "):
            load(name, path)


def test_missing_and_unwritable_files(tmp_path):
    with pytest.raises(DataError, match="no such weights; train them with"):
        load("neusight", tmp_path / "none.safetensors")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        weights_file.save(tmp_path / "file" / "w.safetensors", load("linear").weights)


def test_saving_twice_gives_the_same_bytes_and_no_leftovers(tmp_path):
    for name in ("a", "b"):
        weights_file.save(tmp_path / name, load("neusight").weights)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


SOME = {
    "fp32/linear": [gemm("linear", "forward", "fp32", 1, 700 * i, 513 * i, 999) for i in range(1, 9)],
    "fp32/bmm": [gemm("bmm", "forward", "fp32", 16 * i, 512, 64, 512) for i in range(1, 9)],
    "half/linear": [gemm("linear", "forward", "bf16", 1, 700 * i, 513 * i, 999) for i in range(1, 9)],
    "half/grouped_gemm": [gemm("grouped_gemm", "wgrad", "bf16", 8, 512 * i, 4096, 333) for i in range(1, 9)],
    "half/flash_attention": [attention("forward", "bf16", i, 16, 8, 2048, 2048, 128, True) for i in range(1, 9)],
}


@pytest.mark.parametrize("kind", sorted(SOME))
def test_numpy_equals_torch(kind):
    torch = pytest.importorskip("torch")
    from clustersim.predictors.kinds.neusight import FEW, gemm, seconds

    gpu, table = gpus.load("rtx-4090"), columns(SOME[kind])  # not measured, nor is one like it: without networks
    parameters = load("neusight").weights.classes[kind]
    family = next((family for family in FEW if kind in family.CLASSES), gemm)
    rows = family.terms(table, gpu)
    if family is gemm:
        rows["speed"] = np.stack([products.speed(parameters, gpu, dtype)[0, 0] for dtype in table.dtype.tolist()])
        rows["heat"] = 0 * rows["heat"]
    found = seconds(parameters, table, gpu, alone=False)
    for dtype, near in ((torch.float32, 5e-6), (torch.float64, 1e-6)):
        as_torch = [{k: torch.tensor(v, dtype=dtype) for k, v in part.items()} for part in (parameters, rows)]
        learned = family.log_seconds(torch, *as_torch).mean(0).exp().numpy()
        np.testing.assert_allclose(found, learned, rtol=near)


def test_networks_are_the_same_in_numpy_and_torch():
    torch = pytest.importorskip("torch")
    from clustersim.predictors.mlp import forward

    net = load("habitat").weights.classes["half/linear"]
    features = np.random.default_rng(0).normal(size=(50, net["mlp.0.weight"].shape[1]))
    as_torch = {key: torch.tensor(value, dtype=torch.float32) for key, value in net.items()}
    learned = forward(torch, as_torch, torch.tensor(features, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(forward(np, net, features), learned, atol=1e-5)


def test_features_outside_of_the_training_rows_count_as_those_at_their_edge():
    parameters = load("habitat").weights.classes["half/linear"]
    low, high = (np.atleast_2d(parameters[name]) for name in ("low", "high"))
    edges, far = np.vstack([low, high]), np.vstack([low - 50, high + 50])
    np.testing.assert_array_equal(standardise(parameters, far), standardise(parameters, edges))


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_errors_in_the_metadata_are_those_of_the_test_split(name, data_folder):
    from clustersim.lab.data import tables
    from clustersim.lab.data.samples import pick
    from clustersim.lab.evaluate import figures, ratios

    samples, predictor = tables.fp32(data_folder, "test"), load(name)
    stored = predictor.weights.meta["errors"]
    for kind in SIMT:
        for gpu, ratio, part in ratios(predictor, kind, pick(samples, kind)):
            entry, found = stored[kind][gpu.name], figures(ratio, part.table)
            assert len(part) == entry["count"]
            assert found["mean"] == pytest.approx(entry["mean"], rel=1e-3)
            assert found["median"] == pytest.approx(entry["median"], rel=1e-3)


@pytest.fixture
def data_folder():
    folder = os.environ.get("CLUSTERSIM_DATA")
    if not folder or not (Path(folder) / "neusight/kernels_fp32.parquet").is_file():
        pytest.skip("no measured kernels: $CLUSTERSIM_DATA does not hold neusight/kernels_fp32.parquet")
    return Path(folder)


@pytest.mark.parametrize("place", [0.3, 0.6, 0.99])
def test_a_flipped_bit_is_noticed(tmp_path, place):
    raw = bytearray(weights_file.shipped("linear").read_bytes())
    raw[int(place * len(raw))] ^= 1
    path = tmp_path / "linear.safetensors"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"linear\.safetensors: (damaged|lacks|holds)"):
        weights_file.read(path, "linear")
