"""Matrix products: laws in rates and shapes, types that stand for others, and the speed of a measured GPU."""

from types import SimpleNamespace

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.hardware import gpus
from clustersim.lab.data.samples import Samples
from clustersim.lab.train.learners.neusight import calibrated
from clustersim.model.kernel import gemm as product
from clustersim.predictors.features import columns
from clustersim.predictors.kinds.neusight import gemm, products
from clustersim.predictors.kinds.neusight.cores import cores
from clustersim.predictors.load import get

BOARDS = {gpu.name: gpu for gpu in gpus.everything()}
CLASSES = get("neusight").weights.classes
H100 = BOARDS["h100-sxm"]
boards = st.sampled_from(sorted(BOARDS)).map(BOARDS.__getitem__)
sides = st.one_of(st.integers(1, 64), st.integers(64, 2000), st.integers(2000, 60_000))
shapes = st.tuples(st.sampled_from(["linear", "bmm"]), st.integers(1, 128), sides, sides, sides)
types = st.sampled_from(["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"])


def of_type(dtype):
    name = {"simt": "fp32/linear", "tensor": "half/linear"}[gemm.units(dtype)]
    return CLASSES["narrow/linear" if dtype in ("fp8", "fp4") else name]


def shared(parameters):
    """Return constants without what was measured on single GPUs."""
    return {name: value for name, value in parameters.items() if not name.startswith(("own.", "speed."))}


def seconds(shape, dtype, gpu, parameters=None, alone=False):
    kind, batch, m, n, k = shape
    table = columns([product(kind, "forward", dtype, batch, m, n, k)])
    [found] = products.forecast(of_type(dtype) if parameters is None else parameters, table, gpu, alone)
    return found


def scaled(gpu, name, factor):
    if name in ("clock", "memory_bandwidth", "power", "l2"):
        return gpu.model_copy(update={name: getattr(gpu, name) * factor})
    rates = {
        field: {key: value * factor for key, value in getattr(gpu, field).items()} for field in ("matrix", "vector")
    }
    return gpu.model_copy(update=rates | ({"sms": int(gpu.sms * factor)} if name == "sms" else {}))


@settings(max_examples=examples(300), deadline=None)
@given(
    shape=shapes,
    dtype=types,
    gpu=boards,
    name=st.sampled_from(["matrix", "clock", "memory_bandwidth", "power", "l2"]),
    factor=st.floats(1.001, 8),
)
def test_never_slower_with_any_figure_higher(shape, dtype, gpu, name, factor):
    """Of the table of a measured GPU, too: it belongs to the GPU's name and looks at no rate."""
    assert seconds(shape, dtype, scaled(gpu, name, factor)) <= seconds(shape, dtype, gpu) * (1 + 1e-9)


@settings(max_examples=examples(100), deadline=None)
@given(
    shape=shapes,
    dtype=types,
    gpu=boards,
    name=st.sampled_from(["memory_bandwidth", "power", "l2"]),
    factor=st.floats(1.001, 8),
)
def test_heat_of_a_table_falls_with_power(shape, dtype, gpu, name, factor):
    """A peak or clock that the same watts must feed is hotter: so a table's kernel, not a job's, may take longer with it."""
    after = seconds(shape, dtype, scaled(gpu, name, factor), alone=True)
    assert after <= seconds(shape, dtype, gpu, alone=True) * (1 + 1e-9)


@settings(max_examples=examples(150), deadline=None)
@given(shape=shapes, dtype=types, gpu=boards, factor=st.integers(2, 5))
def test_more_sms_of_the_same_rate_are_never_slower(shape, dtype, gpu, factor):
    """Power with them; a measured GPU's own table knows its SMs, so the shared constants are asked."""
    more = scaled(scaled(gpu, "sms", factor), "power", factor)
    constants = shared(of_type(dtype))
    assert seconds(shape, dtype, more, constants) <= seconds(shape, dtype, gpu, constants) * (1 + 1e-9)


@settings(max_examples=examples(300), deadline=None)
@given(shape=shapes, dtype=types, gpu=boards, field=st.integers(1, 4), more=st.integers(1, 4000), alone=st.booleans())
def test_larger_products_never_take_less(shape, dtype, gpu, field, more, alone):
    larger = list(shape)
    larger[field] += more
    constants = shared(of_type(dtype))
    before, after = (seconds(one, dtype, gpu, constants, alone) for one in (shape, larger))
    assert after >= before * (1 - 1e-9)


