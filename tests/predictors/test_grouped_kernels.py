"""Grouped products of experts: laws of their tiles and their time."""

import os
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.hardware import gpus
from clustersim.lab.data import tables
from clustersim.lab.evaluate import kernels
from clustersim.model.kernel import gemm
from clustersim.predictors.features import bound, columns
from clustersim.predictors.kinds.neusight import grouped
from clustersim.predictors.load import get

BOARDS = {gpu.name: gpu for gpu in gpus.everything()}
boards = st.sampled_from(sorted(BOARDS)).map(BOARDS.__getitem__)
sides = st.integers(1, 20_000)
shapes = st.tuples(st.sampled_from(["bf16", "fp8", "fp4"]), st.integers(1, 512), sides, sides, sides)


def product(dtype, experts, m, n, k):
    return gemm("grouped_gemm", "forward", dtype, experts, m, n, k, output=2)


def times(some, gpu):
    """Return the seconds of kernels by the learned constants alone, without the roofline as a floor."""
    return np.exp(grouped.log_seconds(np, grouped.start(1), grouped.terms(columns(some), gpu)))[0]


@settings(max_examples=examples(150), deadline=None)
@given(shape=shapes, gpu=boards)
def test_constants_alone_stay_under_the_roofline(shape, gpu):
    some = product(*shape)
    assert times([some], gpu)[0] >= bound(columns([some]), gpu)[0] * (1 - 1e-9)


@settings(max_examples=examples(200), deadline=None)
@given(shape=shapes, gpu=boards, field=st.integers(1, 4), more=st.integers(1, 3000))
def test_more_experts_rows_or_columns_never_take_less(shape, gpu, field, more):
    larger = list(shape)
    larger[field] += more
    small, large = times([product(*shape), product(*larger)], gpu)
    assert large >= small * (1 - 1e-9)


def test_few_rows_an_expert_are_bound_by_weights_and_many_by_products():
    h100 = BOARDS["h100-sxm"]
    few, many = product("bf16", 128, 16, 4096, 2048), product("bf16", 128, 4096, 4096, 2048)
    little, long = get("neusight").predict([few, many], h100)
    weights = 128 * 4096 * 2048 * 2 / h100.memory_bandwidth
    assert weights < little < 1.6 * weights
    assert 550e12 < many.flop / long < 810e12


def test_uneven_experts_cost_their_padded_tiles():
    h100 = BOARDS["h100-sxm"]
    whole, ragged = get("neusight").predict(
        [product("bf16", 64, 256, 4096, 4096), product("bf16", 64, 257, 4096, 4096)], h100
    )
    assert 1.05 * whole < ragged < 1.6 * whole


@pytest.fixture
def data():
    folder = Path(os.environ.get("CLUSTERSIM_DATA", "/nowhere"))
    if not (folder / tables.EXPERTS).is_file():
        pytest.skip(f"no measured layers of experts: $CLUSTERSIM_DATA does not hold {tables.EXPERTS}")
    return folder


def test_layers_of_experts_carry_their_flop_and_stay_above_their_roofline(data):
    """ai-dynamo/aiconfigurator: of each layer the fastest library."""
    found = tables.experts(data)
    layer = kernels(found.table.select(slice(0, 1)))[0]
    assert layer.flop == pytest.approx(6 * layer.batch * layer.m * layer.n * layer.k)
    for name in np.unique(found.gpu):
        rows = found.gpu == name
        faster = found.seconds[rows] < bound(found.table.select(rows), gpus.load(name))
        assert faster.mean() < 0.01
