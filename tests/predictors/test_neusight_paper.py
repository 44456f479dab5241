"""NeuSight as published: its equation by hand, its tile lookup, its training, and weights that are wrong."""

import itertools
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from clustersim import plugins
from clustersim.cli.app import app
from clustersim.errors import DataError, InputError
from clustersim.hardware import gpus
from clustersim.lab.data import tables
from clustersim.lab.data.samples import Samples
from clustersim.lab.train.learner import ROOM as LEARNERS
from clustersim.lab.train.learners import neusight_paper
from clustersim.lab.train.learners.neusight_paper import GROUPS, KernelRecords, described, profiled
from clustersim.model.kernel import attention, gemm
from clustersim.model.kernel import vector as vector_kernel
from clustersim.predictors import weights_file
from clustersim.predictors.base import ROOM
from clustersim.predictors.features import columns
from clustersim.predictors.kinds.neusight_paper import tiles, wave, weights
from clustersim.predictors.kinds.neusight_paper.board import GIB, MIB, Board, board
from clustersim.predictors.kinds.neusight_paper.predictor import Paper
from clustersim.predictors.kinds.neusight_paper.terms import product, terms, vector

A100 = gpus.load("a100-pcie-40gb")
H100 = gpus.load("h100-sxm")
BOARDS = ("Tesla T4", "NVIDIA A100-PCIE-40GB")


def records(name, count=60, seed=0):
    """Return kernels of a class at 70 % of the roofline on two GPUs."""
    rng = np.random.default_rng(seed)
    kind = name.partition("/")[2]
    if kind in ("linear", "bmm"):
        some = [gemm(kind, "forward", "fp32", 1, *(int(x) for x in rng.integers(64, 4096, 3))) for _ in range(count)]
        sides = np.array([[64.0, 128.0], [128.0, 32.0]])[rng.integers(0, 2, count)]
    else:
        some = [vector_kernel(kind, "add", "fp32", int(m), 1024, 1, 12) for m in rng.integers(2000, 60000, count)]
        sides = None
    gpu = np.array(BOARDS)[rng.integers(0, 2, count)]
    samples = Samples(columns(some), gpu, np.ones(count))
    full = described(KernelRecords(samples, sides)).full
    return KernelRecords(Samples(samples.table, gpu, full / 0.7), sides)


@pytest.fixture(scope="module")
def trained():
    """Weights of all classes after two epochs on synthetic samples."""
    found = {name: records(name) for name in GROUPS}
    outcome = {
        name: neusight_paper.learn(
            name, neusight_paper.Recipe(1e-4, 16, epochs=2), described(rows), rows.samples.seconds, 1
        )
        for name, rows in found.items()
    }
    classes = {name: dict(result.parameters) for name, result in outcome.items()}
    for name in ("fp32/linear", "fp32/bmm"):
        classes[name] |= tiles.pack(profiled(found[name]))
    errors = {"fp32/linear": {"h100-sxm": {"mean": 0.3, "count": 7, "unseen": True}}}
    meta = {"predictor": "neusight-paper", "errors": errors, "learned": {name: {"gpus": []} for name in GROUPS}}
    return weights_file.Weights(classes, meta)


def test_the_terms_of_a_product_by_hand():
    """A100: 108 SMs, 19.5 TFLOP/s, 40 GiB, 1555 GB/s, 40 MiB; 3 batches of 1000×300 by 300×500 in tiles of 64×128."""
    one = columns([gemm("bmm", "forward", "fp32", 3, 1000, 500, 300)])
    found = terms(product(one, np.array([[64.0, 128.0]])), board(A100, matrix=True))
    waves = 2  # 3 · ceil(1000/64) · ceil(500/128) = 3 · 16 · 4 = 192 tiles on 108 SMs
    flop, size = 2 * 64 * 300 * 128, 4 * (64 * 300 + 300 * 128 + 64 * 128)
    intensity = (2 * 1024 * 300 * 512 / 1e9) / (4 * (1000 * 300 + 300 * 500 + 1000 * 500) / GIB)  # GFLOP/GiB
    assert intensity * 1555 > 19_500  # bound by compute
    assert found.waves == waves
    assert found.full == pytest.approx(waves * 108 * flop / 19.5e12)
    inputs = (
        flop / 1e9 / (19_500 / 1000 / 108),
        size / MIB / (1555 / 108),
        waves * size / MIB / (40 * 1024 / 108),
        waves * size / MIB / (40 * 1024 / 108),
    )
    np.testing.assert_allclose(found.inputs[0], np.log2(inputs), rtol=1e-12)


