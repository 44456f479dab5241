"""Grouped products of a mixture of experts: the tiles of all experts run in common waves, each expert's weights are read once.

    product = ((waves · tile / (alpha · attainable rate of an SM))^3 + (bytes / (mu · bandwidth))^3)^(1/3)
    tile    = 2 · (rows · columns + edge · (rows + columns)) · (k + start)          FLOP
    seconds = sum of products + bytes of the vector kernels between them / (mu · bandwidth)

The tile is that with the least work among those that libraries ship. Experts with few rows waste the padding of their last
tile. alpha, mu and start are learned from whole layers of experts (op `layer`: permute, gate and up, activation, down, unpermute,
and a fixed part that forecasts of jobs leave out). The kernels of a job are single GEMMs.
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
"""Initial learned constants: logarithms, or values before the sigmoid for alpha and mu."""
CLASSES = ("half/grouped_gemm", "narrow/grouped_gemm")
"""Classes of kernels that this module forecasts."""
KEYS = tuple(f"group.{name}" for name in START)
"""Names of the learned parameters of a class."""
CLOCK = 2e9
"""Clock in Hz at which the learned part around a layer is given."""


class Product(NamedTuple):
    """Grouped GEMMs of m×k by k×n for each expert, with one entry per kernel."""

    experts: Floats
    """Number of experts."""
    m: Floats
    """Rows per expert."""
    n: Floats
    """Columns of the output."""
    k: Floats
    """Steps of the reduction."""
    bytes: Floats
    """Bytes that the GEMMs of all experts move in memory."""


def products(table: Columns) -> tuple[Product, Product, Floats]:
    """Return the first GEMM of each kernel, the second, and the bytes of vector kernels between them.

    A single GEMM has a second one and vector kernels of 0 bytes. In a layer, n is the width of an expert on this rank and k the
    hidden size; gate and up are one GEMM with 2·n columns.
    """
    layer = table.op == "layer"
    experts, rows, width, hidden, size = table.batch, table.m, table.n, table.k, table.size
    first_bytes = experts * ((rows * hidden + 2 * hidden * width) * size + 2 * rows * width * 2)
    second_bytes = experts * ((rows * width + hidden * width) * size + rows * hidden * 2)
    columns = np.where(layer, 2, 1) * width
    first_gemm = Product(experts, rows, columns, hidden, np.where(layer, first_bytes, table.bytes))
    second_gemm = Product(experts, rows, hidden, width, np.where(layer, second_bytes, 0.0))
    between = np.where(layer, experts * rows * (4 * hidden + 2 * width), 0.0)
    return first_gemm, second_gemm, between


def terms(table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return the arguments of `log_seconds` for grouped GEMMs of one class, one entry per kernel.

    `one.` and `two.` are prefixes for the two GEMMs of a layer; the second is 0 for single GEMMs. `plain`: seconds of the padded
    tiles at the peak. `start`: seconds of one step of the reduction. `memory`: seconds of bytes at the bandwidth. Without a
    prefix: `between`, seconds of the bytes between the GEMMs; `around`, 2 GHz over the clock for layers, else 0; `limit`,
    attainable share.
    """
    first_gemm, second_gemm, between = products(table)
    layer = table.op == "layer"
    rate = peak(table, gpu) / gpu.sms
    first_tiles, second_tiles = cut(first_gemm, gpu.sms), cut(second_gemm, gpu.sms)
    attainable = spread(table.dtype, lambda dtype: attainable_share(gpu, dtype))
    return {
        **_seconds("one", first_tiles, first_gemm, rate, gpu, np.ones(len(table), dtype=bool)),
        **_seconds("two", second_tiles, second_gemm, rate, gpu, layer),
        "between": between / gpu.memory_bandwidth,
        "around": np.where(layer, CLOCK / gpu.clock, 0.0),
        "limit": attainable,
    }


class ExpertTiles(NamedTuple):
    """Tile of each grouped GEMM, with one entry per kernel."""

    rows: Floats
    """Rows of the tile."""
    columns: Floats
    """Columns of the tile."""
    waves: Floats
    """Number of waves in which the SMs run the tiles of all experts."""


EDGE: Annotated[float, Declared("columns", "not recorded; experts of 6 GPUs: 15.8, 15.9, 16 %")] = 8.0
"""Operand columns loaded per step of a tile, in its choice and in its time, so that more rows never take less time."""


def cut(product: Product, sms: int) -> ExpertTiles:
    """Return the tile with the least work for each GEMM on `sms` SMs; of two with equal work, the first in TILES."""
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
    """Return the arguments `plain`, `start` and `memory` of `terms` for one GEMM of each kernel.

    name: their prefix, `one` or `two`. rate: peak of one SM in FLOP/s. real: mask of the kernels that have this GEMM, others get
    0.
    """
    cost = tile.rows * tile.columns + EDGE * (tile.rows + tile.columns)
    step = np.where(real, 2 * tile.waves * cost / rate, 0.0)
    return {
        f"{name}.plain": step * product.k,
        f"{name}.start": step,
        f"{name}.memory": np.where(real, product.bytes, 0.0) / gpu.memory_bandwidth,
    }


def start(members: int) -> dict[str, Floats]:
    """Return initial parameters, (member, 1) each: alpha 0.88, mu 0.79, 122 steps of start, 15 us around a layer."""
    return {f"group.{name}": np.full((members, 1), value) for name, value in START.items()}


def log_seconds(xp: Any, parameters: Parameters, rows: Parameters) -> Any:
    """Return log(seconds) of each kernel by each member of the ensemble, (member, kernel), launch excluded.

    xp: numpy or torch. rows: result of `terms`.
    """
    mu = sigmoid(xp, parameters["group.mu"])
    around = rows["around"] * 1e-6 * xp.exp(parameters["group.around"])
    total = _product(xp, parameters, rows, "one", mu) + _product(xp, parameters, rows, "two", mu)
    return xp.log(total + rows["between"] * xp.exp(-parameters["group.vector"]) + around)


def _product(xp: Any, parameters: Parameters, rows: Parameters, name: str, mu: Any) -> Any:
    """Return the seconds of the GEMM with prefix `name` of each kernel, (member, kernel); about 0 if it has none.

    mu: share of the memory bandwidth that is reached.
    """
    work = rows[f"{name}.plain"] + rows[f"{name}.start"] * xp.exp(parameters["group.start"])
    compute = work / rows["limit"] / sigmoid(xp, parameters["group.alpha"])
    memory = rows[f"{name}.memory"] / mu
    largest = xp.maximum(compute, memory) + 1e-12
    return largest * ((compute / largest) ** P + (memory / largest) ** P) ** (1 / P)
