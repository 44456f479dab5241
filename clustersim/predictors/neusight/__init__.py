"""NeuSight: tiles, waves and a learned utilization under the roofline (Lee et al., ASPLOS 2025, arXiv 2407.13853).

What differs from the paper's code, and why, is in docs/predictors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.config.gpu import Gpu
from clustersim.predictors.classes import GRAPHED
from clustersim.predictors.columns import Columns, Floats
from clustersim.predictors.curriculum import learn
from clustersim.predictors.learned import Learned, Method, open_weights
from clustersim.predictors.lessons import expected_dispatch, forget, lesson, lone, nuisance
from clustersim.predictors.mlp import Parameters, scaling, standardise
from clustersim.predictors.neusight import vector, vector_learning, wave
from clustersim.predictors.neusight.terms import terms
from clustersim.predictors.samples import Samples
from clustersim.predictors.sources import Data
from clustersim.predictors.store import Weights
from clustersim.predictors.training import Plan, Progress, fit, silent

PLAN = Plan()
BACKWARD = 0.8
"""Rate of flash attention backward over forward: 124 to 157 TFLOP/s against 157 to 185 on A100 (SimuMax), 0.8 on H100
(Shah et al., FlashAttention-3, figures 5 and 6)."""


def seconds(parameters: Parameters, table: Columns, gpu: Gpu) -> Floats:
    """Return the seconds of kernels of one class, launch excluded: the geometric mean of the ensemble."""
    if vector.knows(table):
        return vector.predict(parameters, table, gpu)[0]
    rows = terms(table, gpu)
    rows["features"] = standardise(parameters, rows["features"])
    result: Floats = np.exp(wave.log_seconds(np, parameters, rows).mean(axis=0))
    return np.where((table.kind == "flash_attention") & (table.op == "backward"), result / BACKWARD, result)


def learn_class(name: str, samples: Samples, seed: int, progress: Progress = silent) -> dict[str, Floats]:
    """Return the parameters of one class, learned in torch from its samples."""
    if name in vector.CLASSES:
        return vector_learning.learn_class(name, samples, seed, progress)
    facts = lesson(samples, terms, patience=2e-5 if name in GRAPHED else 1e-4)
    scale = scaling(facts.inputs["features"])
    inputs = facts.inputs | {"features": standardise(scale, facts.inputs["features"])}
    begin = wave.start(PLAN.members, inputs["features"].shape[1], PLAN.widths, seed)
    begin |= nuisance(PLAN.members, facts, expected_dispatch(name))

    def log_seconds(xp: Any, parameters: Parameters, rows: Parameters) -> Any:
        share = xp.tensor(facts.share, dtype=xp.float32)
        return lone(xp, parameters, rows, wave.log_seconds(xp, parameters, rows), share)

    found = fit(name, begin, log_seconds, inputs, facts.seconds, seed, facts.weight, PLAN, progress)
    return forget(found, facts.share) | scale


def memory(classes: Mapping[str, Parameters], table: Columns, gpu: Gpu) -> Floats:
    """Return the seconds of memory-bound kernels, launch excluded: element-wise ones with constants of their own."""
    return vector.predict(classes["fp32/elementwise"], table, gpu)[0]


METHOD = Method(
    "neusight",
    seconds,
    learn_class,
    ("mlp.0.weight", "wave.mu", "low", "high", "mean", "std"),
    dict.fromkeys(vector.CLASSES, vector.PARAMETERS),
    memory,
)


def load(weights: Path | None = None) -> Learned:
    """Return the predictor with the shipped weights, or those of a file. Raises DataError."""
    return open_weights(METHOD, weights)


def train(data: Data | Path, seed: int = 0, progress: Progress = silent, scratch: Path | None = None) -> Weights:
    """Return weights learned from measured kernels; `scratch` makes it resumable. Raises DataError for what is missing."""
    return learn(METHOD, data, seed, progress, scratch)
