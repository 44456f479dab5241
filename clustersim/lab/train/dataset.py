"""Training and test data of each class of kernels.

FP32 classes learn from the split `train` (P4, P100, V100, T4, A100-40GB) and are judged on `test`, whose L4, A100-80GB and H100
are in no training row. Tensor-core classes learn from all GPUs, and their error is measured by leaving out a whole generation.
Networks of single GPUs are judged on held-out shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.errors import DataError
from clustersim.hardware import gpus
from clustersim.hardware.constants import LAUNCH
from clustersim.lab.data import tables
from clustersim.lab.data.samples import Samples, canonical, gpus_of, merge, pick
from clustersim.lab.data.sources import Data, left_out, places
from clustersim.lab.data.tables import own_samples, tensor_samples
from clustersim.predictors.classes import SIMT
from clustersim.predictors.features import Columns, Flags
from clustersim.predictors.mlp import Parameters

GENERATIONS = {"blackwell-ultra": "blackwell"}
"""{architecture: its generation}; others are their own."""
WEIGHT = {"pascal": 0.25, "turing": 0.5, "ada": 0.25}
"""{architecture: weight of its GPUs in training}, 1 for others. No training cluster has relatives of P4, P100, T4 or L40S."""


class Dataset(NamedTuple):
    """Samples of one class as inputs of a model: arrays with one row per kernel. `inputs` has `gpu`, one-hot (rows, GPUs)."""

    inputs: dict[str, Floats]
    seconds: Floats
    weight: Floats
    share: Floats
    """Weight of each GPU; they sum to one."""


def dataset(samples: Samples, describe: Callable[[Columns, Gpu], dict[str, Floats]], patience: float) -> Dataset:
    """Return samples as inputs of a model. describe: kernels of one GPU -> {input: array (rows, …)}.

    The weight of kernels shorter than `patience` seconds falls in proportion, because the dispatch of the call hides them.
    """
    groups = gpus_of(samples)
    inputs = inputs_of(samples, describe) | {"gpu": np.stack(list(groups.values()), axis=1).astype(np.float64)}
    share = np.array([WEIGHT.get(gpus.load(name).architecture, 1.0) for name in groups])
    weight = np.clip(samples.seconds / patience, 0.1, 1.0) * (inputs["gpu"] @ share)
    return Dataset(inputs, samples.seconds, weight / weight.mean(), share / share.sum())


def inputs_of(samples: Samples, describe: Callable[[Columns, Gpu], dict[str, Floats]]) -> dict[str, Floats]:
    """Return {input: array (rows, …)}: what `describe`, called once for each GPU with its kernels, returns for them."""
    inputs: dict[str, Floats] = {}
    for gpu, rows in gpus_of(samples).items():
        for name, value in describe(samples.table.select(rows), gpus.load(gpu)).items():
            inputs.setdefault(name, np.zeros((len(samples), *value.shape[1:])))[rows] = value
    return inputs


def lone(xp: Any, parameters: Parameters, rows: Mapping[str, Any], log_seconds: Any) -> Any:
    """Return log(seconds) of eager calls (members, rows): kernel plus the GPU's `gpu.dispatch`, or plus LAUNCH without it."""
    dispatch = LAUNCH
    if "gpu.dispatch" in parameters:
        dispatch = (rows["gpu"] * xp.exp(parameters["gpu.dispatch"])[:, None, :]).sum(-1)
    return xp.log(dispatch + xp.exp(log_seconds))


def forget(parameters: Mapping[str, Floats], share: Floats) -> dict[str, Floats]:
    """Return parameters without those of single GPUs (`gpu.…`), with `dispatch` (s): their weighted mean, or LAUNCH."""
    kept = {name: value for name, value in parameters.items() if not name.startswith("gpu.")}
    known = "gpu.dispatch" in parameters
    dispatch = float((np.exp(parameters["gpu.dispatch"]) @ share).mean()) if known else LAUNCH
    return kept | {"dispatch": np.array([dispatch])}


PER_GPU = 20_000
"""Rows of each GPU and data type that a tensor-core class learns from and is judged on."""
PER_CLASS = 60_000


class TrainTestSplit(NamedTuple):
    """Training and test samples of one class."""

    train: Samples
    """Samples to learn from."""
    test: Samples | None
    """Samples to measure errors on; None: each generation of `train` in turn, left out."""


def splits(data: Data | Path, seed: int) -> dict[str, TrainTestSplit]:
    """Return the training data of every class, without the GPUs that `data` leaves out. Raises DataError for missing tables."""
    train, test = tables.fp32(data, "train"), tables.fp32(data, "test")
    rng = np.random.default_rng(seed)
    result = {name: TrainTestSplit(thin(pick(train, name), None, rng, PER_CLASS), pick(test, name)) for name in SIMT}
    for name, samples in tensor_samples(data).items():
        groups = np.char.add(np.char.add(samples.gpu, " "), samples.table.dtype)
        result[name] = TrainTestSplit(thin(samples, groups, rng, PER_GPU), None)
    for name, samples in own_samples(data).items():
        if name in result:
            result[name] = result[name]._replace(train=merge([result[name].train, samples]))
    result = {name: _leave_out(split, data) for name, split in result.items()}
    empty = [name for name, split in result.items() if not len(split.train)]
    if empty:
        where, out = ", ".join(map(str, places(data))), ", ".join(left_out(data))
        what = f"{', '.join(empty)}{f' without {out}' if out else ''}"
        raise DataError(f"{where}: no measured kernels of {what}; the tables must hold all classes")
    return result


def _leave_out(split: TrainTestSplit, data: Data | Path) -> TrainTestSplit:
    """Return the split without training samples of the GPUs to leave out. They become the test samples if there are no others."""
    held_out = np.isin(canonical(split.train).gpu, left_out(data))
    test = split.train.select(held_out) if split.test is None and held_out.any() else split.test
    return TrainTestSplit(split.train.select(~held_out), test)


def thin(samples: Samples, groups: NDArray[np.str_] | None, rng: np.random.Generator, most: int) -> Samples:
    """Return at most `most` random samples of each group. groups: name of the group of each sample; None: all are one group."""
    names = np.zeros(len(samples), np.str_) if groups is None else groups
    rows = [rng.permutation(np.flatnonzero(names == name))[:most] for name in np.unique(names)]
    return samples.select(np.sort(np.concatenate([np.arange(0), *rows])))


def held_shapes(samples: Samples) -> Flags:
    """Return a mask of samples with a held-out shape: one in five, by a hash of m, n and k, the same on all GPUs."""
    table = samples.table
    sides = np.stack([table.m, table.n, table.k]).astype(np.int64)
    result: Flags = (_PRIMES @ sides // 64) % 5 == 0
    return result


_PRIMES = np.array([73_856_093, 19_349_663, 83_492_791])


def generations(samples: Samples) -> dict[str, Flags]:
    """Return {generation: mask of the samples measured on its GPUs}."""
    boards = {name: gpus.load(name).architecture for name in gpus_of(samples)}
    own = {name: GENERATIONS.get(text, text) for name, text in boards.items()}
    return {
        generation: np.isin(samples.gpu, [name for name, one in own.items() if one == generation])
        for generation in dict.fromkeys(own.values())
    }
