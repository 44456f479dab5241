"""A user's own measured kernels: one row a kernel, in a CSV or parquet file (docs/measurements.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.errors import DataError
from clustersim.hardware import gpus
from clustersim.hardware.constants import BYTES
from clustersim.lab.data.csv_table import CsvTable, open_table
from clustersim.lab.data.samples import Samples, gpus_of
from clustersim.model.kernel import VECTOR, Kernel, attention, gemm, vector
from clustersim.predictors.features import MATRIX, bound, columns

REQUIRED = ("gpu", "kind", "op", "dtype", "m", "n", "latency_s")
COLUMNS = (
    *("gpu", "kind", "op", "dtype", "layout", "batch", "m", "n", "k", "heads", "kv_heads", "causal"),
    *("flop", "bytes", "latency_s", "low_s", "high_s", "samples", "clock_mhz", "power_w", "mode"),
    *("torch", "cuda", "note"),
)
"""All columns, in the order in which `clustersim lab profile` writes them."""

OPS = {
    "linear": ("forward", "dgrad", "wgrad"),
    "grouped_gemm": ("forward", "dgrad", "wgrad"),
    "flash_attention": ("forward", "backward"),
}
"""What `op` may be for kinds whose direction matters; for the others it is any name."""
LAYOUTS = ("", "tn", "nn", "nt", "tt")
MODES = ("burst", "sustained")

VALUES = {
    "add": 3.0,
    "mul": 3.0,
    "div": 3.0,
    "pow": 2.0,
    "bias": 2.0,
    "scale": 2.0,
    "relu": 2.0,
    "relu_backward": 3.0,
    "gelu": 2.0,
    "gelu_backward": 3.0,
    "silu": 2.0,
    "silu_backward": 3.0,
    "tanh": 2.0,
    "tanh_backward": 3.0,
    "swiglu": 3.0,
    "swiglu_backward": 5.0,
    "softmax": 2.0,
    "softmax_backward": 3.0,
    "layernorm": 2.0,
    "layernorm_backward": 5.0,
    "rmsnorm": 2.0,
    "rmsnorm_backward": 5.0,
}
"""Values that a vector kernel moves an element where `bytes` is blank: inputs read and outputs written once."""
_FLOP = {"softmax": 5.0, "layernorm": 6.0, "elementwise": 1.0, "memory": 0.0}


class Measurements(NamedTuple):
    """Measured kernels with what a file says beside them, one entry a row; NaN where a number is not given."""

    samples: Samples
    mode: NDArray[np.str_]
    """`burst` or `sustained`."""
    layout: NDArray[np.str_]
    low: Floats
    """Seconds of the fastest …"""
    high: Floats
    """… and of the slowest."""
    clock: Floats
    """Hz."""
    power: Floats
    """W."""

    def burst(self) -> Samples:
        """Return the kernels timed in short bursts, as all public tables are: what predictors learn from."""
        return self.samples.select(self.mode == "burst")


def read(path: Path) -> Measurements:
    """Return the measured kernels of a file.

    Raises DataError: file, line, column, value and remedy of the first cell that cannot be.
    """
    table = open_table(path, REQUIRED, COLUMNS)
    kernels = list(_kernels(table))
    names = table.each("gpu", _gpu)
    samples = Samples(columns(kernels), np.array(names, dtype=np.str_), table.numbers("latency_s", None))
    _credible(table, samples)
    nan = float("nan")
    return Measurements(
        samples,
        np.array(table.words("mode", MODES, "burst"), dtype=np.str_),
        np.array(table.words("layout", LAYOUTS), dtype=np.str_),
        table.numbers("low_s", nan),
        table.numbers("high_s", nan),
        table.numbers("clock_mhz", nan) * 1e6,
        table.numbers("power_w", nan),
    )


def _gpu(text: str) -> str:
    """Return the name of a GPU's YAML; a path stays one, as no name would find it again."""
    found = gpus.load(text)
    return text if text.endswith((".yaml", ".yml")) else found.name


