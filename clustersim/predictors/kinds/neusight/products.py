"""How matrix products are forecast: one model for all GPUs, and a speed of its own for each that was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.hardware import gpus
from clustersim.hardware.constants import BYTES
from clustersim.predictors.features import Columns
from clustersim.predictors.kinds.neusight import gemm
from clustersim.predictors.mlp import Parameters, forward, standardise

REACH: Annotated[float, Declared("log", "not recorded; products of 7 GPUs: 4.9, 4.7, 4.6 %")] = 0.5
"""The network of a GPU moves a forecast by at most this in log."""
CHUNK = 1024
"""Kernels forecast at a time, so that the grid of their candidates stays in the cache."""
ALIKE, LIKE = ("fp16", "tf32"), "bf16"
"""Types that run on the tensor cores as another does, and that one: tables hold bf16."""


def forecast(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool = False) -> Floats:
    """Return the seconds of products of one class, by the model for all GPUs times what a measured GPU's network adds.

    `alone`: as a table times them, heated by their own length alone and with the cast of an fp8 input; else in a busy stream
    at boost clocks.
    """
    result = np.empty(len(table))
    for rows in parts(table):
        part = table.select(rows)
        busy, cast = shared(parameters, part, gpu, alone)
        result[rows] = busy * np.exp(_own(parameters, part, gpu)) + cast
    return result


def parts(table: Columns) -> Iterator[NDArray[np.intp]]:
    """Yield the rows of each kind and data type, CHUNK at a time."""
    for rows in map(np.flatnonzero, gemm.same_type(table)):
        yield from (rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK))


def shared(parameters: Parameters, table: Columns, gpu: Gpu, alone: bool) -> tuple[Floats, Floats]:
    """Return the seconds of products of one kind and data type by the model for all GPUs, and of the cast beside them."""
    rows = gemm.uniform(table, gpu) | {"speed": speed(parameters, gpu, str(table.dtype[0]))}
    if not alone:
        rows["heat"] = 0 * rows["heat"]
    busy: Floats = np.exp(gemm.log_seconds(np, parameters, rows)[0])
    cast = alone and "gemm.quantize" in parameters
    return busy, gemm.quantize(np, parameters, rows)[0] if cast else np.zeros(len(table))


def speed(parameters: Parameters, gpu: Gpu, dtype: str) -> Floats:
    """Return the log speed of a GPU's matrix units, (1, 1): its own or that of a GPU like it, else that of a typical one."""
    types = _types(gpu, dtype)
    own = (f"speed.{board.name}.{name}" for board in similar_gpus(gpu) for name in types)
    typical = (f"level.{name}" for name in types)
    found: Floats = next(parameters[name] for name in (*own, *typical, "gemm.level") if name in parameters)
    return found


def similar_gpus(gpu: Gpu) -> Iterator[Gpu]:
    """Yield a GPU, the one that it is `like`, the one that this is like, and so on. Raises UnknownNameError."""
    met: set[str] = set()
    while gpu.name not in met:
        met.add(gpu.name)
        yield gpu
        gpu = gpus.load(gpu.like) if gpu.like else gpu


def _types(gpu: Gpu, dtype: str) -> tuple[str, ...]:
    """Return the types whose measurements speak for products of `dtype`: itself, that as which it runs, one as wide."""
    runs = gpu.matrix_type(dtype)
    return (dtype, runs, LIKE) if runs in ALIKE else (dtype, runs)


def _own(parameters: Parameters, table: Columns, gpu: Gpu) -> Floats:
    """Return the correction of log(seconds) by a GPU's network for one kind and data type; zero where it was not measured."""
    net = _net(parameters, gpu, str(table.dtype[0])) if table.kind[0] == "linear" else {}
    if not net:
        return np.zeros(len(table))
    features = standardise(parameters, gemm.features(table, gpu.sms))
    result: Floats = bounded(np, forward(np, net, features)[0, :, 0])
    return result


def _net(parameters: Parameters, gpu: Gpu, dtype: str) -> Parameters:
    """Return the network of a GPU and data type, or of a type as wide, or of a GPU like it; else nothing."""
    types = [name for name in _types(gpu, dtype) if BYTES[name] == BYTES[dtype]]
    prefixes = [f"own.{board.name}.{name}." for board in similar_gpus(gpu) for name in types]
    known = next((one for one in prefixes if f"{one}mlp.0.weight" in parameters), None)
    return (
        {}
        if known is None
        else {name.removeprefix(known): value for name, value in parameters.items() if name.startswith(known)}
    )


def bounded(xp: Any, value: Any) -> Any:
    """Return a network's correction of log(seconds), within REACH."""
    return REACH * xp.tanh(value / REACH)
