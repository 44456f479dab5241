"""Errors of predictors on measured kernels, by class and GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clustersim import gpus
from clustersim.config.gpu import Gpu
from clustersim.errors import DataError
from clustersim.predictors import tables
from clustersim.predictors.classes import GROUPED, SIMT, TENSOR, pick, route
from clustersim.predictors.columns import Columns, Floats
from clustersim.predictors.measurements import measured
from clustersim.predictors.model import Predictor
from clustersim.predictors.published import PREFIX, published
from clustersim.predictors.samples import Samples, gpus_of, merge
from clustersim.predictors.sources import ATTENTION, FP32, GEMM, Data, holds, own_files, places
from clustersim.predictors.sources import GROUPED as EXPERTS
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


LARGE = 20e9
"""FLOP above which a kernel counts as large."""
BUSY = "busy/"
"""Before the class of a user's own kernels where the class has tables of eager calls: his rows hold no dispatch, theirs do."""


def kernels(table: Columns) -> list[Kernel]:
    """Return columns as kernels."""
    fields = [getattr(table, name).tolist() for name in Kernel._fields]
    return [Kernel(*row) for row in zip(*fields, strict=True)]


def measure(predictor: Predictor, kind: str, samples: Samples) -> Iterator[Row]:
    """Yield the errors of a predictor on the samples of one class, GPU by GPU."""
    for gpu, ratio, part in ratios(predictor, kind, samples):
        yield summary(predictor.name, kind, gpu.name, ratio, part.table)


def ratios(predictor: Predictor, kind: str, samples: Samples) -> Iterator[tuple[Gpu, Floats, Samples]]:
    """Yield forecast / measured of a predictor on the samples of one class, GPU by GPU; published kernels without a call."""
    for name, rows in sorted(gpus_of(canonical(samples)).items()):
        gpu, part = gpus.load(name), samples.select(rows)
        alone = not kind.startswith((PREFIX, BUSY))
        yield gpu, predictor.predict(kernels(part.table), gpu, alone) / part.seconds, part


def canonical(samples: Samples) -> Samples:
    """Return samples with one name a GPU, that of its YAML, where tables call it by several."""
    names = {name: name if name.endswith((".yaml", ".yml")) else gpus.load(name).name for name in gpus_of(samples)}
    return replace(samples, gpu=np.array([names[name] for name in samples.gpu.tolist()], dtype=np.str_))


def summary(predictor: str, kind: str, gpu: str, ratio: Floats, table: Columns) -> Row:
    """Return the error row of predicted / measured ratios."""
    error, large = np.abs(ratio - 1), table.flop > LARGE
    mean, median, p90 = float(error.mean()), float(np.median(error)), float(np.quantile(error, 0.9))
    big = float(error[large].mean()) if large.any() else float("nan")
    return Row(predictor, kind, gpu, mean, median, p90, big, float(np.median(ratio)), len(error))


def test_samples(data: Data | Path, split: str = "test") -> dict[str, Samples]:
    """Return the measured kernels of each class: FP32 of one split, all of the tensor-core ones, and a user's own.

    Tables that no place holds are left out. Raises DataError when nothing is left.
    """
    own = own_samples(data).items()
    parts: dict[str, list[Samples]] = {(BUSY + name if name in SIMT else name): [samples] for name, samples in own}
    simt = tables.fp32(data, split) if holds(data, FP32) else None
    found = {name: pick(simt, name) for name in SIMT} if simt else {}
    for name, samples in (found | tensor_samples(data) | published(data)).items():
        parts.setdefault(name, []).insert(0, samples)
    filled = {name: merge(part) for name, part in parts.items() if any(map(len, part))}
    if not filled:
        raise DataError(f"{', '.join(map(str, places(data)))}: no measured kernel of a class that is learned")
    return filled


def tensor_samples(data: Data | Path) -> dict[str, Samples]:
    """Return the measured kernels of the tensor-core classes, as far as a place has their tables."""
    found: dict[str, Samples] = {}
    for table, kind in ((GEMM, "linear"), (ATTENTION, "flash_attention"), (EXPERTS, "grouped_gemm")):
        if holds(data, table):
            samples = _tensor_table(data, table)
            found |= {name: pick(samples, name) for name in (*TENSOR, *GROUPED) if name.endswith(f"/{kind}")}
    return {name: samples for name, samples in found.items() if len(samples)}


def _tensor_table(data: Data | Path, table: str) -> Samples:
    if table == GEMM:
        return training_shapes(tables.gemm(data))
    return tables.attention(data) if table == ATTENTION else tables.experts(data)


def own_samples(data: Data | Path) -> dict[str, Samples]:
    """Return a user's own measured kernels by class, of GEMMs those of training shapes. Raises DataError."""
    files = measured(own_files(data))
    if not files:
        return {}
    samples = merge(files)
    picked = {name: pick(samples, name) for name in dict.fromkeys(route(samples.table).tolist())}
    return {name: training_shapes(s) if name in TENSOR and name.endswith("linear") else s for name, s in picked.items()}


def training_shapes(samples: Samples, least: int = 128) -> Samples:
    """Return the GEMMs whose three sides are at least `least`: those of training, not of decoding a token at a time."""
    table = samples.table
    return samples.select((table.m >= least) & (table.n >= least) & (table.k >= least))
