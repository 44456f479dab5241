"""Errors of predictors on measured kernels, by class and GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clustersim import gpus
from clustersim.predictors import tables
from clustersim.predictors.classes import GROUPED, SIMT, TENSOR, pick
from clustersim.predictors.columns import Columns, Floats
from clustersim.predictors.model import Predictor
from clustersim.predictors.samples import Samples, gpus_of
from clustersim.workload.kernel import Kernel


class Row(NamedTuple):
    """Absolute relative errors (0.1 = 10 %) of one predictor on the kernels of one class and GPU.

    `large` is the mean over kernels of more than 20 GFLOP, NaN without any; `bias` the median of predicted / measured.
    """

    predictor: str
    kind: str
    gpu: str
    mean: float
    median: float
    p90: float
    large: float
    bias: float
    samples: int


def kernels(table: Columns) -> list[Kernel]:
    """Return columns as kernels."""
    fields = [getattr(table, name).tolist() for name in Kernel._fields]
    return [Kernel(*row) for row in zip(*fields, strict=True)]


def measure(predictor: Predictor, kind: str, samples: Samples) -> Iterator[Row]:
    """Yield the errors of a predictor on the samples of one class, GPU by GPU."""
    for name, rows in sorted(gpus_of(samples).items()):
        gpu, part = gpus.load(name), samples.select(rows)
        ratio = predictor.predict(kernels(part.table), gpu, alone=True) / part.seconds
        yield summary(predictor.name, kind, gpu.name, ratio, part.table)


def summary(predictor: str, kind: str, gpu: str, ratio: Floats, table: Columns) -> Row:
    """Return the error row of predicted / measured ratios."""
    error, large = np.abs(ratio - 1), table.flop > 20e9
    mean, median, p90 = float(error.mean()), float(np.median(error)), float(np.quantile(error, 0.9))
    big = float(error[large].mean()) if large.any() else float("nan")
    return Row(predictor, kind, gpu, mean, median, p90, big, float(np.median(ratio)), len(error))


def test_samples(data: Path, split: str = "test") -> dict[str, Samples]:
    """Return the measured kernels of each class: FP32 of one split, and all of the tensor-core ones."""
    simt = tables.fp32(data, split)
    return {name: pick(simt, name) for name in SIMT} | tensor_samples(data)


def tensor_samples(data: Path) -> dict[str, Samples]:
    """Return the measured kernels of the tensor-core classes; layers of experts where the folder has their table."""
    linear, attention = training_shapes(tables.gemm(data)), tables.attention(data)
    found = {name: pick(attention if name.endswith("attention") else linear, name) for name in TENSOR}
    if (data / tables.EXPERTS).is_file():
        layers = tables.experts(data)
        found |= {name: pick(layers, name) for name in GROUPED}
    return found


def training_shapes(samples: Samples, least: int = 128) -> Samples:
    """Return the GEMMs whose three sides are at least `least`: those of training, not of decoding a token at a time."""
    table = samples.table
    return samples.select((table.m >= least) & (table.n >= least) & (table.k >= least))