def test_the_terms_of_vector_kernels_by_hand():
    some = [
        vector_kernel("elementwise", "add", "fp32", 9000, 700, 1, 12),
        vector_kernel("softmax", "", "fp32", 9000, 700, 5, 8),
    ]
    found = terms(vector(columns(some)), board(A100, matrix=False))
    waves = np.ceil(np.array([9000 * 2, 9000]) / 108)  # two tiles of 512 for 700 elements, or a row
    np.testing.assert_array_equal(found.waves, waves)
    seconds = waves * 108 * np.array([512 * 12 * 700 / 1024, 700 * 8]) / (1555 * GIB)  # padded FLOP, unpadded bytes
    np.testing.assert_allclose(found.full, seconds)
    size = np.array([512 * 12, 700 * 8])
    np.testing.assert_allclose(found.inputs[:, 1], np.log2(size / MIB / (1555 / 108)))
    np.testing.assert_allclose(found.inputs[:, 0], np.log2(np.array([512, 3500]) / 1e9 / (19.5 / 108)))


def test_utilization_is_alpha_less_beta_over_waves():
    outputs = np.array([[0.0, 9.0, np.log(3.0)], [0.0, -9.0, np.log(3.0)]])  # sigmoids: 1/2, unused, 3/4
    np.testing.assert_allclose(wave.utilization(np, outputs, np.array([1.0, 5.0])), [0.25, 0.65])


def test_a_utilization_below_zero_is_no_time_as_published():
    parameters = {f"mlp.{i}.weight": np.zeros((1, a, b)) for i, (a, b) in enumerate([(4, 3)])}
    parameters["mlp.0.bias"] = np.array([[[9.0, 0.0, 0.0]]])
    one = terms(
        product(columns([gemm("bmm", "forward", "fp32", 1, 64, 64, 64)]), np.array([[64.0, 64.0]])), board(A100, True)
    )
    assert wave.seconds(parameters, one) == 0


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("NVIDIA A100-PCIE-40GB", (108, 19_492, 40, 1555, 40)),
        ("NVIDIA A100 80GB PCIe", (108, 19_492, 80, 1935, 40)),
        ("NVIDIA H100 80GB HBM3", (132, 66_908, 80, 3430, 50)),
        ("NVIDIA L4", (60, 31_334, 24, 300, 48)),
        ("Tesla P100-PCIE-16GB", (56, 9519, 16, 732, 4)),
        ("Tesla P4", (40, 5699, 8, 192, 2)),
        ("Tesla T4", (40, 8141, 15, 320, 4)),
        ("Tesla V100-PCIE-32GB", (80, 14_029, 32, 900, 6)),
    ],
)
def test_boards_are_those_of_the_published_device_files(name, figures):
    np.testing.assert_allclose(board(gpus.load(name), matrix=True), figures, rtol=7e-3)


def test_figures_of_a_users_own_gpu_are_kept():
    faster = H100.model_copy(update={"memory_bandwidth": 4e12})
    assert board(faster, matrix=True).bandwidth == 4000


some_shapes = st.lists(st.tuples(*[st.integers(1, 50_000)] * 4), min_size=1, max_size=12)


@settings(max_examples=examples(80), deadline=None)
@given(known=some_shapes, wanted=some_shapes, seed=st.integers(0, 99))
def test_the_lookup_finds_what_comparing_with_all_finds(known, wanted, seed):
    rng = np.random.default_rng(seed)
    boards = np.array([board(gpus.load(name), True) for name in ("p4", "a100-pcie-40gb", "v100-pcie-32gb")])
    owner = rng.integers(0, 3, len(known))
    marks = np.arange(2.0 * len(known)).reshape(-1, 2)
    table = tiles.Tiles(np.array(known, float), marks, owner.astype(float), boards)
    own = np.array(board(H100, True))
    points = np.hstack([table.shapes, boards[owner]])
    queries = np.hstack([np.array(wanted, float), np.tile(own, (len(wanted), 1))])
    squared = ((queries[:, None] - points) ** 2).sum(axis=2)
    found = tiles.nearest(table, np.array(wanted, float), Board(*own))
    mine = squared[np.arange(len(wanted)), (found[:, 0] / 2).astype(int)]
    np.testing.assert_allclose(mine, squared.min(axis=1), rtol=1e-9)


