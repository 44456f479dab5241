"""What a learned predictor needs in order to learn, and the one measured number of a GPU that training had not seen."""

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
    """What forecasts with them."""
    fit: Fit
    """(class, samples, seed, progress) -> the parameters of the class, `dispatch` (s) among them."""
    together: tuple[tuple[str, ...], ...] = ()
    """Classes that share what `fit` returns."""
    own: tuple[tuple[str, ...], FitOwn] | None = None
    """Classes for which (parameters, samples, seed, progress) adds what is learned of measured GPUs alone, and that function."""
    calibrate: Callable[[Parameters, Samples, Gpu], dict[str, Floats]] | None = None
    """Return parameters with the speed of one GPU set by a few of its kernels."""


def get(name: str) -> Learner:
    """Return how a predictor of class-by-class weights learns. Raises UnknownNameError."""
    found: Learner = plugins.load(ROOM, name, "LEARNER")
    return found


def of(predictor: Learned) -> Learner | None:
    """Return how a predictor learned; None for one from outside."""
    return get(predictor.name) if predictor.name in plugins.names(ROOM) else None


FEW = 64
"""Kernels that set the one measured scalar of a GPU and data type."""


def scalable(predictor: Predictor, name: str) -> bool:
    """Whether a measured scalar changes what `predictor` forecasts of the class `name`."""
    if not isinstance(predictor, Learned) or "gemm.level" not in predictor.weights.classes.get(name, {}):
        return False
    how = of(predictor)
    return how is not None and how.calibrate is not None


def with_scalar(predictor: Learned, name: str, gpu: Gpu, samples: Samples) -> tuple[Learned, NDArray[np.intp]]:
    """Return the predictor after one scalar for each data type of a class is set by FEW kernels, and which rows are the others.

    samples: kernels of the class `name` measured on `gpu`; the few are drawn from them at random, always the same ones.
    """
    how = of(predictor)
    assert how is not None
    assert how.calibrate is not None
    few = drawn(samples)
    parameters = how.calibrate(predictor.weights.classes[name], samples.select(few), gpu)
    weights = Weights({**predictor.weights.classes, name: parameters}, predictor.weights.meta)
    return replace(predictor, weights=weights), np.setdiff1d(np.arange(len(samples)), few)


def drawn(samples: Samples) -> NDArray[np.intp]:
    """Return which rows set the scalars: FEW of each data type."""
    order = np.random.default_rng(0).permutation(len(samples))
    types = samples.table.dtype
    return np.concatenate([order[types[order] == one][:FEW] for one in np.unique(types)])
