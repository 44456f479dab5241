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
from clustersim.predictors.neusight import attention, wave
from clustersim.predictors.neusight.terms import terms
from clustersim.predictors.samples import Samples
from clustersim.predictors.store import Weights
from clustersim.predictors.training import Plan, Progress, fit, silent

PLAN = Plan()
CONSTANTS = {"flash_attention": attention}
"""Classes of a few constants instead of networks, by the kind they are named after."""


def seconds(parameters: Parameters, table: Columns, gpu: Gpu) -> Floats:
    """Return the seconds of kernels of one class, launch excluded: the geometric mean of the ensemble."""
    if family := constants(str(table.kind[0])) if len(table) else None:
        few: Floats = np.exp(family.log_seconds(np, parameters, family.terms(table, gpu)).mean(axis=0))
        return few
    rows = terms(table, gpu)
    rows["features"] = standardise(parameters, rows["features"])
    result: Floats = np.exp(wave.log_seconds(np, parameters, rows).mean(axis=0))
    return result


def constants(kind: str) -> Any:
    """Return the module whose few constants forecast kernels of this kind, None for those of a network."""
    return CONSTANTS.get(kind)


def learn_class(name: str, samples: Samples, seed: int, progress: Progress = silent) -> dict[str, Floats]:
    """Return the parameters of one class, learned in torch from its samples."""
    if family := constants(name.partition("/")[2]):
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
    found = fit(
        name, family.start(plan.members), family.log_seconds, inputs, facts.seconds, seed, facts.weight, plan, progress
    )
    return found | {"dispatch": np.array([LAUNCH])}


METHOD = Method("neusight", seconds, learn_class, ())


def load(weights: Path | None = None) -> Learned:
    """Return the predictor with the shipped weights, or those of a file. Raises DataError."""
    return open_weights(METHOD, weights)


def train(data: Path, seed: int = 0, progress: Progress = silent) -> Weights:
    """Return weights learned from the tables of a data folder. Raises DataError for what is missing there."""
    return learn(METHOD, data, seed, progress)
