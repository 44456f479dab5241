"""Matrix products: tiles fetched and multiplied in waves.

    step    = mma + load              seconds per step and tile; the larger of the two where loads are asynchronous
    tile    = step · k/s + finish · (1 + e·s for s > 1 splits) + latency
    compute = least over tiles and splits of waves · tile (+ a reduction kernel for s > 1)
    memory  = bytes / (mu · bandwidth), less what the L2 keeps
    seconds = start + (compute^p + memory^p)^(1/p) · heat

mma = 2·tm·tn / (share_in_tile · peak / SMs); load = bytes of the operands / (path · clock), path in bytes a clock and SM (64 on
every GPU since Volta); finish = epilogue · mma on tensor cores, the store of the tile on SIMT units. `heat` = 1 + a·t/(t + tau):
a kernel of milliseconds in a table is slowed by the power controller, in proportion to `table_slowdown`; in a job it is not, see
clocks.py. The constants are the same for all GPUs and are learned; each is bound to a physical guess (`GUESS`). Rates enter
through mma, load and memory only and every step is monotone in them. After NeuSight (Lee et al., ASPLOS 2025): tiles, waves and
a utilization learned under the roofline, here of few constants that carry over to a GPU not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.predictors.features import Columns, Flags, peak
from clustersim.predictors.kinds.neusight.attainable import share_in_tile, table_slowdown
from clustersim.predictors.kinds.neusight.cores import cores
from clustersim.predictors.mlp import Parameters

SPLITS = (1, 2, 4)
"""Numbers of parts into which the reduction over k may be split."""
LEAST: Annotated[int, Declared("steps", "not recorded; products of 17 GPUs: 5.7, 5.7, 5.7 %")] = 256
"""Smallest number of steps in a part of a split reduction."""
CANDIDATES = 81
"""Largest number of candidates of an architecture: tiles times splits."""
WGRAD: Annotated[float, Declared(chosen_on="MooreThreads/SimuMax, configs/system")] = 1.05
"""Time of a weight-gradient GEMM that adds to fp32 gradients, relative to a forward GEMM with the same bytes: 4 % more on A100
(MooreThreads/SimuMax, configs/system), 3 % more than plain ones on two H100 (docs/measured/h100). Not used on Blackwell, where
sums alone take longer (predictors/sums.py)."""
CLOCK = 1.9e9
"""Clock in Hz at which the learned start of a kernel is given."""
OVERLAP: Annotated[tuple[float, float], Declared(chosen_on="not recorded; products of 17 GPUs: 6.3, 6.1, 6.2 %")] = (
    6.0,
    1.6,
)
"""Exponents that combine mma and load: nearly the larger of the two where loads are asynchronous, nearly their sum elsewhere."""

GUESS: dict[str, dict[str, tuple[float, float]]] = {
    "tensor": {
        "path": (np.log(75.0), 0.3),
        "epilogue": (np.log(140.0), 0.3),
        "split": (np.log(0.2), 0.5),
        "latency": (np.log(300.0), 0.7),
        "reduce": (np.log(2.5e-6), 0.3),
        "start": (np.log(2.4e-6), 0.2),
        "mu": (2.0, 0.7),
        "cached": (np.log(0.4), 0.7),
        "p": (np.log(3.0), 0.2),
        "heat": (np.log(0.25), 0.3),
        "tau": (np.log(1.2e-3), 0.5),
        "quantize": (np.log(6e-6), 0.5),
        "scale": (np.log(1.5), 0.5),
    },
    "simt": {
        "path": (np.log(47.0), 0.3),
        "store": (np.log(40.0), 0.5),
        "split": (np.log(0.2), 0.5),
        "latency": (np.log(300.0), 0.7),
        "reduce": (np.log(4e-6), 0.3),
        "mu": (1.5, 0.5),
        "cached": (np.log(0.5), 0.5),
        "p": (np.log(2.2), 0.1),
    },
}
"""Prior mean and standard deviation of each constant: of its logarithm, or for `mu` of its value before the sigmoid."""


def units(dtype: str) -> str:
    """Return the units that run GEMMs of a data type, a key of `GUESS`: `simt` or `tensor`."""
    return "simt" if dtype in ("fp32", "fp64") else "tensor"


def start(members: int, guess: str) -> dict[str, Floats]:
    """Return {parameter: prior mean, an array (member, 1)} as initial parameters.

    members: number of sets of parameters. guess: key of `GUESS`, `simt` or `tensor`.
    """
    return {f"gemm.{name}": np.full((members, 1), mean) for name, (mean, _) in GUESS[guess].items()}


def prior(guess: str) -> dict[str, tuple[float, float]]:
    """Return the prior {parameter: (mean, standard deviation)} of `GUESS[guess]`. guess: `simt` or `tensor`."""
    return {f"gemm.{name}": value for name, value in GUESS[guess].items()}


def terms(table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return the arguments of `log_seconds` for GEMMs of one class, which may have several kinds and data types. Arrays are
    (kernel,), or (kernel, CANDIDATES) for each tile and split; architectures with fewer candidates repeat them."""
    result: dict[str, Floats] = {}
    for rows in same_type(table):
        for name, value in uniform(table.select(rows), gpu).items():
            candidates = value if value.ndim == 1 else value[:, np.arange(CANDIDATES) % value.shape[1]]
            result.setdefault(name, np.zeros((len(table), *candidates.shape[1:])))[rows] = candidates
    return result