def test_training_lowers_the_error_and_depends_on_the_seed_alone():
    rows = records("fp32/linear", count=120)
    plan = neusight_paper.Recipe(1e-3, 32, epochs=10)
    first, again = (
        neusight_paper.learn("fp32/linear", plan, described(rows), rows.samples.seconds, 1) for _ in range(2)
    )
    for key, value in first.parameters.items():
        np.testing.assert_array_equal(value, again.parameters[key])
    assert first.validation < 0.1
    assert first.epochs == 10
    other = neusight_paper.learn("fp32/linear", plan._replace(epochs=1), described(rows), rows.samples.seconds, 2)
    assert (first.parameters["mlp.0.weight"] != other.parameters["mlp.0.weight"]).any()


def test_numpy_forecasts_what_torch_has_learned():
    torch = pytest.importorskip("torch")
    found = described(records("fp32/softmax", count=100))
    network = neusight_paper._network()
    rows = neusight_paper._Rows(*(torch.tensor(x, dtype=torch.float32) for x in (*found, found.full)))
    with torch.no_grad():
        guess = rows.guess(network).numpy()
    parameters = neusight_paper._parameters(network)
    np.testing.assert_allclose(wave.seconds(parameters, found), guess, rtol=1e-4)
    widths = [parameters[f"mlp.{i}.weight"].shape[1:] for i in range(8)]
    assert widths == [(4, 512), *[(512, 512)] * 6, (512, 3)]


def test_the_network_of_the_best_epoch_is_kept():
    rows = records("fp32/linear", count=60)
    plan = neusight_paper.Recipe(0.03, 8, epochs=4)  # far too fast: the error jumps from epoch to epoch
    runs = [
        neusight_paper.learn("x", plan._replace(epochs=e), described(rows), rows.samples.seconds, 5).validation
        for e in range(1, 5)
    ]
    assert all(later <= earlier for earlier, later in itertools.pairwise(runs))


def test_a_training_that_diverges_is_one_sentence():
    rows = records("fp32/linear")
    with pytest.raises(DataError, match=r"^fp32/linear: the training diverged in its first epoch; .* another --seed$"):
        neusight_paper.learn("fp32/linear", neusight_paper.Recipe(1e30, 8), described(rows), rows.samples.seconds, 0)


def test_fp32_kernels_of_all_classes_have_a_finite_time(trained):
    some = [gemm("linear", "forward", "fp32", 1, 4096, 4096, 4096), gemm("bmm", "forward", "fp32", 64, 128, 128, 64)]
    some += [vector_kernel(kind, "add", "fp32", 8192, 1024, 1, 12) for kind in ("elementwise", "softmax", "layernorm")]
    some += [vector_kernel("memory", "embedding", "bf16", 8192, 1024, 0, 4)]
    for gpu in gpus.everything():
        seconds = Paper(trained).predict(some, gpu)
        assert np.isfinite(seconds).all()
        assert (seconds > 0).all()
        assert seconds[-1] == pytest.approx(some[-1].bytes / gpu.memory_bandwidth / 1.073741824)
    assert Paper(trained).predict([], H100).shape == (0,)
    assert str(Paper(trained).statement(some[:1], H100)[0]) == "fp32 linear: 30.0 % on h100-sxm (7 held-out kernels)"


@pytest.mark.parametrize(
    "kernel",
    [
        gemm("linear", "forward", "bf16", 1, 64, 64, 64),
        gemm("grouped_gemm", "forward", "fp32", 4, 64, 64, 64),
        attention("forward", "fp32", 1, 1, 1, 64, 64, 64, True),
        vector_kernel("softmax", "", "bf16", 64, 64, 5, 4),
    ],
)
def test_kernels_that_the_paper_does_not_know(kernel, trained):
    with pytest.raises(InputError) as caught:
        Paper(trained).predict([kernel], H100)
    assert str(caught.value) == (
        f"kernel {kernel.kind}/{kernel.op} ({kernel.dtype}): neusight-paper supports only fp32 kernels of the kinds linear, bmm, "
        "elementwise, softmax, layernorm and memory-bound kernels; choose another predictor or set the data type to fp32"
    )


def broken(trained, name, key, change):
    classes = {kind: dict(parameters) for kind, parameters in trained.classes.items()}
    old = classes[name].pop(key)
    classes[name] |= {key: change(old)} if change else {}
    return weights_file.Weights(classes, trained.meta)


@pytest.mark.parametrize(
    ("name", "key", "change", "message"),
    [
        ("fp32/bmm", "tiles.boards", None, "fp32/bmm lacks tiles.boards"),
        ("fp32/bmm", "tiles.sides", lambda x: x[:5], "fp32/bmm has tiles.sides of another shape"),
        ("fp32/bmm", "tiles.sides", lambda x: 0 * x, "fp32/bmm has tiles without sides or GPU"),
        ("fp32/softmax", "mlp.7.bias", None, "fp32/softmax lacks mlp.7.bias"),
        ("fp32/linear", "mlp.3.weight", lambda _: np.zeros(4), "fp32/linear has mlp.3.weight of another shape"),
    ],
)
def test_weights_that_lack_something(name, key, change, message, trained, tmp_path):
    path = tmp_path / "wrong.safetensors"
    weights_file.save(path, broken(trained, name, key, change))
    with pytest.raises(
        DataError, match=rf"wrong.safetensors: {message}; train again with `clustersim lab train neusight"
    ):
        weights.opened(path)


