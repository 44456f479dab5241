"""One measured number for a GPU that training had not seen: the speed of its matrix units, from a few kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clustersim.config.gpu import Gpu
from clustersim.lab.data.samples import Samples
from clustersim.lab.train import learner
from clustersim.predictors.base import Predictor
from clustersim.predictors.learned import Learned
from clustersim.predictors.weights_file import Weights

FEW = 64
"""Kernels that set the one measured scalar of a GPU and data type."""


def scalable(predictor: Predictor, name: str) -> bool:
    """Whether a measured scalar changes what `predictor` forecasts of the class `name`."""
    if not isinstance(predictor, Learned) or "gemm.level" not in predictor.weights.classes.get(name, {}):
        return False
    how = learner.of(predictor)
    return how is not None and how.calibrate is not None


def with_scalar(predictor: Learned, name: str, gpu: Gpu, samples: Samples) -> tuple[Learned, NDArray[np.intp]]:
    """Return the predictor after one scalar for each data type of a class is set by FEW kernels, and which rows are the others.

    samples: kernels of the class `name` measured on `gpu`; the few are drawn from them at random, always the same ones.
    """
    how = learner.of(predictor)
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
