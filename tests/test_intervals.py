"""Intervals: the critical path is the step, and what it says of slower kernels is what a simulation with them finds."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import test_output
from engine_cases import cluster, job

from clustersim.output.critical import critical_path
from clustersim.pipeline import run
from clustersim.predictors.classes import class_of
from clustersim.predictors.columns import bound, columns

SPLITS = {
    "1f1b": {"parallelism__pp": 4},
    "1f1b with tensors and hidden transfers": {
        "parallelism__pp": 4,
        "parallelism__tp": 2,
        "parallelism__overlap__p2p": True,
    },
    "hidden gradients": {
        "parallelism__pp": 2,
        "parallelism__zero": 1,
        "parallelism__overlap__grad_reduce": True,
        "parallelism__overlap__param_gather": True,
        "parallelism__bucket": 1_000_000,
    },
    "shown gradients": {"parallelism__pp": 2},
    "straggler": {"parallelism__pp": 2, "parallelism__tp": 2},
    "interleaved": {"parallelism__pp": 2, "parallelism__vpp": 2, "parallelism__schedule": "interleaved"},
    "zero bubble": {"parallelism__pp": 4, "parallelism__schedule": "zero_bubble"},
}
FAULT = "faults: [{gpu: 3, slowdown: 1.3}]"
LARGER = {"model__hidden": 2048, "model__heads": 16, "training__global_batch": 64, "training__seq": 1024}


@dataclasses.dataclass
class Stretched:
    """Three times the roofline and a launch; kernels of one class times a factor, which its interval says before."""

    stretched: str = ""
    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    name: str = "stretched"
    burst: bool = False

    def predict(self, kernels, gpu, alone=False):
        return (3 * bound(columns(kernels), gpu) + 2e-6) * self._by_class(kernels, self.factor)

    def interval(self, kernels, gpu):
        return self._by_class(kernels, self.low), self._by_class(kernels, self.high)

    def statement(self, kernels, gpu):
        return ()

    def _by_class(self, kernels, value):
        return np.array([value if class_of(k.kind, k.dtype) == self.stretched else 1.0 for k in kernels])


@pytest.fixture
def step(monkeypatch):
    """Simulate a split on two nodes of four GPUs with a stretched predictor; return the summary."""

    def simulate(split, **figures):
        monkeypatch.setattr("clustersim.predictors.model.get", lambda name: Stretched(**figures))
        topology = cluster(2, extra=FAULT if split == "straggler" else "")
        return run(topology, job(**LARGER, **SPLITS[split]), ignore_memory=True).summary

    return simulate


@pytest.mark.parametrize("name", ["half/linear", "half/flash_attention", "fp32/layernorm", "memory"])
@pytest.mark.parametrize("split", SPLITS)
def test_the_interval_is_what_a_simulation_with_slower_kernels_finds(step, split, name):
    """With kernels ten percent off: within a twentieth of what they do to the step and a thousandth of the step."""
    found = step(split, stretched=name, low=0.9, high=1.1)
    slower, faster = (step(split, stretched=name, factor=factor)["step_time_s"] for factor in (1.1, 0.9))
    time = found["step_time_s"]
    most = {"rel": 0.05, "abs": 1e-3 * time}
    assert found["step_time_high_s"] - time == pytest.approx(slower - time, **most)
    assert time - found["step_time_low_s"] == pytest.approx(time - faster, **most)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("split", test_output.SPLITS)
def test_the_critical_path_is_the_step_without_gap(split, fold):
    result = test_output.simulate(split, fold)
    path = critical_path(result.record.spans)
    assert path[0].start == 0
    assert path[-1].end == result.record.end
    assert all(one.end == after.start for one, after in pairwise(path))


def test_no_spans_have_no_path():
    assert critical_path([]) == []
