"""Kernels that a user measured, one per row of a CSV or parquet file (docs/measurements.md).

Errors name file, line and column of a wrong cell, with the remedy.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.errors import DataError, shown, suggest
from clustersim.files import read_table
from clustersim.hardware import gpus
from clustersim.hardware.constants import BYTES
from clustersim.lab.data.frames import check_columns, parquet
from clustersim.lab.data.samples import Samples, gpus_of
from clustersim.model.kernel import VECTOR, Kernel, attention, gemm, vector
from clustersim.predictors.features import MATRIX, bound, columns

YES, NO = ("1", "true", "yes"), ("0", "false", "no")


@dataclass(frozen=True, slots=True)
class CsvTable:
    """Cells of a file as text, by column. `places` has the position of each row, such as `own.csv:12`."""

    path: Path
    cells: dict[str, list[str]]
    places: list[str]

    def __len__(self) -> int:
        return len(self.places)

    def fail(self, row: int, column: str, remedy: str) -> NoReturn:
        """Raise DataError for the cell in a row and column, with `remedy` after its value."""
        value = self.cells[column][row] if column in self.cells else ""
        raise DataError(f"{self.places[row]}: {column} is {shown(value) if value else 'missing'}; {remedy}")

    def texts(self, column: str, default: str = "") -> list[str]:
        """Return the cells of a column, with `default` for blank cells and for a missing column."""
        return [text or default for text in self.cells.get(column, [""] * len(self))]

    def words(self, column: str, known: Collection[str], default: str = "") -> list[str]:
        """Return the cells of a column, `default` if blank. Raises DataError with the nearest match for one not in `known`."""
        found = self.texts(column, default)
        for wrong in {*found} - {*known}:
            self.fail(found.index(wrong), column, suggest(wrong, filter(None, known)))
        return found

    def numbers(self, column: str, default: float | None, least: float = 0.0, whole: bool = False) -> Floats:
        """Return the cells of a column as finite (`whole`: whole) numbers of at least `least`, above it if 0 without default.

        Blank cells are `default`; if that is None they are errors. Raises DataError.
        """
        found = np.array([_number(text, default) for text in self.texts(column)], dtype=np.float64)
        optional = np.isnan(default) if default is not None else False
        blank = np.array([not text for text in self.texts(column)], dtype=bool)
        good = np.isfinite(found) & (found >= least) & ((found > 0) | (least > 0) | (default is not None))
        wrong = ~(good & ((found == np.floor(found)) | (not whole))) & ~(blank & optional)
        if wrong.any():
            kind = "whole number" if whole else "finite number"
            bound = f"of at least {least:g}" if least > 0 or default is not None else "above 0"
            self.fail(int(np.flatnonzero(wrong)[0]), column, f"write a {kind} {bound}")
        return found

    def flags(self, column: str) -> list[bool]:
        """Return the cells of a column as booleans; blank ones are False. Raises DataError."""
        texts = [text.lower() for text in self.texts(column, "0")]
        for wrong in {*texts} - {*YES, *NO}:
            self.fail(texts.index(wrong), column, "write 1 or 0")
        return [text in YES for text in texts]

    def each(self, column: str, convert: Callable[[str], str]) -> list[str]:
        """Return `convert` of each cell, called once per text. Raises DataError with the row for its errors and blank cells."""
        texts, known = self.texts(column), dict[str, str]()
        for row, text in enumerate(texts):
            if text not in known:
                if not text:
                    self.fail(row, column, "every row needs one")
                try:
                    known[text] = convert(text)
                except Exception as error:
                    raise DataError(f"{self.places[row]}: {column}: {error}") from error
        return [known[text] for text in texts]


def _number(text: str, default: float | None) -> float:
    """Return a cell as a number: `default` if it is blank, NaN if that is None or the text is not a number."""
    try:
        return float(text) if text else float("nan") if default is None else default
    except ValueError:
        return float("nan")


def open_table(path: Path, required: Collection[str], known: Collection[str]) -> CsvTable:
    """Return a CSV or parquet file as a table.

    Raises DataError if the file cannot be read, has a missing or unknown column, or a row of another length.
    """
    table = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    check_columns(path, table.cells, required, f"expected {', '.join(known)}")
    for name in table.cells:
        if name not in known:
            raise DataError(f"{path}: unknown column {shown(name)}; {suggest(name, known)}")
    return table


def _csv(path: Path) -> CsvTable:
    """Return a CSV file as a table. Raises DataError if it is not valid CSV with rows of one length."""
    raw = read_table(path)
    try:
        reader = csv.reader(io.StringIO(raw.decode(), newline=""), strict=True)
        header = [name.strip() for name in next(reader, [])]
        lines = ((reader.line_num, [cell.strip() for cell in row]) for row in reader)
        rows = {line: row for line, row in lines if any(row)}
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV: {error}; write UTF-8 text with commas") from error
    for line, row in rows.items():
        if len(row) != len(header):
            raise DataError(f"{path}:{line}: has {len(row)} cells; the header has {len(header)}")
    for name in header:
        if header.count(name) > 1:
            raise DataError(f"{path}: column {shown(name)} occurs twice; keep one of them")
    columns = [list(column) for column in zip(*rows.values(), strict=True)] or [[] for _ in header]
    return CsvTable(path, dict(zip(header, columns, strict=True)), [f"{path}:{line}" for line in rows])


def _parquet(path: Path) -> CsvTable:
    """Return a parquet file as a table. Raises DataError."""
    frame = parquet(path)
    cells = {name: ["" if v is None else str(v) for v in frame[name].to_list()] for name in frame.columns}
    return CsvTable(path, cells, [f"{path}: row {row}" for row in range(1, len(frame) + 1)])


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
"""Values of `op` for kinds whose direction matters; for other kinds it is free."""
LAYOUTS = ("", "tn", "nn", "nt", "tt")
MODES = ("burst", "sustained")

VALUES = {
    **dict.fromkeys(("pow", "bias", "scale", "relu", "gelu", "silu", "tanh", "softmax", "layernorm", "rmsnorm"), 2.0),
    **dict.fromkeys(("add", "mul", "div", "swiglu"), 3.0),
    **dict.fromkeys((f"{op}_backward" for op in ("relu", "gelu", "silu", "tanh", "softmax")), 3.0),
    **dict.fromkeys(("swiglu_backward", "layernorm_backward", "rmsnorm_backward"), 5.0),
}
"""Values per element that a vector kernel moves if `bytes` is blank: inputs read and outputs written once."""
_FLOP = {"softmax": 5.0, "layernorm": 6.0, "elementwise": 1.0, "memory": 0.0}


class Measurements(NamedTuple):
    """Measured kernels of a file, and how each was timed."""

    samples: Samples
    mode: NDArray[np.str_]
    """`burst` or `sustained`."""
    layout: NDArray[np.str_]
    """Layout of the operands of each GEMM, one of LAYOUTS; empty if unknown."""

    def burst(self) -> Samples:
        """Return the kernels timed in short bursts, like all public tables. Predictors learn from them."""
        return self.samples.select(self.mode == "burst")


def read(path: Path) -> Measurements:
    """Return the measured kernels of a file.

    Raises DataError with file, line, column, value and remedy of the first invalid cell.
    """
    table = open_table(path, REQUIRED, COLUMNS)
    kernels = list(_kernels(table))
    names = table.each("gpu", _gpu)
    samples = Samples(columns(kernels), np.array(names, dtype=np.str_), table.numbers("latency_s", None))
    _credible(table, samples)
    mode, layout = table.words("mode", MODES, "burst"), table.words("layout", LAYOUTS)
    for name in ("low_s", "high_s", "clock_mhz", "power_w"):  # nothing is computed from these, but they must be numbers
        table.numbers(name, float("nan"))
    return Measurements(samples, np.array(mode, dtype=np.str_), np.array(layout, dtype=np.str_))


def _gpu(text: str) -> str:
    """Return the name of a GPU's YAML. A path to a YAML file stays a path, because no name would find it again."""
    found = gpus.load(text)
    return text if text.endswith((".yaml", ".yml")) else found.name


