"""Linear regression on FLOP and bytes (Li et al., "Path Forward Beyond Simulators", MICRO 2023).

    seconds = dispatch + x · FLOP / peak + y · bytes / bandwidth, x, y >= 0

There is one pair (x, y) per class, by least squares of the relative error over all GPUs. Achieved rates are shares of the
datasheet's, and apply to an unseen GPU by its peak and bandwidth.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.predictors.features import Columns, peak
from clustersim.predictors.learned import Learned, Method, open_weights
from clustersim.predictors.mlp import Parameters, product


def describe(table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return {`times`: seconds of FLOP at the peak and of bytes at the bandwidth, (kernels, 2)}."""
    return {"times": np.stack([table.flop / peak(table, gpu), table.bytes / gpu.memory_bandwidth], axis=1)}


def seconds(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool = False) -> Floats:
    """Return the seconds of kernels of one class without launch (kernels,). `alone` has no effect."""
    result: Floats = product(np, describe(table, gpu)["times"], parameters["slope"][:, None])[:, 0]
    return result


METHOD = Method("linear", seconds, ("slope",))
"""Functions and parameters of this predictor."""


def load(weights: Path | None = None) -> Learned:
    """Return the predictor with the weights of a file; None: the shipped weights. Raises DataError if the file is missing or
    damaged."""
    return open_weights(METHOD, weights)
