"""Intervals: the critical path is the step, and what it says of slower kernels is what a simulation with them finds."""

from __future__ import annotations

import dataclasses
import threading
from itertools import pairwise

import numpy as np
import output_cases
import pytest
from engine_cases import cluster, job, simulate
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import keywords

from clustersim.config.gpu import Gpu
from clustersim.hardware import gpus
from clustersim.hardware.constants import CALL
from clustersim.model.kernel import gemm, vector
from clustersim.predictors.base import Predictor
from clustersim.predictors.classes import class_of
from clustersim.predictors.features import bound, columns
from clustersim.predictors.load import get
from clustersim.predictors.uncertainty import CONTENT, Bounds, bounds
from clustersim.report.breakdown import critical_path
from clustersim.report.terminal import lines
from clustersim.simulation import run
from clustersim.single_gpu.model import Graph, OperatorCall
from clustersim.single_gpu.total import total

SPLITS = {
    "1f1b": "pp=4",
    "1f1b with tensors and hidden transfers": "pp=4 tp=2 parallelism.overlap.p2p=true",
    "hidden gradients": "pp=2 zero=1 parallelism.overlap.grad_reduce=true parallelism.overlap.param_gather=true "
    "parallelism.bucket=1000000",
    "shown gradients": "pp=2",
    "straggler": "pp=2 tp=2",
    "interleaved": "pp=2 vpp=2 schedule=interleaved",
    "zero bubble": "pp=4 schedule=zero_bubble",
}
SPLITS = {name: keywords(words) for name, words in SPLITS.items()}
H100 = gpus.load("h100-sxm")
PRODUCT = gemm("linear", "forward", "bf16", 1, 4096, 4096, 4096)
NORM = vector("layernorm", "forward", "bf16", 4096, 4096, 6, 4)
COPY = vector("memory", "embedding", "fp32", 4096, 4096, 0, 8)
SOME = (PRODUCT, gemm("linear", "dgrad", "bf16", 1, 4096, 4096, 4096), NORM, COPY)
FAULT = "faults: [{gpu: 3, slowdown: 1.3}]"
LARGER = {"model__hidden": 2048, "model__heads": 16, "training__global_batch": 64, "training__seq": 1024}


@dataclasses.dataclass
class Stretched(Predictor):
    """Three times the roofline and a launch; kernels of one class times a factor, which its interval says before."""

    stretched: str = ""
    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    name: str = "stretched"
    burst: bool = False

    def predict(self, kernels, gpu, alone=False):
        return (3 * bound(columns(kernels), gpu) + 2e-6) * self._by_class(kernels, self.factor)

    def interval(self, kernels, gpu, seconds=None):
        return self._by_class(kernels, self.low), self._by_class(kernels, self.high)

    def statement(self, kernels, gpu):
        return ()

    def _by_class(self, kernels, value):
        return np.array([value if class_of(k.kind, k.dtype) == self.stretched else 1.0 for k in kernels])


@pytest.fixture
def step(monkeypatch):
    """Simulate a split on two nodes of four GPUs with a stretched predictor; return its seconds and their margin by kernels."""

    def simulate(split, **figures):
        # predictors of one name forecast alike, except for these
        monkeypatch.setattr("clustersim.preparation.FORECASTS", threading.local())
        monkeypatch.setattr("clustersim.preparation.get", lambda name: Stretched(**figures))
        topology = cluster(2, extra=FAULT if split == "straggler" else "")
        result = run(topology, job(**LARGER, **SPLITS[split]), ignore_memory=True)
        return result.summary["step_time_s"], result.facts.kernels.margin

    return simulate


@pytest.mark.parametrize("name", ["half/linear", "half/flash_attention", "fp32/layernorm", "memory"])
@pytest.mark.parametrize("split", SPLITS)
def test_the_interval_is_what_a_simulation_with_slower_kernels_finds(step, split, name):
    """With kernels ten percent off: within a twentieth of what they do to the step and a thousandth of the step."""
    time, margin = step(split, stretched=name, low=0.9, high=1.1)
    slower, faster = (step(split, stretched=name, factor=factor)[0] for factor in (1.1, 0.9))
    most = {"rel": 0.05, "abs": 1e-3 * time}
    assert margin.high - time == pytest.approx(slower - time, **most)
    assert time - margin.low == pytest.approx(time - faster, **most)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("split", output_cases.SPLITS)
def test_the_critical_path_is_the_step_without_gap(split, fold):
    result = output_cases.simulate(split, fold)
    path = list(critical_path(result.record))
    assert path[0].start == 0
    assert path[-1].end == result.record.end
    assert all(one.end == after.start for one, after in pairwise(path))


def off(low, high):
    """Bounds of the kernels SOME."""
    return Bounds(SOME, ("product", "product", "norm", "copy"), np.array(low, float), np.array(high, float))


positive = st.lists(st.floats(1e-6, 1), min_size=4, max_size=4)


