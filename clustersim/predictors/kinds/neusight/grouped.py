"""Grouped products of a mixture of experts: the tiles of all experts run in common waves, each expert's weights are read once.

    product = ((waves · tile / (alpha · attainable rate of an SM))^3 + (bytes / (mu · bandwidth))^3)^(1/3)
    tile    = 2 · (rows · columns + edge · (rows + columns)) · (k + start)          FLOP
    seconds = sum of products + bytes of the vector kernels between them / (mu · bandwidth)

The tile is the one of least work among those that libraries ship. Experts of few rows waste what their last tile pads.
alpha, mu and start are learned from whole layers of experts (op `layer`: permute, gate and up, activation, down,
unpermute, with a fixed part around that is dropped); a job's products are single ones.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.predictors.features import Columns, Flags, peak, spread
from clustersim.predictors.kinds.neusight.attainable import attainable_share
from clustersim.predictors.mlp import Parameters, sigmoid

TILES: Annotated[tuple[tuple[int, int], ...], Declared()] = (
    (64, 128),
    (64, 256),
    (128, 128),
    (128, 256),
    (256, 128),
    (256, 256),
)
"""Tiles (rows, columns) that CUTLASS ships."""
P: Annotated[float, Declared(chosen_on="not recorded; experts of 6 GPUs: 16.2, 15.9, 15.7 %")] = 3.0
"""How sharply the time of work and of memory combine: the exponent of their sum of powers."""
START = {"alpha": 2.0, "mu": 1.3, "vector": -0.2, "start": 4.8, "around": 2.7}
CLASSES = ("half/grouped_gemm", "narrow/grouped_gemm")
KEYS = tuple(f"group.{name}" for name in START)
CLOCK = 2e9


class Product(NamedTuple):
    """Grouped GEMMs as columns: number of experts, m×k by k×n for each, and bytes."""

    experts: Floats
    m: Floats
    n: Floats
    k: Floats
    bytes: Floats


def products(table: Columns) -> tuple[Product, Product, Floats]:
    """Return the two GEMMs of each kernel (the second is empty for a single one), and the bytes of the kernels between them.

    A layer has n = width of an expert on this rank and k = hidden size; gate and up are one GEMM with 2·n columns.
    """
    layer = table.op == "layer"
    experts, rows, width, hidden, size = table.batch, table.m, table.n, table.k, table.size
    first = experts * ((rows * hidden + 2 * hidden * width) * size + 2 * rows * width * 2)
    second = experts * ((rows * width + hidden * width) * size + rows * hidden * 2)
    columns = np.where(layer, 2, 1) * width
    one = Product(experts, rows, columns, hidden, np.where(layer, first, table.bytes))
    two = Product(experts, rows, hidden, width, np.where(layer, second, 0.0))
    between = np.where(layer, experts * rows * (4 * hidden + 2 * width), 0.0)
    return one, two, between


def terms(table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return the arguments of `log_seconds` for grouped GEMMs of one class, one entry per kernel.

    For each of two GEMMs (the second zero if there is one): plain (s of its padded tiles at the peak), start (s of one step of
    the reduction), memory (s); between (s), around (2 GHz over the clock, for layers only), limit.
    """
    one, two, between = products(table)
    layer = table.op == "layer"
    rate = peak(table, gpu) / gpu.sms
    first, second = cut(one, gpu.sms), cut(two, gpu.sms)
    attainable = spread(table.dtype, lambda dtype: attainable_share(gpu, dtype))
    return {
        **_seconds("one", first, one, rate, gpu, np.ones(len(table), dtype=bool)),
        **_seconds("two", second, two, rate, gpu, layer),
        "between": between / gpu.memory_bandwidth,
        "around": np.where(layer, CLOCK / gpu.clock, 0.0),
        "limit": attainable,
    }


class ExpertTiles(NamedTuple):
    """Tile of each GEMM, and waves of the tiles of all experts."""

    rows: Floats
    columns: Floats
    waves: Floats


EDGE: Annotated[float, Declared("columns", "not recorded; experts of 6 GPUs: 15.8, 15.9, 16 %")] = 8.0
"""Operand columns loaded per step of a tile, in its choice and in its time, so that more rows never take less time."""


def cut(product: Product, sms: int) -> ExpertTiles:
    """Return the tile with the least work for each GEMM on `sms` SMs, the smaller one if two are equal, and its waves."""
    best = np.full(len(product.m), np.inf)
    chosen = np.ones((3, len(best)))
    for rows, columns in TILES:
        waves = np.ceil(product.experts * np.ceil(product.m / rows) * np.ceil(product.n / columns) / sms)
        cost = waves * (rows * columns + EDGE * (rows + columns))
        new = np.stack(np.broadcast_arrays(rows, columns, waves)).astype(np.float64)
        chosen = np.where(cost < best, new, chosen)
        best = np.minimum(cost, best)
    return ExpertTiles(*chosen)


def _seconds(name: str, tile: ExpertTiles, product: Product, rate: Floats, gpu: Gpu, real: Flags) -> dict[str, Floats]:
    """Return the inputs plain, start and memory of the GEMM `name` in seconds (see `terms`); zero where it is not `real`."""
    cost = tile.rows * tile.columns + EDGE * (tile.rows + tile.columns)
    step = np.where(real, 2 * tile.waves * cost / rate, 0.0)
    return {
        f"{name}.plain": step * product.k,
        f"{name}.start": step,
        f"{name}.memory": np.where(real, product.bytes, 0.0) / gpu.memory_bandwidth,
    }


def start(members: int) -> dict[str, Floats]:
    """Return initial parameters: alpha 0.88, mu 0.79, 122 steps of start, 15 us around a layer."""
    return {f"group.{name}": np.full((members, 1), value) for name, value in START.items()}


def log_seconds(xp: Any, parameters: Parameters, rows: Parameters) -> Any:
    """Return log(seconds) of each kernel by each member of the ensemble, (member, kernel)."""
    mu = sigmoid(xp, parameters["group.mu"])
    around = rows["around"] * 1e-6 * xp.exp(parameters["group.around"])
    total = _product(xp, parameters, rows, "one", mu) + _product(xp, parameters, rows, "two", mu)
    return xp.log(total + rows["between"] * xp.exp(-parameters["group.vector"]) + around)


def _product(xp: Any, parameters: Parameters, rows: Parameters, name: str, mu: Any) -> Any:
    """Return the seconds of the GEMM `name` of each kernel, (member, kernel); mu: share of the memory bandwidth reached."""
    work = rows[f"{name}.plain"] + rows[f"{name}.start"] * xp.exp(parameters["group.start"])
    compute = work / rows["limit"] / sigmoid(xp, parameters["group.alpha"])
    memory = rows[f"{name}.memory"] / mu
    largest = xp.maximum(compute, memory) + 1e-12
    return largest * ((compute / largest) ** P + (memory / largest) ** P) ** (1 / P)
