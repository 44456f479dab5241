"""What a learned predictor needs in order to learn, class by class; each is a file in `learners/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from clustersim import plugins
from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.lab.data.samples import Samples
from clustersim.lab.train.ensemble import TrainingProgress
from clustersim.predictors.learned import Learned, Method
from clustersim.predictors.mlp import Parameters

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