def _kernels(table: CsvTable) -> Iterator[Kernel]:
    """Yield the kernel of each row. Raises DataError for a cell that is invalid or that the kernel needs."""
    kinds, ops = table.words("kind", (*MATRIX, *VECTOR)), table.each("op", str)
    dtypes, causal = table.words("dtype", tuple(BYTES)), table.flags("causal")
    batch, heads = (table.numbers(name, 1, 1, whole=True) for name in ("batch", "heads"))
    m, n = (table.numbers(name, None, 1, whole=True) for name in ("m", "n"))
    k, kv_heads = (table.numbers(name, 0, 0, whole=True) for name in ("k", "kv_heads"))
    flop, traffic = (table.numbers(name, float("nan")) for name in ("flop", "bytes"))
    sizes = np.stack([batch, m, n, k, heads, np.where(kv_heads > 0, kv_heads, heads)], axis=1).tolist()
    shapes = [[int(size) for size in row] for row in sizes]  # numpy's integers end at 2^63
    for row, (kind, op, dtype, shape) in enumerate(zip(kinds, ops, dtypes, shapes, strict=True)):
        _check(table, row, kind, op, shape)
        if np.isnan(traffic[row]) and kind in VECTOR and op not in VALUES:
            table.fail(row, "bytes", f"what {op!r} moves is not known; write the bytes that it reads and writes")
        kernel = _kernel(kind, op, dtype, shape, causal[row])
        work, moved = float(flop[row]), float(traffic[row])
        work, moved = kernel.flop if np.isnan(work) else work, kernel.bytes if np.isnan(moved) else moved
        yield kernel._replace(flop=work, bytes=moved)


