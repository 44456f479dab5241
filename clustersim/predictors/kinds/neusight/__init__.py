"""NeuSight: tiles, waves and a learned utilization under the roofline (Lee et al., ASPLOS 2025, arXiv 2407.13853).

Each family of kernels is a module: GEMMs (gemm), attention, grouped GEMMs, vector kernels. docs/predictors.md lists the
differences from the paper's code, with reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.predictors.features import Columns
from clustersim.predictors.kinds.neusight import attention, gemm, grouped, products, vector
from clustersim.predictors.learned import Learned, Method, open_weights
from clustersim.predictors.mlp import Parameters

FEW = (attention, grouped)
"""Families of kernels (modules) with a few learned constants, fitted by torch in one run."""


def seconds(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool) -> Floats:
    """Return the seconds of kernels of one class without launch (kernels,).

    parameters: those of the class. alone: whether a table timed each kernel alone; it matters for GEMMs only.
    """
    if vector.knows(table):
        return vector.predict(parameters, table, gpu)
    for family in FEW:
        if family.KEYS[0] in parameters:
            few_constants: Floats = np.exp(family.log_seconds(np, parameters, family.terms(table, gpu)).mean(axis=0))
            return few_constants
    return products.forecast(parameters, table, gpu, alone)


def memory(classes: Mapping[str, Parameters], table: Columns, gpu: Gpu) -> Floats:
    """Return the seconds of memory-bound kernels without launch (kernels,), by the constants of element-wise kernels.

    classes: {class: its parameters}.
    """
    return vector.predict(classes["fp32/elementwise"], table, gpu)


def _constants(units: str) -> tuple[str, ...]:
    """Return the names of the required parameters of GEMMs on `units`, which is `simt` or `tensor`."""
    return (*(f"gemm.{name}" for name in (*gemm.GUESS[units], "level")), "busy")


METHOD = Method(
    "neusight",
    seconds,
    (),
    special={
        **dict.fromkeys(("fp32/linear", "fp32/bmm"), _constants("simt")),
        **dict.fromkeys(("half/linear", "narrow/linear"), _constants("tensor")),
        **dict.fromkeys(vector.CLASSES, vector.PARAMETERS),
        **{name: family.KEYS for family in FEW for name in family.CLASSES},
    },
    memory=memory,
)
"""Functions and parameters of this predictor."""


def load(weights: Path | None = None) -> Learned:
    """Return the predictor with the weights of a file; None: the shipped weights. Raises DataError if the file is missing or
    damaged."""
    return open_weights(METHOD, weights)
