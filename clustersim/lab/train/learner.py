"""The interface of training for a learned predictor, and the one measured scalar of a new GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim import plugins
from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.lab.data.samples import Samples
from clustersim.lab.train.ensemble import TrainingProgress
from clustersim.predictors.base import Predictor
from clustersim.predictors.learned import Learned, Method
from clustersim.predictors.mlp import Parameters
from clustersim.predictors.weights_file import Weights

ROOM = "clustersim.learners"

Fit = Callable[[str, Samples, int, TrainingProgress], dict[str, Floats]]
FitOwn = Callable[[Parameters, Samples, int, TrainingProgress], dict[str, Floats]]


class Learner(NamedTuple):
    """How the parameters of a method are learned from measured kernels."""

    method: Method
    """Method that forecasts with the parameters."""
    fit: Fit
    """Function (class, samples, seed, progress) -> parameters of the class, including `dispatch` (s)."""
    together: tuple[tuple[str, ...], ...] = ()
    """Groups of classes that share the result of `fit`."""
    own: tuple[tuple[str, ...], FitOwn] | None = None
    """Classes with networks for single GPUs, and the function (parameters, samples, seed, progress) that learns them."""
    calibrate: Callable[[Parameters, Samples, Gpu], dict[str, Floats]] | None = None
    """Function that returns parameters with the speed of one GPU set by a few of its kernels."""
    torch: bool = True
    """Training needs PyTorch."""


def get(name: str) -> Learner:
    """Return the learner of a predictor. Raises UnknownNameError."""
    found: Learner = plugins.load(ROOM, name, "LEARNER")
    return found


def learner_of(predictor: Learned) -> Learner | None:
    """Return the learner of a predictor; None for an outside one."""
    return get(predictor.name) if predictor.name in plugins.names(ROOM) else None


FEW = 64
"""Number of kernels that set the measured scalar of a GPU and data type."""


def scalable(predictor: Predictor, name: str) -> bool:
    """Return whether `with_scalar` supports `predictor`: its learner calibrates, and class `name` has a speed of GEMMs."""
    if not isinstance(predictor, Learned) or "gemm.level" not in predictor.weights.classes.get(name, {}):
        return False
    how = learner_of(predictor)
    return how is not None and how.calibrate is not None


def with_scalar(predictor: Learned, name: str, gpu: Gpu, samples: Samples) -> tuple[Learned, NDArray[np.intp]]:
    """Return the predictor after FEW kernels set a scalar for each data type of a class, and the indices of the other rows.

    `samples` are kernels of the class `name` on `gpu`. The few are drawn at random with a fixed seed.
    """
    how = learner_of(predictor)
    assert how is not None
    assert how.calibrate is not None
    few = drawn(samples)
    parameters = how.calibrate(predictor.weights.classes[name], samples.select(few), gpu)
    weights = Weights({**predictor.weights.classes, name: parameters}, predictor.weights.meta)
    return replace(predictor, weights=weights), np.setdiff1d(np.arange(len(samples)), few)


def drawn(samples: Samples) -> NDArray[np.intp]:
    """Return the indices of the rows that set the scalars: FEW of each data type."""
    order = np.random.default_rng(0).permutation(len(samples))
    types = samples.table.dtype
    return np.concatenate([order[types[order] == one][:FEW] for one in np.unique(types)])
