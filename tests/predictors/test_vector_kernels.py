"""Vector kernels: laws, the mechanisms that bind them, published rates, and learning."""

import shlex

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.errors import DataError
from clustersim.hardware import gpus
from clustersim.hardware.constants import LAUNCH
from clustersim.lab.data.samples import Samples
from clustersim.lab.data.tables import TABLE, published
from clustersim.lab.train.learners import neusight as learner
from clustersim.model.kernel import vector as kernel
from clustersim.predictors.features import columns
from clustersim.predictors.kinds.neusight import blocks, vector
from clustersim.predictors.load import get

OPS = {
    "elementwise": ("add", "swiglu", "swiglu_backward", "rope", "powu", "unfused_swiglu"),
    "softmax": ("softmax", "softmax_backward", "log_softmax"),
    "layernorm": shlex.split(
        "layernorm layernorm_backward rmsnorm rmsnorm_backward unfused_rmsnorm unfused_rmsnorm_backward"
    ),
    "memory": ("adam", "embedding", "embedding_backward", "dropout", "max", "cast", "permute", "mask", "shift"),
}
NAMED = [(kind, op) for kind, ops in OPS.items() for op in ops]
BOARDS = [gpu.name for gpu in gpus.everything()]
sizes = st.one_of(st.integers(1, 64), st.integers(64, 4096), st.integers(4096, 100_000))
PARAMETERS = get("neusight").weights.classes


def seconds(some, gpu):
    """Return seconds without launch, not yet bounded by the roofline."""
    (name,) = {k.kind for k in some}
    parameters = PARAMETERS[f"fp32/{'elementwise' if name == 'memory' else name}"]
    return vector.predict(parameters, columns(some), gpu)


def rate(gpu, kind, op, dtype, shape, traffic):
    one = kernel(kind, op, dtype, *shape, 1.0, traffic)
    return one.bytes / seconds([one], gpus.load(gpu))[0]


some = st.builds(
    lambda named, dtype, m, n, traffic: kernel(*named, dtype, m, n, 1.0, traffic),
    st.sampled_from(NAMED),
    st.sampled_from(["fp32", "bf16"]),
    sizes,
    sizes,
    st.sampled_from([4, 6, 8, 12, 20]),
)


@settings(max_examples=examples(200), deadline=None)
@given(one=some, board=st.sampled_from(BOARDS), more=st.floats(1, 8))
def test_bounded_by_bandwidth_and_monotone_in_rates_and_rows(one, board, more):
    gpu = gpus.load(board)
    [base] = seconds([one], gpu)
    assert base >= one.bytes / gpu.memory_bandwidth
    wider = gpu.model_copy(update={"memory_bandwidth": gpu.memory_bandwidth * more})
    quicker = gpu.model_copy(update={"clock": gpu.clock * more, "vector": {k: v * more for k, v in gpu.vector.items()}})
    assert seconds([one], wider)[0] <= base * (1 + 1e-9)
    assert seconds([one], quicker)[0] <= base * (1 + 1e-9)
    taller = one._replace(m=one.m * 2, flop=one.flop * 2, bytes=one.bytes * 2)
    assert seconds([taller], gpu)[0] >= base * (1 - 1e-9)


@pytest.mark.parametrize(
    ("kind", "op", "columns_", "traffic", "a100", "h100"),
    [
        ("layernorm", "unfused_rmsnorm", 4096, 4, (0.6, 0.9), (1.0, 1.7)),
        ("layernorm", "unfused_rmsnorm", 8192, 4, (0.6, 0.9), (1.0, 1.7)),
        ("elementwise", "unfused_swiglu", 28672, 6, (0.7, 1.1), (1.25, 2.0)),
        ("elementwise", "add", 8192, 6, (1.7, 2.5), (3.0, 3.6)),
        ("memory", "embedding", 8192, 4, (0.26, 0.36), (0.45, 0.67)),
    ],
)
def test_published_rates(kind, op, columns_, traffic, a100, h100):
    # microsoft/vidur: medians of kernel times in a profiler, fp16, 1,024 to 4,096 tokens of Llama-2-7B and 70B
    for gpu, (low, high) in (("a100-sxm-80gb", a100), ("h100-sxm", h100)):
        assert low <= rate(gpu, kind, op, "fp16", (4096, columns_), traffic) / 1e12 <= high


def test_fused_kernels_of_training_frameworks():
    # MooreThreads/SimuMax, fitted to Megatron-LM with Transformer Engine: 1456 GB/s on A100 PCIe, 5328 on B200
    for gpu, measured in (("a100-pcie-80gb", 1456e9), ("b200-sxm", 5328e9)):
        for kind, op, traffic in (
            ("layernorm", "rmsnorm", 4),
            ("elementwise", "swiglu", 6),
            ("layernorm", "layernorm", 4),
        ):
            assert rate(gpu, kind, op, "bf16", (8192, 8192), traffic) == pytest.approx(measured, rel=0.12)
    # and of the cross-entropy: 1293 and 2597 GB/s
    for gpu, measured in (("a100-pcie-80gb", 1293e9), ("b200-sxm", 2597e9)):
        assert rate(gpu, "memory", "exp_sum", "fp32", (8192, 32064), 8) == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize(("gpu", "most"), [("v100-pcie-32gb", 0.93), ("a100-pcie-80gb", 0.9), ("l4", 0.8)])
def test_dropout_draws_its_numbers_below_the_bandwidth(gpu, most):
    board = gpus.load(gpu)
    share = rate(gpu, "memory", "dropout", "fp32", (16384, 2048), 9) / board.memory_bandwidth
    assert 0.72 <= share <= 0.78 < most


