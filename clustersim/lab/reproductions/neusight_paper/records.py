"""The rows that the published predictor learned from, with the tile of each kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.errors import DataError
from clustersim.hardware import gpus
from clustersim.lab.data import sources, tables
from clustersim.lab.data.samples import Samples, gpus_of
from clustersim.lab.data.sources import Data
from clustersim.predictors.features import Flags
from clustersim.predictors.kinds.neusight_paper.board import board
from clustersim.predictors.kinds.neusight_paper.predictor import PRODUCTS
from clustersim.predictors.kinds.neusight_paper.terms import Terms, TiledKernel, product, terms, vector
from clustersim.predictors.kinds.neusight_paper.tiles import Tiles, shapes

if TYPE_CHECKING:
    import polars as pl

GROUPS = {
    "fp32/linear": "linear",
    "fp32/bmm": "bmm",
    "fp32/elementwise": "elem",
    "fp32/softmax": "softmax",
    "fp32/layernorm": "ln",
}
"""What tables call each class."""


class KernelRecords(NamedTuple):
    """Measured kernels of one class and the sides of their tiles (kernel; rows, columns), None for vector kernels."""

    samples: Samples
    sides: Floats | None


def records(data: Data | Path, name: str) -> KernelRecords:
    """Return the training rows of a class, P4's linear layers included, as published. Raises DataError."""
    import polars as pl

    frame = tables.read(data, sources.FP32, ("kernel",)).filter(
        (pl.col("vendor") == "nvidia") & (pl.col("split") == "train") & (pl.col("group") == GROUPS[name])
    )
    frame = frame.filter(pl.col("latency_s") > 0)
    if not len(frame):
        raise DataError(f"{_where(data)}: no measured kernels of {name}; the split `train` must hold all classes")
    return KernelRecords(tables.fp32_samples(frame), _sides(data, frame) if name in PRODUCTS else None)


def _where(data: Data | Path) -> str:
    return ", ".join(str(place) for place in sources.places(data))


def _sides(data: Data | Path, frame: pl.DataFrame) -> Floats:
    """Return rows and columns of the tiles that kernels such as `ampere_sgemm_128x64_tn` (columns × rows) name."""
    import polars as pl

    pattern = r"(?i)(?:sgemm_|tilesize)(\d+)x(\d+)"
    sides = [frame["kernel"].str.extract(pattern, group).cast(pl.Float64) for group in (2, 1)]
    unnamed = frame.filter(sides[0].is_null())
    if len(unnamed):
        raise DataError(f"{_where(data)}: kernel {unnamed['kernel'][0]!r} names no tile (`sgemm_128x64`)")
    return np.stack([np.array(side) for side in sides], axis=1)


def described(found: KernelRecords) -> Terms:
    """Return the terms of all kernels, each on the GPU that measured it."""
    cut = product(found.samples.table, found.sides) if found.sides is not None else vector(found.samples.table)
    count = len(found.samples)
    result = Terms(np.empty(count), np.empty(count), np.empty((count, 4)))
    for gpu, rows in _boards(found.samples):
        for whole, part in zip(
            result, terms(TiledKernel(*(x[rows] for x in cut)), board(gpu, _matrix(found))), strict=True
        ):
            whole[rows] = part
    return result


def profiled(found: KernelRecords) -> Tiles:
    """Return products as the table that tiles are looked up in."""
    owner, boards = np.empty(len(found.samples)), []
    for index, (gpu, rows) in enumerate(_boards(found.samples)):
        owner[rows] = index
        boards.append(board(gpu, matrix=True))
    sides = found.sides if found.sides is not None else np.empty((0, 2))
    return Tiles(shapes(found.samples.table), sides, owner, np.array(boards))


def _matrix(found: KernelRecords) -> bool:
    return found.sides is not None


def _boards(samples: Samples) -> Iterator[tuple[Gpu, Flags]]:
    for name, rows in gpus_of(samples).items():
        yield gpus.load(name), rows