def same_type(table: Columns) -> Iterator[Flags]:
    """Yield, for each kind and data type in the table, a mask of its rows (kernels,)."""
    for kind, dtype in dict.fromkeys(zip(table.kind.tolist(), table.dtype.tolist(), strict=True)):
        yield (table.kind == kind) & (table.dtype == dtype)


def uniform(table: Columns, gpu: Gpu) -> dict[str, Floats]:
    """Return the arguments of `log_seconds` for GEMMs of one kind and data type.

    Arrays are (kernel,), or (kernel, candidate) as in `_grid`; (1,) and (1, candidate) where all kernels have the same value.
    `flop`: seconds per multiply-add on one SM. `fetch`: bytes of an element · seconds per clock. `clock`: seconds per clock.
    `asynchronous`, `narrow`: 1 or 0. `exposed`: share of the epilogue. `size`: bytes per element. `memory`: seconds of bytes at
    the bandwidth. `kept`: L2 over the bytes. `heat`: `table_slowdown`, 0 on SIMT units. `ramp`: CLOCK over the clock. `cast`:
    seconds of the cast of the input.
    """
    dtype = str(table.dtype[0])
    matrix_units, size = cores(gpu, dtype, str(table.kind[0])), table.size[:1]
    rate = peak(table, gpu)[:1] / gpu.sms * share_in_tile(gpu, dtype)
    slower = (table.op == "wgrad") & (units(dtype) == "tensor") & (not gpu.architecture.startswith("blackwell"))
    return _grid(table, gpu.sms, matrix_units.tiles, matrix_units.asynchronous) | {
        "flop": 2 / rate * np.where(slower, WGRAD, 1.0),
        "fetch": size / gpu.clock,
        "clock": np.array([1 / gpu.clock]),
        "asynchronous": np.array([float(matrix_units.asynchronous)]),
        "exposed": np.array([matrix_units.exposed]),
        "size": size,
        "memory": table.bytes / gpu.memory_bandwidth,
        "kept": gpu.l2 / table.bytes,
        "heat": np.array([table_slowdown(gpu, dtype) if units(dtype) == "tensor" else 0.0]),
        "ramp": np.array([CLOCK / gpu.clock]),
        "narrow": (size < 2).astype(float),
        "cast": (2 + size) * table.batch * table.m * table.k / gpu.memory_bandwidth,
    }


def _grid(table: Columns, sms: int, tiles: tuple[tuple[int, int], ...], asynchronous: bool) -> dict[str, Floats]:
    """Return arguments of `log_seconds` for each tile and split as a candidate, (kernel, candidate) or (1, candidate).

    `area`: elements of the tile. `loaded`: elements of operands per step and tile. `steps`: steps of the reduction in one part.
    `splits`: number of parts. `waves`: waves of all tiles and parts. A part has at least LEAST steps, real or not, so that a
    longer reduction never takes less time.
    """
    rows, columns, splits = np.array([(*tile, s) for s in SPLITS for tile in tiles], dtype=float).T
    loaded = rows + columns - (np.maximum(rows, columns) / 2 if asynchronous else 0)
    batch, m, n, k = (side[:, None] for side in (table.batch, table.m, table.n, table.k))
    blocks = batch * np.ceil(m / rows) * np.ceil(n / columns)
    return {
        "area": (rows * columns)[None],
        "loaded": loaded[None],
        "steps": np.where(splits > 1, np.maximum(k / splits, LEAST), k),
        "splits": splits[None],
        "waves": np.ceil(blocks * splits / sms),
    }


