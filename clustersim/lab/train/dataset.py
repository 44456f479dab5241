"""What each class of kernels learns from, and what its error is measured on.

FP32 classes learn from the split `train` (P4, P100, V100, T4, A100-40GB) and are judged on `test`, whose L4, A100-80GB and
H100 no training row comes from. Tensor-core classes learn from all GPUs; their error is measured by leaving a whole
generation out. What is learned of one GPU alone is judged on shapes held out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.errors import DataError
from clustersim.hardware import gpus
from clustersim.hardware.constants import LAUNCH
from clustersim.lab.data import tables
from clustersim.lab.data.samples import Samples, canonical, gpus_of, join, pick
from clustersim.lab.data.sources import Data, left_out, places
from clustersim.lab.data.tables import own_samples, tensor_samples
from clustersim.predictors.classes import GRAPHED, SIMT, TENSOR
from clustersim.predictors.features import Columns, Flags
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
    """Return the nuisance parameters of the GPUs of a dataset: the dispatch of a call (log s), if any."""
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


PER_GPU = 20_000
"""Rows of each GPU and data type that a tensor-core class learns from and is judged on."""
PER_CLASS = 60_000


class Split(NamedTuple):
    """The samples of one class."""

    train: Samples
    """What is learned from."""
    test: Samples | None
    """What errors are measured on; None: each generation of `train` in turn, left out."""


def splits(data: Data | Path, seed: int) -> dict[str, Split]:
    """Return the training data of every class, without the GPUs that `data` leaves out. Raises DataError for missing tables."""
    train, test = tables.fp32(data, "train"), tables.fp32(data, "test")
    rng = np.random.default_rng(seed)
    result = {name: Split(thin(pick(train, name), rng, PER_CLASS), pick(test, name)) for name in SIMT}
    for name, samples in tensor_samples(data).items():
        groups = np.char.add(np.char.add(samples.gpu, " "), samples.table.dtype)
        rows = [_some(np.flatnonzero(groups == group), rng, PER_GPU) for group in np.unique(groups)]
        result[name] = Split(samples.select(np.sort(np.concatenate([*rows, np.zeros(0, dtype=np.int64)]))), None)
    for name, samples in own_samples(data).items():
        if name in result:
            result[name] = result[name]._replace(train=join(result[name].train, samples))
    result = {name: _leave_out(split, data) for name, split in result.items()}
    empty = [name for name, split in result.items() if not len(split.train)]
    if empty:
        where, out = ", ".join(map(str, places(data))), ", ".join(left_out(data))
        what = f"{', '.join(empty)}{f' without {out}' if out else ''}"
        raise DataError(f"{where}: no measured kernels of {what}; the tables must hold all classes")
    return result


def _leave_out(split: Split, data: Data | Path) -> Split:
    """Return the split without the GPUs to leave out; where no other kernels test it, theirs do."""
    held_out = np.isin(canonical(split.train).gpu, left_out(data))
    test = split.train.select(held_out) if split.test is None and held_out.any() else split.test
    return Split(split.train.select(~held_out), test)


def thin(samples: Samples, rng: np.random.Generator, most: int) -> Samples:
    """Return at most `most` of the samples, drawn at random."""
    return samples.select(_some(np.arange(len(samples)), rng, most))


def _some(rows: Any, rng: np.random.Generator, most: int) -> Any:
    return np.sort(rng.permutation(rows)[:most])


def held_shapes(samples: Samples) -> Flags:
    """Return which samples have a shape that is held out: every fifth, by a hash of m, n and k, the same on all GPUs."""
    table = samples.table
    sides = np.stack([table.m, table.n, table.k]).astype(np.int64)
    result: Flags = (_PRIMES @ sides // 64) % 5 == 0
    return result


_PRIMES = np.array([73_856_093, 19_349_663, 83_492_791])


def generations(samples: Samples) -> dict[str, Flags]:
    """Return which samples were measured on GPUs of each generation."""
    boards = {name: gpus.load(name).architecture for name in gpus_of(samples)}
    own = {name: GENERATIONS.get(text, text) for name, text in boards.items()}
    return {
        generation: np.isin(samples.gpu, [name for name, one in own.items() if one == generation])
        for generation in dict.fromkeys(own.values())
    }
