"""Intervals: what quantiles of groups count, that wider holds narrower, and that synthetic residuals are covered."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.hardware import gpus
from clustersim.lab.train import intervals
from clustersim.lab.train.intervals import Residuals
from clustersim.model.kernel import attention, gemm, vector
from clustersim.predictors import uncertainty
from clustersim.predictors.load import get
from clustersim.predictors.uncertainty import Distance
from clustersim.predictors.weights_file import Weights

H100 = gpus.load("h100")
SOME = [
    gemm("linear", "forward", "fp32", 1, 4096, 4096, 4096),
    gemm("bmm", "forward", "fp32", 16, 512, 512, 64),
    gemm("linear", "forward", "bf16", 1, 4096, 4096, 4096),
    gemm("linear", "forward", "fp8", 1, 512, 512, 512),
    gemm("grouped_gemm", "forward", "bf16", 8, 512, 4096, 4096),
    attention("forward", "bf16", 1, 16, 16, 4096, 4096, 128, True),
    vector("softmax", "softmax", "fp32", 4096, 4096, 5, 8),
]


def residuals(rng, groups, offset, noise, count=2000, seen=False, name=""):
    """Log-normal ratios of groups whose medians differ; lengths from 10 us to 1 ms."""
    return [
        Residuals(
            f"{name}{group}",
            seen,
            10 ** rng.uniform(-5, -3, count),
            np.exp(rng.normal(rng.normal(0, offset), noise, count)),
        )
        for group in range(groups)
    ]


@pytest.mark.parametrize(("offset", "noise"), [(0.0, 0.1), (0.1, 0.1), (0.2, 0.05)])
@pytest.mark.parametrize("groups", [4, 8])
def test_groups_left_out_are_covered_after_widening(groups, offset, noise):
    found = residuals(np.random.default_rng(groups), groups, offset, noise)
    widen = intervals.widening(found)
    assert intervals.coverage(found, widen) == pytest.approx(0.8, abs=0.01)
    if offset:
        assert widen > 1
        assert intervals.coverage(found) < 0.8
    else:
        assert widen == pytest.approx(1, abs=0.1)


def test_groups_never_looked_at_are_covered_on_average():
    rng, inside = np.random.default_rng(0), []
    for _ in range(40):
        table = intervals.quantiles(residuals(rng, 7, 0.1, 0.05, 300))
        [new] = residuals(rng, 1, 0.1, 0.05, 300)
        low, high = uncertainty.lookup(table, new.forecast, Distance("", 0.0))
        inside.append(((new.ratio >= low) & (new.ratio <= high)).mean())
    assert np.mean(inside) == pytest.approx(0.8, abs=0.1)


def test_every_group_counts_alike_however_many_rows_it_has():
    rng = np.random.default_rng(0)
    few, many = (residuals(rng, 1, 0.0, 0.01, n, name=n)[0] for n in (300, 30_000))
    fast, slow = few._replace(ratio=few.ratio * 0.5), many
    for size in range(3):
        low, high = intervals._quantiles([fast, slow], size)
        assert low == pytest.approx(0.5, rel=0.03)
        assert high == pytest.approx(1.0, rel=0.03)
    lone = intervals._quantiles([slow], 1)
    assert lone == pytest.approx(np.exp(np.array([-1.2816, 1.2816]) * 0.01), rel=2e-3)


def test_lengths_with_few_kernels_take_the_quantiles_of_all():
    rng = np.random.default_rng(0)
    [found] = residuals(rng, 1, 0.0, 0.1)
    short = found._replace(forecast=np.where(np.arange(2000) < 150, 1e-2, 1e-5))
    assert intervals._quantiles([short], 2) == intervals._quantiles([short._replace(forecast=short.forecast * 0)], 0)


@settings(max_examples=examples(200), deadline=None)
@given(
    edges=st.tuples(st.floats(0.2, 3), st.floats(0.2, 3)).map(sorted),
    widen=st.floats(0.5, 4),
    distances=st.tuples(st.floats(0, 5), st.floats(0, 5)).map(sorted),
    seconds=st.floats(1e-7, 1),
)
def test_the_interval_of_a_farther_gpu_holds_that_of_a_nearer(edges, widen, distances, seconds):
    table, at = {"new": [edges] * 3, "widen": widen}, np.array([seconds])
    (near_low, near_high), (far_low, far_high) = (
        uncertainty.lookup(table, at, Distance("", distance)) for distance in distances
    )
    assert far_low <= near_low * (1 + 1e-12)
    assert near_low <= near_high * (1 + 1e-12)
    assert near_high <= far_high * (1 + 1e-12)
    if widen >= 1:
        assert near_low <= edges[0] * (1 + 1e-12)
        assert edges[1] <= near_high * (1 + 1e-12)


def test_a_gpu_that_was_measured_is_not_widened():
    table = {"new": [[0.5, 2.0]] * 3, "seen": [[0.9, 1.1]] * 3, "widen": 2.0}
    low, high = uncertainty.lookup(table, np.array([1e-4]), None)
    assert (low[0], high[0]) == pytest.approx((0.9, 1.1))


def test_without_residuals_nothing_is_known():
    assert intervals.quantiles([]) == {}
    assert intervals.quantiles([Residuals("a", False, np.zeros(0), np.zeros(0))]) == {}
    assert intervals.coverage([]) is None
    [one] = residuals(np.random.default_rng(0), 1, 0.0, 0.1)
    assert intervals.coverage([one]) is None
    assert intervals.quantiles([one])["widen"] == 1.0


@pytest.mark.parametrize("name", ["neusight", "linear", "habitat"])
def test_classes_without_intervals_may_be_anything(name):
    predictor = get(name)
    none = {key: value for key, value in predictor.weights.meta.items() if key != "intervals"}
    for meta in (none, {**none, "intervals": {"half/linear": {}}}):
        bare = Weights(predictor.weights.classes, meta)
        low, high = type(predictor)(predictor.method, bare).interval(SOME, H100)
        assert (low == 0).all()
        assert np.isposinf(high).all()


@pytest.mark.parametrize("name", sorted(gpu.name for gpu in gpus.everything()))
def test_shipped_intervals_hold_a_fair_forecast(name):
    low, high = get("neusight").interval(SOME, gpus.load(name))
    assert (low > 0.05).all()
    assert np.isfinite(high).all()
    assert (low < 1.15).all()
    assert (high > 0.87).all()
    assert (low < high).all()


def test_a_gpu_far_from_all_is_less_certain():
    strange = H100.model_copy(update={"name": "strange", "memory_bandwidth": H100.memory_bandwidth * 20})
    predictor = get("neusight")
    for kernel in SOME:
        known, odd = (np.divide(*predictor.interval([kernel], gpu)[::-1])[0] for gpu in (H100, strange))
        assert odd > known
    assert predictor.distance("half/linear", strange).value > 2
    assert predictor.distance("half/linear", H100) == Distance("h100-sxm", 0.0)
    assert "h100-sxm" in str(predictor.distance("half/linear", H100))


def test_a_gpu_of_a_users_file_is_no_neighbour():
    assert uncertainty.nearest(H100, ["mine"]) == uncertainty.nearest(H100, []) == Distance("none", 10.0)
    assert uncertainty.nearest(H100, ["mine", "a100-sxm-80gb"]).gpu == "a100-sxm-80gb"