def test_without_weights_a_sentence_says_how_to_make_them(monkeypatch, tmp_path):
    monkeypatch.setattr(weights_file, "FOLDER", tmp_path)
    with pytest.raises(DataError, match=r"ships no weights .*; train them with `clustersim lab train neusight-paper"):
        plugins.load(ROOM, "neusight-paper", "load")()
    outcome = CliRunner().invoke(app(), ["lab", "show", "--predictor", "neusight-paper"])
    assert outcome.exit_code != 0


def table(rng, gpu, split):
    """Return rows of the FP32 table: 20 kernels of each group."""
    for group in GROUPS.values():
        for _ in range(20):
            m, n, k = (int(x) for x in rng.integers(64, 2048, 3))
            product = group in ("linear", "bmm")
            shape = {"b": 2, "m": m, "n": n, "k": k, "h": None} if product else {"b": 9000 + m, "h": 512 + n}
            name = "ampere_sgemm_128x64_tn" if product else "some_kernel"
            op = "add" if group == "elem" else group
            row = {"vendor": "nvidia", "split": split, "group": group, "op": op, "gpu": gpu}
            yield {"m": None, "n": None, "k": None} | row | shape | {"latency_s": 1e-3, "kernel": name}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with a tiny FP32 table, and recipes of one epoch."""
    brief = {name: plan._replace(epochs=1) for name, plan in neusight_paper.RECIPES.items()}
    monkeypatch.setattr(neusight_paper, "RECIPES", brief)
    rng, path = np.random.default_rng(0), tmp_path / tables.FP32
    path.parent.mkdir()
    boards = [(gpu, "train") for gpu in BOARDS] + [("NVIDIA H100 80GB HBM3", "test")]
    pl.DataFrame([row for gpu, split in boards for row in table(rng, gpu, split)]).write_parquet(path)
    return tmp_path


def test_the_command_trains_and_judges_what_was_left_out(data, tmp_path):
    path = tmp_path / "paper.safetensors"
    command = ["lab", "train", "neusight-paper", "--data", str(data), "--seed", "3", "--out", str(path)]
    outcome = CliRunner().invoke(app(), command)
    assert outcome.exit_code == 0, outcome.output
    meta = weights.opened(path).meta
    assert meta["learned"]["fp32/bmm"] == {"gpus": ["a100-pcie-40gb", "t4"], "rows": 40}
    assert set(meta["errors"]) == set(meta["validation"]) == set(GROUPS)
    assert meta["errors"]["fp32/linear"]["h100-sxm"]["unseen"]
    assert meta["validation"]["fp32/linear"]["epochs"] == 1


def test_a_kernel_name_without_a_tile_is_named(data):
    path = data / tables.FP32
    pl.read_parquet(path).with_columns(kernel=pl.lit("gemv")).write_parquet(path)
    with pytest.raises(DataError, match=rf"{data.name}.*: kernel 'gemv' names no tile \(`sgemm_128x64`\)"):
        plugins.load(LEARNERS, "neusight-paper", "train")(data)
    pl.read_parquet(path).drop("kernel").write_parquet(path)
    with pytest.raises(DataError, match="has no column kernel; expected vendor, split"):
        plugins.load(LEARNERS, "neusight-paper", "train")(data)


@pytest.mark.data
def test_the_training_rows_are_the_published_ones():
    if not os.environ.get("CLUSTERSIM_DATA"):
        pytest.skip("$CLUSTERSIM_DATA is not set: no folder of measured kernels")
    from clustersim.lab.train.learners.neusight_paper import records as read

    data = Path(os.environ["CLUSTERSIM_DATA"])
    found = {name: read(data, name) for name in GROUPS}
    counts = [len(found[name].samples) for name in GROUPS]
    assert counts == [32_224, 87_623, 8250, 1500, 1505]
    assert all(np.isfinite(described(rows).inputs).all() for rows in found.values())
    sides = {tuple(pair) for name in ("fp32/linear", "fp32/bmm") for pair in found[name].sides.astype(int).tolist()}
    assert sides <= {(a, b) for a in (32, 64, 128) for b in (32, 64, 128)}
