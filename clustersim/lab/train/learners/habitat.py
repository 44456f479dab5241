"""Training of `habitat`: an ensemble of networks in torch, with the dispatch of a call."""

from __future__ import annotations

from functools import partial

import numpy as np

from clustersim.arrays import Floats
from clustersim.lab.data.samples import Samples
from clustersim.lab.train.dataset import dataset, expected_dispatch, forget, lone, nuisance
from clustersim.lab.train.ensemble import TrainingBudget, TrainingProgress, initial, minimize, scaling, silent
from clustersim.lab.train.learner import Learner
from clustersim.lab.train.training import learn
from clustersim.predictors.classes import GRAPHED
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
    begin |= nuisance(BUDGET.members, facts, expected_dispatch(name))

    def lone_seconds(xp: object, parameters: Parameters, rows: Parameters) -> object:
        """Return log(seconds) of an eager call."""
        return lone(xp, parameters, rows, log_seconds(xp, parameters, rows))

    found = minimize(name, begin, lone_seconds, inputs, facts.seconds, seed, facts.weight, BUDGET, progress)
    return forget(found, facts.share) | scale


LEARNER = Learner(METHOD, fit)
train = partial(learn, LEARNER)
