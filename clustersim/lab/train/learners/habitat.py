"""Training of `habitat`: an ensemble of networks in torch, with the dispatch of a call."""

from __future__ import annotations

from functools import partial

import numpy as np

from clustersim.arrays import Floats
from clustersim.lab.data.samples import Samples
from clustersim.lab.train.dataset import dataset, forget, lone
from clustersim.lab.train.ensemble import TrainingBudget, TrainingProgress, initial, minimize, scaling, silent
from clustersim.lab.train.learner import Learner
from clustersim.lab.train.training import learn
from clustersim.predictors.classes import GRAPHED, TENSOR
from clustersim.predictors.kinds.habitat import METHOD, describe, log_seconds
from clustersim.predictors.mlp import Parameters, standardise

BUDGET = TrainingBudget(members=2)


def fit(name: str, samples: Samples, seed: int, progress: TrainingProgress = silent) -> dict[str, Floats]:
    """Return {name: parameter} of one class, with `dispatch` (s), learned in torch from its samples."""
    facts = dataset(samples, describe, patience=2e-5 if name in GRAPHED else 1e-4)
    scale = scaling(facts.inputs["features"])
    inputs = facts.inputs | {"features": standardise(scale, facts.inputs["features"])}
    widths = (inputs["features"].shape[1], *BUDGET.widths, 1)
    begin = initial(BUDGET.members, widths, np.random.default_rng(seed))
    if name not in GRAPHED:  # the dispatch of a class's eager calls on each GPU, initially in seconds
        dispatch = 3e-6 if name in TENSOR else 3e-5
        begin["gpu.dispatch"] = np.full((BUDGET.members, len(facts.share)), np.log(dispatch))

    def lone_seconds(xp: object, parameters: Parameters, rows: Parameters) -> object:
        """Return log(seconds) of an eager call."""
        return lone(xp, parameters, rows, log_seconds(xp, parameters, rows))

    found = minimize(name, begin, lone_seconds, inputs, facts.seconds, seed, facts.weight, BUDGET, progress)
    return forget(found, facts.share) | scale


LEARNER = Learner(METHOD, fit)
train = partial(learn, LEARNER)
