"""What each class of kernels learns from, and what its error is measured on.

FP32 classes learn from the split `train` (P4, P100, V100, T4, A100-40GB) and are judged on `test`, whose L4, A100-80GB and
H100 no training row comes from. Tensor-core classes learn from all GPUs; their error is measured by leaving a whole
generation out. What is learned of one GPU alone is judged on shapes held out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clustersim.errors import DataError
from clustersim.hardware import gpus
from clustersim.lab.data import tables
from clustersim.lab.data.by_class import own_samples, tensor_samples
from clustersim.lab.data.samples import Samples, canonical, gpus_of, join, pick
from clustersim.lab.data.sources import Data, left_out, places
from clustersim.lab.train.dataset import GENERATIONS
from clustersim.predictors.classes import SIMT
from clustersim.predictors.features import Flags

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
    """Return what every class learns, without the GPUs that `data` leaves out. Raises DataError for missing tables."""
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
