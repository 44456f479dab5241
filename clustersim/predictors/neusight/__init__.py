"""NeuSight: tiles, waves and a learned utilization under the roofline (Lee et al., ASPLOS 2025, arXiv 2407.13853).

What differs from the paper's code, and why, is in docs/predictors.md.
"""

from __future__ import annotations

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
from clustersim.predictors.model import LAUNCH
from clustersim.predictors.neusight import attention, grouped, wave
from clustersim.predictors.neusight.terms import terms
from clustersim.predictors.samples import Samples
from clustersim.predictors.store import Weights
from clustersim.predictors.training import Plan, Progress, fit, silent

PLAN = Plan()
CONSTANTS = (attention, grouped)
"""Families with a few learned constants of their own instead of networks."""


def seconds(parameters: Parameters, table: Columns, gpu: Gpu) -> Floats:
    """Return the seconds of kernels of one class, launch excluded: the geometric mean of the ensemble."""
    result: Floats
    for family in CONSTANTS:
        if family.KEYS[0] in parameters:
            result = np.exp(family.log_seconds(np, parameters, family.terms(table, gpu)).mean(axis=0))
            return result
    rows = terms(table, gpu)
    rows["features"] = standardise(parameters, rows["features"])
    result = np.exp(wave.log_seconds(np, parameters, rows).mean(axis=0))
    return result


def learn_class(name: str, samples: Samples, seed: int, progress: Progress = silent) -> dict[str, Floats]:
    """Return the parameters of one class, learned in torch from its samples."""
    for family in CONSTANTS:
        if name in family.CLASSES:
            return _learn_constants(name, family, samples, seed, progress)
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


def _learn_constants(name: str, family: Any, samples: Samples, seed: int, progress: Progress) -> dict[str, Floats]:
    facts = lesson(samples, family.terms, patience=2e-5)
    inputs = {key: value for key, value in facts.inputs.items() if key not in ("features", "gpu")}
    plan = PLAN._replace(members=2, rate=3e-2, steps=600)
    begin = family.start(plan.members)
    found = fit(name, begin, family.log_seconds, inputs, facts.seconds, seed, facts.weight, plan, progress)
    return found | {"dispatch": np.array([LAUNCH])}


SPECIAL = {name: family.KEYS for family in CONSTANTS for name in family.CLASSES}
METHOD = Method("neusight", seconds, learn_class, ("mlp.0.weight", "wave.mu", "low", "high", "mean", "std"), SPECIAL)


def load(weights: Path | None = None) -> Learned:
    """Return the predictor with the shipped weights, or those of a file. Raises DataError."""
    return open_weights(METHOD, weights)


def train(data: Path, seed: int = 0, progress: Progress = silent) -> Weights:
    """Return weights learned from the tables of a data folder. Raises DataError for what is missing there."""
    return learn(METHOD, data, seed, progress)
