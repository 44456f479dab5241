"""What the points of a sweep share is found once, and changes no number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clustersim.parallel.load import load
from clustersim.predictors import forecasts
from clustersim.predictors.clocks import derate
from clustersim.predictors.forecasts import Forecasts
from clustersim.predictors.load import get
from clustersim.predictors.sums import split_sums
from clustersim.predictors.uncertainty import bounds
from clustersim.simulation import Simulator, run
from clustersim.sweeps import evaluate
from clustersim.sweeps.space import points
from clustersim.topology.build import load as load_topology

ROOT = Path(__file__).parents[2]
NODE, JOB = ROOT / "topologies" / "hgx_h100_8.yaml", ROOT / "workloads" / "gpt3_xl.yaml"
FILES = evaluate.Files(str(NODE), str(JOB), {})


def test_rows_of_one_simulator_are_those_of_runs_alone():
    """Also at other clocks, with other microbatches and schedules, and the second time."""
    case = evaluate.load(FILES)
    axes = {"tp": [1, 2], "pp": [1, 4], "schedule": ["1f1b", "interleaved"], "vpp": [1, 2], "micro_batch": [1, 2]}
    space = [{**one, "clocks": share, "training.global_batch": 32} for share in (0.9, 0.7) for one in points(axes)]
    evaluate.learn(case, space)
    for point in [*space, *space[:4]]:
        row = evaluate.evaluate(case, point)
        if row["status"] == "ok":
            alone = evaluate.flat(run(case.cluster({}).simulator.cluster, case.job(point)).summary)
            figures = {key: value for key, value in alone.items() if isinstance(value, float)}
            assert {key: row[key] for key in figures} == pytest.approx(figures, rel=1e-12, abs=0)
            assert {**row, **alone}.keys() == row.keys()


def test_forecasts_are_those_of_the_predictor_however_many_are_kept(monkeypatch):
    cluster = load_topology(NODE)
    simulator = Simulator(cluster)
    one = simulator.placed(load(JOB, {"parallelism.pp": 2}))
    kernels = simulator.preparation.written(one).kernels
    predictor = get("neusight")
    # weight gradients that add to fp32 sums are forecast as products, and the seconds of their further bytes come on top
    products, sums = split_sums(kernels, cluster.gpu)
    bursts = predictor.predict(products, cluster.gpu)
    for most in (50_000, len(kernels) - 1):
        monkeypatch.setattr(forecasts, "KERNELS", most)
        known = Forecasts(predictor, cluster.gpu)
        for clocks in ("sustained", "boost", 0.5, *np.linspace(0.1, 0.9, 12).tolist()):
            for part in (kernels[:5], kernels):
                seconds = known.seconds(part, clocks)
                expected = (derate(products, bursts, cluster.gpu, clocks) + np.array(sums))[: len(part)]
                assert [seconds[kernel] for kernel in part] == pytest.approx(expected.tolist(), rel=1e-14)
        own, given = known.bounds(kernels), bounds(predictor, products, cluster.gpu, bursts)
        assert own[:2] == (tuple(kernels), given[1])
        assert np.allclose(own.low, given.low, rtol=1e-14)
        assert np.allclose(own.high, given.high, rtol=1e-14)