def _check(table: CsvTable, row: int, kind: str, op: str, shape: list[int]) -> None:
    """Raise DataError for an op, reduction or number of heads that a kind does not have. shape: as of `_kernel`."""
    *_, k, heads, kv_heads = shape
    if op not in OPS.get(kind, (op,)):
        table.fail(row, "op", f"a {kind} kernel is one of {', '.join(OPS[kind])}")
    if kind in MATRIX and k < 1:
        what = "the head dimension" if kind == "flash_attention" else "the reduction"
        table.fail(row, "k", f"a {kind} kernel needs {what}, a whole number of at least 1")
    if heads % kv_heads:
        table.fail(row, "kv_heads", f"write a divisor of heads, {heads}")


def _kernel(kind: str, op: str, dtype: str, shape: list[int], causal: bool) -> Kernel:
    """Return a kernel of a shape (batch, m, n, k, heads, kv_heads), with the FLOP and bytes of a workload's."""
    batch, m, n, k, heads, kv_heads = shape
    if kind == "flash_attention":
        return attention(op, dtype, batch, heads, kv_heads, m, n, k, causal)
    if kind in MATRIX:
        return gemm(kind, op, dtype, batch, m, n, k, output=max(2.0, BYTES[dtype]))  # type: ignore[arg-type]
    return vector(kind, op, dtype, batch * m, n, _FLOP[kind], VALUES.get(op, 1.0) * BYTES[dtype])  # type: ignore[arg-type]


FASTEST, SLOWEST = 0.1, 300.0
"""Limits of measured / roofline seconds: caches can make a kernel faster, a call's dispatch (30 us) slower."""


def _credible(table: CsvTable, samples: Samples) -> None:
    """Raise DataError for a time that is far from its GPU's roofline."""
    for name, rows in gpus_of(samples).items():
        least = np.zeros(len(samples))
        least[rows] = bound(samples.table.select(rows), gpus.load(name))
        wrong = rows & ((samples.seconds < FASTEST * least) | (samples.seconds > SLOWEST * (least + 3e-5)))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            roofline = f"the roofline of {name} is {least[row]:.3g} s"
            table.fail(row, "latency_s", f"{roofline}; write seconds, and shapes as the documentation says")


def measured(paths: list[Path]) -> list[Samples]:
    """Return the burst measurements of each file. Raises DataError, also for a file without rows."""
    found = [read(path).burst() for path in paths]
    for path, samples in zip(paths, found, strict=True):
        if not len(samples):
            raise DataError(f"{path}: has no kernel measured in a burst; add rows")
    return found