MEASURED = [
    (gpu, name)
    for gpu in sorted(BOARDS)
    for name in ("bf16", "fp8", "fp4")
    if f"own.{gpu}.{name}.table" in of_type(name)
]


@settings(max_examples=examples(400), deadline=None)
@given(
    measured=st.sampled_from(MEASURED),
    shape=st.tuples(*[st.one_of(st.integers(1, 300), st.integers(1, 9000).map(lambda side: 8 * side))] * 3),
    axis=st.integers(0, 2),
    more=st.one_of(st.integers(1, 200), st.integers(1, 40_000)),
)
def test_larger_products_of_measured_gpus_never_take_less(measured, shape, axis, more):
    """Of even and of odd numbers of rows each: 8-bit kernels take odd ones worse."""
    gpu, dtype = measured
    larger = list(shape)
    larger[axis] += 2 * more if axis == 0 else more
    before, after = (get("neusight").predict([forward(dtype, *one)], BOARDS[gpu])[0] for one in (shape, larger))
    assert after >= before * (1 - 1e-9)


def forward(dtype, *sides, output=2):
    return product("linear", "forward", dtype, 1, *sides, output=output)


@pytest.mark.parametrize("gpu", sorted(BOARDS))
def test_no_growth_of_one_side_is_faster_by_two_percent(gpu):
    """Whatever a product writes or adds to. One in two hundred may be on a GPU that is `like` a measured one: other rates or SMs
    move where it is bound by memory, and where its waves end."""
    rng = np.random.default_rng(0)
    some, larger = [], []
    for _ in range(1500):
        sides = 8 * np.maximum(np.round(np.exp(rng.uniform(np.log(2), np.log(4096), 3))), 1)
        grown, axis = sides.copy(), rng.integers(3)
        grown[axis] = max(8 * np.ceil(sides[axis] * np.exp(rng.uniform(0.01, 1.5)) / 8), sides[axis] + 8)
        op, dtype = rng.choice(["forward", "dgrad", "wgrad"]), rng.choice(["bf16", "fp16", "fp8", "fp4", "fp32"])
        output = rng.choice([0, 2])
        for kernels, shape in ((some, sides), (larger, grown)):
            kernels.append(product("linear", str(op), str(dtype), 1, *map(int, shape), output=int(output)))
    ratio = get("neusight").predict(larger, BOARDS[gpu]) / get("neusight").predict(some, BOARDS[gpu])
    assert (ratio <= 0.98).sum() <= (7 if BOARDS[gpu].like else 0)


@settings(max_examples=examples(50), deadline=None)
@given(shape=shapes, dtype=types, gpu=boards)
def test_a_table_moves_a_forecast_by_its_reach_at_most(shape, dtype, gpu):
    constants = {key: value for key, value in of_type(dtype).items() if not key.startswith("own.")}
    assert abs(np.log(seconds(shape, dtype, gpu) / seconds(shape, dtype, gpu, constants))) <= products.REACH + 1e-9


def test_chunks_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    some = [
        product(("linear", "bmm")[i % 2], "forward", ("bf16", "fp16")[i % 3 % 2], 1, *rng.integers(1, 9000, 3).tolist())
        for i in range(50)
    ]
    whole = products.forecast(of_type("bf16"), columns(some), H100)
    monkeypatch.setattr(products, "CHUNK", 7)
    np.testing.assert_allclose(products.forecast(of_type("bf16"), columns(some), H100), whole, rtol=1e-12)
    order = rng.permutation(50)
    mixed = products.forecast(of_type("bf16"), columns([some[i] for i in order]), H100)
    np.testing.assert_allclose(mixed, whole[order], rtol=1e-12)


@pytest.mark.parametrize("gpu", ["h100-sxm", "l40s", "a100-sxm-80gb", "gb200"])
def test_fp16_takes_what_bf16_measured(gpu):
    """Both run on the same units at the same rate, and tables hold bf16."""
    for shape in (("linear", 1, 4096, 4096, 4096), ("linear", 1, 333, 7777, 1111), ("bmm", 64, 512, 512, 64)):
        assert seconds(shape, "fp16", BOARDS[gpu]) == pytest.approx(seconds(shape, "bf16", BOARDS[gpu]))


