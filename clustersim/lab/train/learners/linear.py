"""Training of `linear`: least squares of the relative error over all GPUs, with non-negative slopes."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import numpy as np

from clustersim.arrays import Floats
from clustersim.lab.data.samples import Samples
from clustersim.lab.train.dataset import dataset
from clustersim.lab.train.ensemble import TrainingProgress, silent
from clustersim.lab.train.learner import Learner
from clustersim.lab.train.training import learn
from clustersim.predictors.kinds.linear import METHOD, describe


def fit(name: str, samples: Samples, seed: int, progress: TrainingProgress = silent) -> dict[str, Floats]:
    """Return the `slope` (2,) and `dispatch` (1,) in s of one class. `seed` has no effect."""
    facts = dataset(samples, describe, patience=1e-4)
    design = np.column_stack([facts.inputs["times"], np.ones(len(samples))]) / facts.seconds[:, None]
    solution = nonnegative(design * np.sqrt(facts.weight)[:, None], np.sqrt(facts.weight))
    progress(name, 1, 1)
    return {"slope": solution[:2], "dispatch": solution[2:]}


def nonnegative(design: Floats, target: Floats) -> Floats:
    """Return the x >= 0 of least squared error of design·x - target, for few columns: the best set of non-zero columns."""
    count = design.shape[1]
    best, least = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            part = np.linalg.lstsq(design[:, chosen], target, rcond=None)[0]
            error = float(((design[:, chosen] @ part - target) ** 2).sum())
            if (part >= 0).all() and error < least:
                best, least = np.zeros(count), error
                best[list(chosen)] = part
    return best


LEARNER = Learner(METHOD, fit, torch=False)
train = partial(learn, LEARNER)
