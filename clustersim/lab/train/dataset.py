"""Samples of one class made ready for learning, and what is peculiar to the GPUs that measured them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.hardware import gpus
from clustersim.hardware.constants import LAUNCH
from clustersim.lab.data.samples import Samples, gpus_of
from clustersim.predictors.classes import GRAPHED, TENSOR
from clustersim.predictors.features import Columns
from clustersim.predictors.mlp import Parameters

GENERATIONS = {"blackwell-ultra": "blackwell"}
"""Architectures that are of one generation: the others stand for themselves."""
WEIGHT = {"pascal": 0.25, "turing": 0.5, "ada": 0.25}
"""How much a GPU counts in learning, by architecture: others 1. Clusters that train have no relatives of P4, P100, T4, L40S."""


class Dataset(NamedTuple):
    """Samples of one class as inputs of a model: arrays with one row a kernel, and `gpu`, which GPU measured it."""

    inputs: dict[str, Floats]
    seconds: Floats
    weight: Floats
    share: Floats
    """How much each GPU of the dataset counts; sums to one."""


def dataset(samples: Samples, describe: Callable[[Columns, Gpu], dict[str, Floats]], patience: float) -> Dataset:
    """Return samples as inputs: what `describe` says of the kernels on each GPU, row by row.

    Kernels shorter than `patience` seconds count less, in proportion: the dispatch of the call hides them.
    """
    inputs: dict[str, Floats] = {}
    groups = gpus_of(samples)
    described = [gpus.load(name) for name in groups]
    for column, (gpu, rows) in enumerate(zip(described, groups.values(), strict=True)):
        found = describe(samples.table.select(rows), gpu) | {"gpu": np.eye(len(groups))[np.full(rows.sum(), column)]}
        for name, value in found.items():
            inputs.setdefault(name, np.zeros((len(samples), *value.shape[1:])))[rows] = value
    share = np.array([WEIGHT.get(gpu.architecture, 1.0) for gpu in described])
    weight = np.clip(samples.seconds / patience, 0.1, 1.0) * (inputs["gpu"] @ share)
    return Dataset(inputs, samples.seconds, weight / weight.mean(), share / share.sum())


def expected_dispatch(name: str) -> float | None:
    """Return the seconds that a call of a class takes beside its kernel, to begin with; None where it is known."""
    return None if name in GRAPHED else 3e-6 if name in TENSOR else 3e-5


def nuisance(members: int, data: Dataset, dispatch: float | None) -> dict[str, Floats]:
    """Return what differs between the GPUs of a dataset and is thrown away later: the dispatch of a call (log s), if any."""
    return {"gpu.dispatch": np.full((members, len(data.share)), np.log(dispatch))} if dispatch else {}


def lone(xp: Any, parameters: Parameters, rows: Mapping[str, Any], log_seconds: Any) -> Any:
    """Return log(seconds) of a call by itself on the GPU that measured it: dispatch + kernel; else a launch + kernel."""
    dispatch = LAUNCH
    if "gpu.dispatch" in parameters:
        dispatch = (rows["gpu"] * xp.exp(parameters["gpu.dispatch"])[:, None, :]).sum(-1)
    return xp.log(dispatch + xp.exp(log_seconds))


def forget(parameters: Mapping[str, Floats], share: Floats) -> dict[str, Floats]:
    """Return parameters without those of single GPUs; `dispatch` (s) becomes their mean."""
    kept = {name: value for name, value in parameters.items() if not name.startswith("gpu.")}
    known = "gpu.dispatch" in parameters
    dispatch = float((np.exp(parameters["gpu.dispatch"]) @ share).mean()) if known else LAUNCH
    return kept | {"dispatch": np.array([dispatch])}