@given(positive, positive, positive)
def test_a_margin_lies_between_independent_and_alike_errors(seconds, less, more):
    """It holds the time; classes are worse together than any alone, and no worse than if all were off at once."""
    low, high = [1 - one for one in less], [1 + one for one in more]
    low[0] = high[0] = 1.0
    margin = off(np.maximum(low, 1e-9), high).margin(5.0, dict(zip(SOME, seconds, strict=True)))
    each = np.array(seconds) * (np.array(high) - 1)
    assert margin.low <= 5 <= margin.high
    assert each.max() <= (margin.high - 5) * (1 + 1e-9) + 1e-12
    assert margin.high - 5 <= each.sum() * (1 + 1e-9) + 1e-12
    assert 5 - margin.low <= sum(seconds) * (1 + 1e-9)
    assert margin.note == CONTENT


def test_errors_add_up_in_a_class_and_by_their_squares_between_classes():
    time = dict(zip(SOME, (3.0, 1.0, 3.0, 2.0), strict=True))
    margin = off([0.9, 0.9, 0.9, 1.0], [1.1, 1.1, 1.1, 1.0]).margin(9.0, time)
    assert margin.high - 9 == pytest.approx(0.5)
    assert 9 - margin.low == pytest.approx(0.5)


def test_kernels_that_are_not_on_the_path_count_for_nothing():
    assert off([0.5] * 4, [2] * 4).margin(1.0, {})[:2] == (1.0, 1.0)
    assert off([1, 1, 0.5, 0.5], [1, 1, 2, np.inf]).margin(1.0, {PRODUCT: 1.0})[:2] == (1.0, 1.0)


def test_unknown_errors_count_like_the_worst_and_are_named():
    time = dict.fromkeys(SOME, 1.0)
    margin = off([0.9, 0.9, 0.8, 0.0], [1.1, 1.1, 1.5, np.inf]).margin(4.0, time)
    assert margin.high - 4 == pytest.approx(np.sqrt(0.2**2 + 0.5**2 + 0.5**2))
    assert margin.note == f"{CONTENT}; memory (25.0 % of kernel time), never measured, as far off as the worst"


def test_what_nobody_knows_has_no_interval():
    margin = off([0] * 4, [np.inf] * 4).margin(4.0, dict.fromkeys(SOME, 1.0))
    assert margin == (None, None, "the predictor does not know how far its forecasts are off")


def test_the_roofline_is_a_lower_bound():
    result = simulate(cluster(1), parallelism__pp=2)
    assert result.summary["step_time_low_s"] == result.summary["step_time_s"]
    assert result.summary["step_time_high_s"] is None
    assert result.summary["step_time_interval"] == "kernel times are lower bounds"
    assert any(line.endswith(" ms (at least)") for line in lines(result.summary, 0.1))


def test_a_predictor_of_measured_kernels_gives_the_step_an_interval():
    result = simulate(
        cluster(1),
        predictor="neusight",
        **{**LARGER, "model__hidden": 4096, "training__seq": 2048, "parallelism__pp": 2},
    )
    summary = result.summary
    assert result.facts.kernels.margin.note.startswith(CONTENT)
    assert 0 < summary["step_time_low_s"] < summary["expected_step_time_s"] < summary["step_time_high_s"]
    assert " published runs; of" in summary["step_time_interval"]
    assert any("(80 %: " in line for line in lines(summary, 0.1))


@pytest.mark.parametrize("name", ["neusight", "linear", "habitat", "roofline"])
def test_every_kernel_has_an_interval(name):
    low, high = get(name).interval(SOME, H100)
    assert low.shape == high.shape == (len(SOME),)
    assert ((low >= 0) & (low <= high)).all()
    assert [len(part) for part in get(name).interval([], H100)] == [0, 0]


class Foreign(Predictor):
    """A predictor from outside that knows no intervals."""

    predict = Stretched().predict


def test_a_predictor_from_outside_need_not_know_its_error():
    assert bounds(Foreign(), SOME, H100, np.ones(len(SOME))).margin(1.0, {PRODUCT: 1.0}).low is None


def board(factor: float) -> Gpu:
    """An invented board: the H100 with matrix units `factor` times as fast."""
    return H100.model_copy(update={"name": "next", "matrix": {k: factor * v for k, v in H100.matrix.items()}})


def test_a_gpu_that_nobody_measured_has_a_wider_interval_the_farther_it_is():
    ends = [get("neusight").interval([PRODUCT], gpu) for gpu in (H100, board(2), board(4))]
    widths = [float(np.log(high / low)[0]) for low, high in ends]
    assert 0 < widths[0] < widths[1] < widths[2]
    [said] = get("neusight").statement([PRODUCT], board(2))
    assert "on GPUs left out of training (" in str(said)
    assert str(said).endswith(" times apart")
    assert said.nearest.startswith("nearest measured GPU: ")
    assert get("neusight").statement([PRODUCT], H100)[0].nearest == ""


def test_kernels_before_the_last_wait_for_the_cpu_are_hidden_behind_it():
    """A GPU that idles for a call's launch waits for the CPU, not for the kernels before it."""
    small = vector("elementwise", "add", "bf16", 1, 64, 1, 12)
    nodes = [OperatorCall("", "add", "forward", (small,), (), 0.0)] * 3
    last = OperatorCall("", "norm", "forward", (NORM,), (), 0.0)
    found = total(Graph("some", (*nodes, last), 0), get("roofline"), H100)
    assert dict(found.critical) == {NORM: pytest.approx(found.seconds - 4 * CALL)}
    assert dict(total(Graph("some", (*nodes, last), 0), get("roofline"), H100, eager=False).critical).keys() == {
        small,
        NORM,
    }
