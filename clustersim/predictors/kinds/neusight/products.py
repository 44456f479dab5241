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
SAME_RATE, TABLE_TYPE = ("fp16", "tf32"), "bf16"
"""Data types that run on tensor cores at the rate of TABLE_TYPE, and the 16-bit type in tables."""


def forecast(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool = False) -> Floats:
    """Return the seconds of GEMMs of one class (kernels,): the model for all GPUs times the correction by a GPU's own table.

    alone: whether each kernel is timed as in a table: heated by its own length only, and including the cast of an fp8 input.
    Otherwise it is in a busy stream at boost clocks.
    """
    result = np.empty(len(table))
    for rows in parts(table):
        part = table.select(rows)
        busy, cast = shared(parameters, part, gpu, alone)
        cool = shared(parameters, part, gpu, alone=False)[0] if alone else busy
        result[rows] = busy * np.exp(_correction(parameters, part, gpu, cool)) + cast
    return result


def parts(table: Columns) -> Iterator[NDArray[np.intp]]:
    """Yield the row indices of kernels of one kind and data type, at most CHUNK at a time."""
    for rows in map(np.flatnonzero, gemm.same_type(table)):
        yield from (rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK))


def shared(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool) -> tuple[Floats, Floats]:
    """Return (seconds of GEMMs by the model for all GPUs, seconds of the cast of their inputs), (kernels,) each.

    The kernels have one kind and data type. alone: as in `forecast`; if false, kernels are not slowed by heat and have no cast.
    """
    rows = gemm.uniform(table, gpu) | {"speed": speed(parameters, gpu, str(table.dtype[0]))}
    if not alone:
        rows["heat"] = 0 * rows["heat"]
    busy: Floats = np.exp(gemm.log_seconds(np, parameters, rows)[0])
    cast = alone and "gemm.quantize" in parameters
    return busy, gemm.quantize(np, parameters, rows)[0] if cast else np.zeros(len(table))


def speed(parameters: Parameters, gpu: Gpu, dtype: str) -> Floats:
    """Return the logarithm of a correction of the rate of a GPU's matrix units, (1, 1). It is measured on this GPU, on a similar
    one, or the mean over all GPUs."""
    types = _types(gpu, dtype)
    measured = (f"speed.{board.name}.{name}" for board in similar_gpus(gpu) for name in types)
    typical = (f"level.{name}" for name in types)
    log_speed: Floats = next(parameters[name] for name in (*measured, *typical, "gemm.level") if name in parameters)
    return log_speed


def similar_gpus(gpu: Gpu) -> Iterator[Gpu]:
    """Yield a GPU, the GPU that its `like` names, that GPU's `like`, and so on. Raises UnknownNameError for an unknown name."""
    visited: set[str] = set()
    while gpu.name not in visited:
        visited.add(gpu.name)
        yield gpu
        gpu = gpus.load(gpu.like) if gpu.like else gpu


def _types(gpu: Gpu, dtype: str) -> tuple[str, ...]:
    """Return the types whose measurements apply to `dtype`: itself, that as which the GPU runs it, and one at the same rate."""
    runs = gpu.matrix_type(dtype)
    return (dtype, runs, TABLE_TYPE) if runs in SAME_RATE else (dtype, runs)


def _correction(parameters: Parameters, table: Columns, gpu: Gpu, busy: Floats) -> Floats:
    """Return the correction of log(seconds) of GEMMs by a GPU's own measured table (kernels,); zeros without a table.

    The kernels have one kind and data type. busy: their seconds in a job by the model for all GPUs, which relates other GEMMs and
    boards to the measured ones.
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
    """Return GEMMs as tables measure them: forward, without a cast of inputs, with at least 16 bits per output element."""
    read, output = table.size * table.k * (table.m + table.n), np.maximum(table.size, WIDTH) * table.m * table.n
    return replace(table, op=np.full(len(table), "forward"), bytes=table.batch * (read + output))


@cache
def _shipped(name: str) -> Gpu | None:
    """Return the shipped GPU of that name; None if there is none."""
    return gpus.load(name) if name in gpus.names() else None


def _measured(parameters: Parameters, gpu: Gpu, dtype: str) -> tuple[str, Gpu]:
    """Return (prefix of the names of a measured table's parameters, GPU on which it was measured).

    The table is of this or a similar GPU and of `dtype` or a type as wide. Return ("", gpu) if there is none.
    """
    types = [name for name in _types(gpu, dtype) if BYTES[name] == BYTES[dtype]]
    known = ((board, f"own.{board.name}.{name}.") for board in similar_gpus(gpu) for name in types)
    tables = ((prefix, _shipped(board.name) or board) for board, prefix in known if f"{prefix}table" in parameters)
    return next(tables, ("", gpu))