def log_seconds(xp: Any, parameters: Parameters, rows: Mapping[str, Any]) -> Any:
    """Return log(seconds) of each kernel by each set of parameters, (member, kernel), launch excluded.

    xp: numpy or torch. rows: result of `terms` or `uniform`. `speed` in `rows`, a logarithm, scales the rate of the matrix units.
    On tensor cores the learned start of a kernel is included.
    """
    compute, memory = _compute(xp, parameters, rows), _memory(xp, parameters, rows)
    p = xp.exp(parameters["gemm.p"])
    largest = xp.maximum(compute, memory)
    busy = largest * ((compute / largest) ** p + (memory / largest) ** p) ** (1 / p)
    if "gemm.heat" in parameters:
        warm = busy / (busy + xp.exp(parameters["gemm.tau"]))
        busy = busy * (1 + xp.exp(parameters["gemm.heat"]) * rows["heat"] * warm)
        busy = busy + xp.exp(parameters["gemm.start"]) * rows["ramp"]
    return xp.log(busy)


def quantize(xp: Any, parameters: Parameters, rows: Mapping[str, Any]) -> Any:
    """Return the seconds that fp8 and fp4 rows of a table spend on the cast of their input from 16 bits, (member, kernel).

    It is 0 for wider types. Arguments are as in `log_seconds`.
    """
    return rows["narrow"] * (xp.exp(parameters["gemm.quantize"]) + xp.exp(parameters["gemm.scale"]) * rows["cast"])


def _compute(xp: Any, parameters: Parameters, rows: Mapping[str, Any]) -> Any:
    """Return the seconds of loads and matrix operations of the fastest candidate, (member, kernel). Arguments are as in
    `log_seconds`."""
    constant = {name: xp.exp(parameters[f"gemm.{name}"])[..., None] for name in ("path", "split", "latency", "reduce")}
    field = {name: rows[name][..., None] for name in ("flop", "fetch", "clock", "asynchronous")}
    mma = rows["area"] * field["flop"] / (xp.exp(rows["speed"])[..., None] if "speed" in rows else 1.0)
    load = rows["loaded"] * field["fetch"] / constant["path"]
    largest = xp.maximum(mma, load)
    overlapped, in_sequence = (largest * ((mma / largest) ** p + (load / largest) ** p) ** (1 / p) for p in OVERLAP)
    step = field["asynchronous"] * overlapped + (1 - field["asynchronous"]) * in_sequence
    is_split = rows["splits"] > 1
    finish = _finish(xp, parameters, rows, mma) * (1 + is_split * constant["split"] * rows["splits"])
    wave = step * rows["steps"] + finish + constant["latency"] * field["clock"]
    return xp.amin(rows["waves"] * wave + is_split * constant["reduce"], -1)


def _finish(xp: Any, parameters: Parameters, rows: Mapping[str, Any], mma: Any) -> Any:
    """Return the seconds of a tile before its first and after its last step, (member, kernel, candidate).

    On tensor cores it is in units of reduction steps, because pipelines fill and drain with them; on SIMT units it is the store
    of the tile. mma: seconds of the matrix operations of one step and tile.
    """
    if "gemm.epilogue" in parameters:
        return xp.exp(parameters["gemm.epilogue"])[..., None] * rows["exposed"][..., None] * mma
    clocks = rows["area"] * rows["size"][..., None] / xp.exp(parameters["gemm.store"])[..., None]
    return clocks * rows["clock"][..., None]


def _memory(xp: Any, parameters: Parameters, rows: Mapping[str, Any]) -> Any:
    """Return the seconds in which memory moves the bytes of each kernel that L2 does not keep, (member, kernel)."""
    share = 1 / (1 + xp.exp(-parameters["gemm.mu"]))
    kept = xp.exp(parameters["gemm.cached"]) * rows["kept"]
    return rows["memory"] / share / (1 + kept**2)