def _kernels(table: CsvTable) -> Iterator[Kernel]:
    kinds, ops = table.words("kind", (*MATRIX, *VECTOR)), table.each("op", str)
    dtypes, causal = table.words("dtype", tuple(BYTES)), table.flags("causal")
    batch, heads = (table.numbers(name, 1, 1, whole=True) for name in ("batch", "heads"))
    m, n = (table.numbers(name, None, 1, whole=True) for name in ("m", "n"))
    k, kv_heads = (table.numbers(name, 0, 0, whole=True) for name in ("k", "kv_heads"))
    flop, traffic = (table.numbers(name, float("nan")) for name in ("flop", "bytes"))
    for row, (kind, op, dtype) in enumerate(zip(kinds, ops, dtypes, strict=True)):
        shape = (int(batch[row]), int(m[row]), int(n[row]), int(k[row]))
        groups = (int(heads[row]), int(kv_heads[row] or heads[row]))
        _possible(table, row, kind, op, shape[3], groups)
        moved = float(traffic[row])
        kernel = _kernel(table, row, kind, op, dtype, shape, groups, causal[row], np.isnan(moved))
        work = kernel.flop if np.isnan(flop[row]) else float(flop[row])
        yield kernel._replace(flop=work, bytes=kernel.bytes if np.isnan(moved) else moved)


def _possible(table: CsvTable, row: int, kind: str, op: str, k: int, groups: tuple[int, int]) -> None:
    if op not in OPS.get(kind, (op,)):
        table.fail(row, "op", f"a {kind} kernel is one of {', '.join(OPS[kind])}")
    if kind in MATRIX and k < 1:
        what = "the head dimension" if kind == "flash_attention" else "the reduction"
        table.fail(row, "k", f"a {kind} kernel needs {what}, a whole number of at least 1")
    if groups[0] % groups[1]:
        table.fail(row, "kv_heads", f"write a divisor of heads, {groups[0]}")


def _kernel(
    table: CsvTable,
    row: int,
    kind: str,
    op: str,
    dtype: str,
    shape: tuple[int, int, int, int],
    groups: tuple[int, int],
    causal: bool,
    counted: bool,
) -> Kernel:
    batch, m, n, k = shape
    if kind == "flash_attention":
        return attention(op, dtype, batch, *groups, m, n, k, causal)
    if kind in ("linear", "bmm", "grouped_gemm"):
        return gemm(kind, op, dtype, batch, m, n, k, output=max(2.0, BYTES[dtype]))  # type: ignore[arg-type]
    if counted and op not in VALUES:
        table.fail(row, "bytes", f"what {op!r} moves is not known; write the bytes that it reads and writes")
    return vector(kind, op, dtype, batch * m, n, _FLOP[kind], VALUES.get(op, 1.0) * BYTES[dtype])  # type: ignore[arg-type]


FASTEST, SLOWEST = 0.1, 300.0
"""Seconds over the roofline's that a measurement can have: caches make it faster, a call's dispatch (30 us) slower."""


def _credible(table: CsvTable, samples: Samples) -> None:
    for name, rows in gpus_of(samples).items():
        least = np.zeros(len(samples))
        least[rows] = bound(samples.table.select(rows), gpus.load(name))
        wrong = rows & ((samples.seconds < FASTEST * least) | (samples.seconds > SLOWEST * (least + 3e-5)))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            remedy = (
                f"the roofline of {name} is {least[row]:.3g} s; write seconds, and shapes as the documentation says"
            )
            table.fail(row, "latency_s", remedy)


def measured(paths: list[Path]) -> list[Samples]:
    """Return the burst measurements of files. Raises DataError, also for a file without a row."""
    found = [read(path).burst() for path in paths]
    for path, samples in zip(paths, found, strict=True):
        if not len(samples):
            raise DataError(f"{path}: holds no kernel measured in a burst; add rows")
    return found
