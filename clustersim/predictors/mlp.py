"""Ensembles of small networks. The same code runs in numpy (forecasts) and in torch (training).

`xp` is the numpy or the torch module. Arrays of an ensemble have the member as their first dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Parameters = Mapping[str, Any]
"""{name: array} of learned parameters, numpy arrays or torch tensors."""


def forward(xp: Any, parameters: Parameters, features: Any) -> Any:
    """Return the outputs of networks, (member, row, output), with ReLU between the layers.

    parameters: `mlp.0.weight` (member, input, output), `mlp.0.bias` (member, 1, output), and so on. features: (row, input) for
    all members, or (member, row, input).
    """
    x, layer = features, 0
    while f"mlp.{layer}.weight" in parameters:
        if layer:
            x = x.clip(0)
        x = product(xp, x, parameters[f"mlp.{layer}.weight"]) + parameters[f"mlp.{layer}.bias"]
        layer += 1
    return x


def product(xp: Any, left: Any, right: Any) -> Any:
    """Return the matrix product of `left` (…, row, inner) and `right` (…, inner, column).

    In numpy the order of a row's sum does not depend on the other rows, whereas BLAS changes the order if there are few rows. So
    the last digit of a kernel's time does not depend on which other kernels are forecast with it.
    """
    return xp.einsum("...ri,...ic->...rc", left, right) if xp is np else xp.matmul(left, right)


def sigmoid(xp: Any, x: Any) -> Any:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return 1 / (1 + xp.exp(-x.clip(-30, 30)))


def softplus(xp: Any, x: Any) -> Any:
    """Return log(1 + exp(x)), without overflow."""
    return xp.log(1 + xp.exp(x.clip(-30, 30)))


def standardise(parameters: Parameters, features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the features (row, input), clipped to the range of the training rows, as deviations from their mean.

    The deviations are in standard deviations. parameters: `low`, `high`, `mean` and `std` of each input.
    """
    inside = features.clip(parameters["low"], parameters["high"])
    result: NDArray[np.float64] = (inside - parameters["mean"]) / parameters["std"]
    return result
