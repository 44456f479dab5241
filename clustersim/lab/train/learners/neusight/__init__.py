"""How `neusight` learns: a family of kernels at a time; a network for each measured GPU on top of what all GPUs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from clustersim.arrays import Floats
from clustersim.extras import need
from clustersim.hardware.constants import LAUNCH
from clustersim.lab.data.samples import Samples
from clustersim.lab.data.sources import Data
from clustersim.lab.train.dataset import dataset
from clustersim.lab.train.ensemble import TrainingBudget, TrainingProgress, minimize, silent
from clustersim.lab.train.learner import Learner
from clustersim.lab.train.learners.neusight import products, vector_kernels
from clustersim.lab.train.training import learn
from clustersim.predictors.kinds.neusight import FEW, METHOD, vector
from clustersim.predictors.weights_file import Weights

FEW_BUDGET = TrainingBudget(members=2, steps=600, rate=3e-2)
TOGETHER = (("fp32/linear", "fp32/bmm"), ("half/linear", "narrow/linear"))
"""Classes that one set of constants forecasts: the same units run them."""
OWN = ("half/linear", "narrow/linear")
"""Classes of which a measured GPU gets a network of its own: their tables cover the shapes of training."""


def fit(name: str, samples: Samples, seed: int, progress: TrainingProgress = silent) -> dict[str, Floats]:
    """Return the parameters of one class, or of classes that share them, learned from its samples."""
    if name in vector.CLASSES:
        return vector_kernels.fit(name, samples, seed, progress)
    for family in FEW:
        if name in family.CLASSES:
            return _fit_few(name, family, samples, seed, progress)
    return products.fit(name, samples, seed, progress)


def _fit_few(name: str, family: Any, samples: Samples, seed: int, progress: TrainingProgress) -> dict[str, Floats]:
    facts = dataset(samples, family.terms, patience=2e-5)
    inputs = {key: value for key, value in facts.inputs.items() if key != "gpu"}
    begin = family.start(FEW_BUDGET.members)
    found = minimize(name, begin, family.log_seconds, inputs, facts.seconds, seed, facts.weight, FEW_BUDGET, progress)
    return found | {"dispatch": np.array([LAUNCH])}


LEARNER = Learner(METHOD, fit, together=TOGETHER, own=(OWN, products.fit_own), calibrate=products.calibrated)


def train(
    data: Data | Path, seed: int = 0, progress: TrainingProgress = silent, scratch: Path | None = None
) -> Weights:
    """Return weights learned from measured kernels; `scratch` makes it resumable. Raises DataError for what is missing."""
    need("torch", "training neusight")
    return learn(LEARNER, data, seed, progress, scratch)
