"""NeuSight: tiles, waves and a learned utilization under the roofline (Lee et al., ASPLOS 2025, arXiv 2407.13853).

A family of kernels is a module: products (gemm), attention, grouped, vector. What differs from the paper's code, and why,
is in docs/predictors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.config.gpu import Gpu
from clustersim.extras import need_torch
from clustersim.predictors.columns import Columns, Floats
from clustersim.predictors.curriculum import learn
from clustersim.predictors.learned import Learned, Method, open_weights
from clustersim.predictors.lessons import lesson
from clustersim.predictors.mlp import Parameters
from clustersim.predictors.model import LAUNCH
from clustersim.predictors.neusight import attention, gemm, grouped, products, vector, vector_learning
from clustersim.predictors.samples import Samples
from clustersim.predictors.sources import Data
from clustersim.predictors.store import Weights
from clustersim.predictors.training import Plan, Progress, fit, silent

FEW = (attention, grouped)
"""Families with a few learned constants that torch finds in one go."""
FEW_PLAN = Plan(members=2, steps=600, rate=3e-2)
TOGETHER = (("fp32/linear", "fp32/bmm"), ("half/linear", "narrow/linear"))
"""Classes that one set of constants forecasts: the same units run them."""
OWN = ("half/linear", "narrow/linear")
"""Classes of which a measured GPU gets a network of its own: their tables cover the shapes of training."""


def seconds(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool) -> Floats:
    """Return the seconds of kernels of one class, launch excluded."""
    if vector.knows(table):
        return vector.predict(parameters, table, gpu)
    for family in FEW:
        if family.KEYS[0] in parameters:
            few: Floats = np.exp(family.log_seconds(np, parameters, family.terms(table, gpu)).mean(axis=0))
            return few
    return products.forecast(parameters, table, gpu, alone)


def learn_class(name: str, samples: Samples, seed: int, progress: Progress = silent) -> dict[str, Floats]:
    """Return the parameters of one class, or of classes that share them, learned from its samples."""
    if name in vector.CLASSES:
        return vector_learning.learn_class(name, samples, seed, progress)
    for family in FEW:
        if name in family.CLASSES:
            return _learn_few(name, family, samples, seed, progress)
    return products.learn(name, samples, seed, progress)


def _learn_few(name: str, family: Any, samples: Samples, seed: int, progress: Progress) -> dict[str, Floats]:
    facts = lesson(samples, family.terms, patience=2e-5)
    inputs = {key: value for key, value in facts.inputs.items() if key != "gpu"}
    begin = family.start(FEW_PLAN.members)
    found = fit(name, begin, family.log_seconds, inputs, facts.seconds, seed, facts.weight, FEW_PLAN, progress)
    return found | {"dispatch": np.array([LAUNCH])}


def memory(classes: Mapping[str, Parameters], table: Columns, gpu: Gpu) -> Floats:
    """Return the seconds of memory-bound kernels, launch excluded: element-wise ones with constants of their own."""
    return vector.predict(classes["fp32/elementwise"], table, gpu)


def _constants(*names: str) -> tuple[str, ...]:
    return (*(f"gemm.{name}" for name in (*gemm.GUESS[names[0]], "level")), "busy")


METHOD = Method(
    "neusight",
    seconds,
    learn_class,
    (),
    special={
        **dict.fromkeys(("fp32/linear", "fp32/bmm"), _constants("simt")),
        **dict.fromkeys(("half/linear", "narrow/linear"), _constants("tensor")),
        **dict.fromkeys(vector.CLASSES, vector.PARAMETERS),
        **{name: family.KEYS for family in FEW for name in family.CLASSES},
    },
    memory=memory,
    together=TOGETHER,
    own=(OWN, products.learn_own),
    calibrate=products.calibrated,
)


def load(weights: Path | None = None) -> Learned:
    """Return the predictor with the shipped weights, or those of a file. Raises DataError."""
    return open_weights(METHOD, weights)


def train(data: Data | Path, seed: int = 0, progress: Progress = silent, scratch: Path | None = None) -> Weights:
    """Return weights learned from measured kernels; `scratch` makes it resumable. Raises DataError for what is missing."""
    need_torch("training neusight")
    return learn(METHOD, data, seed, progress, scratch)