def test_a_type_that_a_gpu_lacks_runs_at_the_speed_of_the_next():
    parameters = {
        "gemm.level": 0,
        "level.fp8": 1,
        "level.bf16": 2,
        "speed.h100-sxm.fp8": 3,
        "speed.v100-pcie-32gb.fp16": 4,
    }
    found = {
        (gpu, dtype): products.speed(parameters, BOARDS[gpu], dtype)
        for gpu, dtype in (
            ("h100-sxm", "fp4"),
            ("h200-sxm", "fp8"),
            ("h200-sxm", "fp16"),
            ("h200-sxm", "tf32"),
            ("v100-pcie-32gb", "bf16"),
            ("h200-sxm", "fp32"),
        )
    }
    assert list(found.values()) == [3, 1, 2, 2, 4, 0]


@pytest.mark.parametrize("gpu", sorted(BOARDS))
def test_candidates_fit_their_room(gpu):
    for dtype in ("fp32", "bf16", "fp8"):
        for kind in ("linear", "bmm"):
            tiles = cores(BOARDS[gpu], dtype, kind).tiles
            assert len(set(tiles)) == len(tiles)
            assert len(tiles) * len(gemm.SPLITS) <= gemm.CANDIDATES


def some_samples(gpu, factor, count=64, dtypes=("bf16", "fp8")):
    rng = np.random.default_rng(1)
    kernels = [
        product("linear", "forward", dtypes[i % len(dtypes)], 1, *(64 * rng.integers(16, 200, 3)).tolist())
        for i in range(count)
    ]
    table = columns(kernels)
    measured = products.forecast(CLASSES["half/linear"], table, gpu, alone=True) * factor
    return Samples(table, np.full(count, gpu.name), measured)


@pytest.mark.parametrize("gpu", ["h20", "mi300x", "rtx-4090", "v100-sxm2-32gb", "h100-sxm"])
@pytest.mark.parametrize("factor", [0.8, 1.0, 1.3])
@pytest.mark.parametrize("count", [2, 5, 64])
def test_a_few_kernels_set_the_speed_of_a_gpu(gpu, factor, count):
    board = BOARDS[gpu]
    samples = some_samples(board, factor, count)
    found = calibrated(CLASSES["half/linear"], samples, board)
    for dtype in ("bf16", "fp8"):
        part = samples.select(samples.table.dtype == dtype)
        ratio = products.forecast(found, part.table, board, alone=True) / part.seconds
        assert np.median(ratio) == pytest.approx(1, abs=0.01)
        assert set(found) - set(CLASSES["half/linear"]) <= {f"speed.{gpu}.bf16", f"speed.{gpu}.fp8"}
    other = BOARDS["b200-sxm"]
    assert seconds(("linear", 1, 4096, 4096, 4096), "bf16", other, found) == seconds(
        ("linear", 1, 4096, 4096, 4096), "bf16", other
    )


def test_shapes_held_out_are_the_same_on_all_gpus_and_a_fifth():
    from clustersim.lab.train.dataset import held_shapes

    samples = some_samples(H100, 1.0, 2000)
    held = held_shapes(samples)
    assert held.mean() == pytest.approx(0.2, abs=0.04)
    shifted = SimpleNamespace(table=columns([k._replace(dtype="fp8") for k in _kernels(samples)]))
    assert (held_shapes(shifted) == held).all()


def _kernels(samples):
    from clustersim.lab.evaluate import kernels

    return kernels(samples.table)


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp4"])
@pytest.mark.parametrize(("one", "other"), [("gb200", "b200-sxm"), ("b200-sxm", "gb200")])
def test_what_was_measured_of_a_sibling_speaks_for_a_gpu_with_other_sms(one, other, dtype):
    """GB200 and B200 are one chip with 152 and 148 SMs: without its own rows, each is nearer to them by the other's table."""
    parameters = CLASSES["narrow/linear" if dtype in ("fp8", "fp4") else "half/linear"]
    without = {
        name: value for name, value in parameters.items() if not name.startswith((f"own.{one}.", f"speed.{one}."))
    }
    rng = np.random.default_rng(2)
    table = columns(
        [product("linear", "forward", dtype, 1, *(2 ** rng.integers(9, 14, 3)).tolist(), output=2) for _ in range(200)]
    )
    like = BOARDS[one].model_copy(update={"like": other})
    own = products.forecast(parameters, table, BOARDS[one])
    off = [
        np.abs(np.log(products.forecast(without, table, board) / own)).mean()
        for board in (BOARDS[one].model_copy(update={"like": None}), like)
    ]
    assert off[1] < 0.8 * off[0]
