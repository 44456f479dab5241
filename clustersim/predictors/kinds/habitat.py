"""A network from raw shapes to latency, like Habitat's for kernels that vary with the GPU (Yu et al., USENIX ATC 2021).

    log(seconds / roofline) = MLP(log2 of shapes, SMs, ridge point)

The paper's network returns milliseconds, this one the factor over the roofline. Of the GPU's rates it sees only their ratio
(peak / bandwidth), so that a GPU with all rates doubled is exactly twice as fast.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.predictors.features import Columns, bound, peak
from clustersim.predictors.learned import Learned, Method, open_weights
from clustersim.predictors.mlp import Parameters, forward, softplus, standardise


def describe(table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return the inputs of `log_seconds`.

    `roof`: log of the roofline in seconds (kernels,). `features`: log2 of shapes and GPU figures before standardising (kernels,
    9).
    """
    ridge = peak(table, gpu) / gpu.memory_bandwidth
    shapes = (table.batch, table.m, table.n, table.k + 1, table.heads, table.kv_heads, table.size)
    features = np.stack([np.log2(x) for x in (*shapes, np.full(len(table), gpu.sms), ridge)], axis=1)
    return {"roof": np.log(bound(table, gpu)), "features": features}


def seconds(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool = False) -> Floats:
    """Return the seconds of kernels of one class without launch (kernels,): the geometric mean of the ensemble. `alone` has no
    effect."""
    rows = describe(table, gpu)
    rows["features"] = standardise(parameters, rows["features"])
    result: Floats = np.exp(log_seconds(np, parameters, rows).mean(axis=0))
    return result


def log_seconds(xp: object, parameters: Parameters, rows: Parameters) -> Floats:
    """Return log(seconds) of each kernel by each member of the ensemble, (member, kernel); at least the roofline's.

    xp: numpy or torch. rows: result of `describe` with standardised features.
    """
    result: Floats = rows["roof"] + softplus(xp, forward(xp, parameters, rows["features"])[..., 0])
    return result


METHOD = Method("habitat", seconds, ("mlp.0.weight", "low", "high", "mean", "std"))
"""Functions and parameters of this predictor."""


def load(weights: Path | None = None) -> Learned:
    """Return the predictor with the weights of a file; None: the shipped weights. Raises DataError if the file is missing or
    damaged."""
    return open_weights(METHOD, weights)