def test_rows_that_outgrow_the_cache_are_read_again():
    shape = (65536, 16384)
    for gpu, past, kept in (("v100-pcie-32gb", 1 / 2, 2 / 3), ("t4", 1 / 2, 2 / 3), ("a100-pcie-80gb", 1 / 2, 2 / 3)):
        full = rate(gpu, "elementwise", "relu", "fp32", shape, 8)
        assert rate(gpu, "softmax", "softmax", "fp32", shape, 8) / full == pytest.approx(past, rel=0.16)
        assert rate(gpu, "layernorm", "layernorm", "fp32", shape, 8) / full == pytest.approx(kept, rel=0.12)
    # L4's 48 MiB hold the rows of all its 174 blocks
    assert rate("l4", "softmax", "softmax", "fp32", shape, 8) > 0.9 * rate(
        "l4", "elementwise", "relu", "fp32", shape, 8
    )


def test_layout_of_softmax_blocks():
    # grids and blocks of the profiled kernels: 128 threads up to 1031 values, 256 up to 2053, 512 beyond
    table = columns([kernel("softmax", "softmax", "fp32", 1, n, 5.0, 8) for n in (1031, 1033, 2053, 2065, 16384)])
    gpu = gpus.load("a100-pcie-40gb")
    resident = 1 / blocks.softmax(table, gpu).rounds / gpu.sms
    assert (2048 / resident).tolist() == [128, 256, 256, 512, 512]
    assert blocks.softmax(table, gpu).steps[-1] == 8
    threads = {name: blocks.threads(gpus.load(name)) for name in ("t4", "l4", "a10", "a100-sxm-80gb", "h100")}
    assert threads == {"t4": 1024, "l4": 1536, "a10": 1536, "a100-sxm-80gb": 2048, "h100": 2048}


def test_memory_technologies():
    found = {
        name: vector.memory(gpus.load(name))
        for name in ("t4", "l40s", "a10", "p4", "v100-pcie-32gb", "h100", "gb200", "mi300x")
    }
    assert list(found.values()) == ["gddr", "gddr", "gddr", "pascal", "hbm", "hbm", "blackwell", "cdna"]


def test_held_out_errors_are_those_aimed_at():
    errors = get("neusight").weights.meta["errors"]
    for kind, most in (("elementwise", 0.042), ("softmax", 0.10), ("layernorm", 0.10)):
        for gpu in ("l4", "a100-pcie-80gb"):
            entry = errors[f"fp32/{kind}"][gpu]
            assert entry["unseen"]
            assert entry["mean"] <= most


@pytest.mark.parametrize("kind", ["elementwise", "softmax", "layernorm"])
def test_learning_recovers_the_law_it_was_drawn_from(kind):
    rng, names = np.random.default_rng(0), ("Tesla T4", "NVIDIA A100-PCIE-40GB", "Tesla V100-PCIE-32GB")
    truth = {key: value[None] for key, value in learner.start(kind).items()}
    truth["share"] = truth["share"] + (0.3 if kind == "elementwise" else 0.0)
    truth["sharpness"], truth["cycles"] = truth["sharpness"] + 0.3, truth["cycles"] - 0.3
    kernels = [
        kernel(kind, "forward", "fp32", int(m), 4 * int(n), 1.0, 8) for m, n in rng.integers(500, 4000, (300, 2))
    ]
    table, board = columns(kernels), np.array(names)[np.arange(300) % 3]
    found = np.empty(300)
    for name in names:
        rows = board == name
        terms = vector.terms(table.select(rows), gpus.load(name))
        found[rows] = 3e-5 + np.exp(vector.log_seconds(truth, terms)[0])
    parameters = learner.fit_vectors(f"fp32/{kind}", Samples(table, board, found), seed=0)
    again = learner.fit_vectors(f"fp32/{kind}", Samples(table, board, found), seed=1)
    assert all((parameters[key] == again[key]).all() for key in parameters)
    assert parameters["share"].shape == (1, len(vector.MEMORIES))
    guess = vector.predict(parameters, table.select(board == names[0]), gpus.load(names[0]))
    error = np.abs((guess + parameters["dispatch"]) / found[board == names[0]] - 1)
    assert error.mean() < 0.02


def test_launch_is_counted_once():
    one = kernel("memory", "adam", "fp32", 1, 10_000_000, 0.0, 28)
    gpu = gpus.load("h100")
    assert get("neusight").predict([one], gpu)[0] == pytest.approx(LAUNCH + seconds([one], gpu)[0])


def test_published_table(tmp_path):
    assert published(tmp_path) == {}
    path = tmp_path / TABLE
    path.parent.mkdir()
    good = {"gpu": "H100-SXM5-80GB (x)", "kernel": "rmsnorm", "dims": "tokens=1024 hidden=4096", "us": 13.0}
    pl.DataFrame([good, good | {"gpu": "unknown"}]).write_csv(path)
    [samples] = published(tmp_path).values()
    assert samples.gpu.tolist() == ["h100-sxm"]
    assert samples.table.bytes.tolist() == [4 * 1024 * 4096]
    pl.DataFrame([good | {"dims": "tokens=1024"}]).write_csv(path)
    with pytest.raises(DataError, match="rmsnorm with dims 'tokens=1024' does not have every size"):
        published(tmp_path)
    pl.DataFrame([{"gpu": "x"}]).write_csv(path)
    with pytest.raises(DataError, match="has no column kernel, dims, us"):
        published(tmp_path)
