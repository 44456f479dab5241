"""Forecasts of GEMMs: one model for all GPUs, and a speed and network for each measured GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.hardware import gpus
from clustersim.hardware.constants import BYTES
from clustersim.predictors.features import Columns
from clustersim.predictors.kinds.neusight import gemm
from clustersim.predictors.kinds.neusight.measured import interpolated
from clustersim.predictors.mlp import Parameters
from clustersim.predictors.sums import WIDTH

REACH: Annotated[float, Declared("log", "not recorded; products of 7 GPUs: 4.9, 4.7, 4.6 %")] = 0.5
"""Largest change of log(seconds) that a measured GPU's table may apply to a forecast."""
CHUNK = 1024
"""Number of kernels forecast together, so that the grid of their candidates fits into the CPU cache."""
ALIKE, LIKE = ("fp16", "tf32"), "bf16"
"""Data types ALIKE run on tensor cores at the rate of LIKE, the type in tables."""


def forecast(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool = False) -> Floats:
    """Return the seconds of GEMMs of one class: the model for all GPUs times the correction by a measured GPU's table.

    With `alone`, the forecast is for a kernel timed as in a table: heated by its own length only, and including the cast of an
    fp8 input. Otherwise it is for a busy stream at boost clocks.
    """
    result = np.empty(len(table))
    for rows in parts(table):
        part = table.select(rows)
        busy, cast = shared(parameters, part, gpu, alone)
        cool = shared(parameters, part, gpu, alone=False)[0] if alone else busy
        result[rows] = busy * np.exp(_own(parameters, part, gpu, cool)) + cast
    return result


def parts(table: Columns) -> Iterator[NDArray[np.intp]]:
    """Yield the row indices of each kind and data type, at most CHUNK at a time."""
    for rows in map(np.flatnonzero, gemm.same_type(table)):
        yield from (rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK))


def shared(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool) -> tuple[Floats, Floats]:
    """Return (seconds of GEMMs of one kind and data type by the model for all GPUs, seconds of the cast of their inputs)."""
    rows = gemm.uniform(table, gpu) | {"speed": speed(parameters, gpu, str(table.dtype[0]))}
    if not alone:
        rows["heat"] = 0 * rows["heat"]
    busy: Floats = np.exp(gemm.log_seconds(np, parameters, rows)[0])
    cast = alone and "gemm.quantize" in parameters
    return busy, gemm.quantize(np, parameters, rows)[0] if cast else np.zeros(len(table))


def speed(parameters: Parameters, gpu: Gpu, dtype: str) -> Floats:
    """Return the log speed of a GPU's matrix units, (1, 1): measured, that of a similar GPU, or the mean of all GPUs."""
    types = _types(gpu, dtype)
    own = (f"speed.{board.name}.{name}" for board in similar_gpus(gpu) for name in types)
    typical = (f"level.{name}" for name in types)
    found: Floats = next(parameters[name] for name in (*own, *typical, "gemm.level") if name in parameters)
    return found


def similar_gpus(gpu: Gpu) -> Iterator[Gpu]:
    """Yield a GPU, the GPU named by its `like`, that GPU's `like`, and so on. Raises UnknownNameError for an unknown name."""
    met: set[str] = set()
    while gpu.name not in met:
        met.add(gpu.name)
        yield gpu
        gpu = gpus.load(gpu.like) if gpu.like else gpu


def _types(gpu: Gpu, dtype: str) -> tuple[str, ...]:
    """Return the data types whose measurements apply to `dtype`: itself, the type that runs at the same rate, one as wide."""
    runs = gpu.matrix_type(dtype)
    return (dtype, runs, LIKE) if runs in ALIKE else (dtype, runs)


def _own(parameters: Parameters, table: Columns, gpu: Gpu, busy: Floats) -> Floats:
    """Return the correction of log(seconds) of GEMMs of one kind and data type from a GPU's measured table; zeros without a
    table.

    `busy` is the GEMMs' seconds in a job by the model for all GPUs, which relates other GEMMs and boards to the measured ones.
    """
    dtype = str(table.dtype[0])
    prefix, board = _measured(parameters, gpu, dtype) if table.kind[0] == "linear" else ("", gpu)
    if not prefix:
        return np.zeros(len(table))
    plain = standard(table)
    if board != gpu or (plain.bytes != table.bytes).any() or (table.op == "wgrad").any():
        known = {**parameters, f"speed.{board.name}.{dtype}": parameters[f"{prefix}speed"]}
        busy = shared(known, plain, board, alone=False)[0]
    result: Floats = np.clip(interpolated(parameters[f"{prefix}table"], table) - np.log(busy), -REACH, REACH)
    return result


def standard(table: Columns) -> Columns:
    """Return GEMMs as tables measure them: forward, with operands that need no cast and an output of 16 bits."""
    read, output = table.size * table.k * (table.m + table.n), np.maximum(table.size, WIDTH) * table.m * table.n
    return replace(table, op=np.full(len(table), "forward"), bytes=table.batch * (read + output))


@cache
def _shipped(name: str) -> Gpu | None:
    """Return the shipped GPU of that name; None if there is none."""
    return gpus.load(name) if name in gpus.names() else None


def _measured(parameters: Parameters, gpu: Gpu, dtype: str) -> tuple[str, Gpu]:
    """Return the prefix of a measured table's names and its board, for this or a similar GPU and a type as wide; else ("",
    gpu)."""
    types = [name for name in _types(gpu, dtype) if BYTES[name] == BYTES[dtype]]
    known = ((board, f"own.{board.name}.{name}.") for board in similar_gpus(gpu) for name in types)
    found = ((prefix, _shipped(board.name) or board) for board, prefix in known if f"{prefix}table" in parameters)
    return next(found, ("", gpu))
