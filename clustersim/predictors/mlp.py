"""Ensembles of small networks; the same lines run in numpy (to forecast) and in torch (to learn).

`xp` is the numpy or the torch module. Arrays of an ensemble have the member as their first dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Parameters = Mapping[str, Any]


def initial(members: int, widths: Sequence[int], rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """Return He-initialised weights of `members` networks with the layer widths given, input and output included."""
    result = {}
    for layer, (before, after) in enumerate(pairwise(widths)):
        last = layer == len(widths) - 2
        scale = np.sqrt((0.01 if last else 2.0) / before)
        result[f"mlp.{layer}.weight"] = rng.normal(0, scale, (members, before, after))
        result[f"mlp.{layer}.bias"] = np.zeros((members, 1, after))
    return result


def forward(xp: Any, parameters: Parameters, features: Any) -> Any:
    """Return the outputs (member, row, output) for features (row, input) or (member, row, input); ReLU between layers."""
    x, layer = features, 0
    while f"mlp.{layer}.weight" in parameters:
        if layer:
            x = x.clip(0)
        x = xp.matmul(x, parameters[f"mlp.{layer}.weight"]) + parameters[f"mlp.{layer}.bias"]
        layer += 1
    return x


def sigmoid(xp: Any, x: Any) -> Any:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return 1 / (1 + xp.exp(-x.clip(-30, 30)))


def softplus(xp: Any, x: Any) -> Any:
    """Return log(1 + exp(x)), without overflow."""
    return xp.log(1 + xp.exp(x.clip(-30, 30)))


def scaling(features: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return how to standardise features: mean and deviation, and the range seen, beyond which they are clipped.

    A network is not asked about shapes outside of what it has learned: their features stay at the border.
    """
    low, high = np.quantile(features, [0.001, 0.999], axis=0)
    inside = features.clip(low, high)
    return {"low": low, "high": high, "mean": inside.mean(axis=0), "std": inside.std(axis=0) + 1e-6}


def standardise(parameters: Parameters, features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return features in deviations from the mean of the training rows, clipped to their range."""
    inside = features.clip(parameters["low"], parameters["high"])
    result: NDArray[np.float64] = (inside - parameters["mean"]) / parameters["std"]
    return result
