"""CSV files to which rows are appended one by one: a killed run keeps them, and a new one continues."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clustersim.errors import DataError, InputError
from clustersim.files import TABLE, exists, read_text
from clustersim.lab.measure.cases import Case, DutyCase, Trial
from clustersim.lab.measure.device import Device, Reading
from clustersim.lab.measure.timing import Timing
from clustersim.predictors.features import MATRIX
from clustersim.writing import unwritable


class MeasurementLog:
    """A CSV file with fixed columns. `key` names the columns that identify a row; `known` has the keys of its rows."""

    def __init__(self, path: Path, columns: Sequence[str], key: Sequence[str]) -> None:
        self.path, self.columns, self.key = path, tuple(columns), tuple(key)
        self.known = {self._key(row) for row in self._begin()}

    def __contains__(self, row: Mapping[str, object]) -> bool:
        """Return whether a row with the same key exists."""
        return self._key(row) in self.known

    def append(self, row: Mapping[str, object]) -> None:
        """Write a row, blank for missing columns, so that it survives the end of the process. Raises InputError."""
        self._write(_line([_text(row.get(name, "")) for name in self.columns]), "a")
        self.known.add(self._key(row))

    def _key(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """Return the cells that identify a row."""
        return tuple(_text(row.get(name, "")) for name in self.key)

    def _begin(self) -> list[dict[str, str]]:
        """Return the rows of an earlier run without an incomplete last line, or start a file. Raises DataError for others."""
        if not exists(self.path) or not self.path.stat().st_size:
            self._write(_line(list(self.columns)), "w")
            return []
        try:
            text = read_text(self.path, "a CSV table of this profiler with --out", TABLE)
        except InputError as error:
            raise DataError(str(error)) from error
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole))
        if tuple(reader.fieldnames or ()) != self.columns:
            raise DataError(f"{self.path}:1: is not a table of this profiler; name another file with --out")
        if whole != text:
            self._write(whole, "w")
        return list(reader)

    def _write(self, text: str, mode: str) -> None:
        """Write or append (`mode`) text to the file, and wait until it is on the disk. Raises InputError."""
        try:
            with self.path.open(mode, encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(self.path, error, "name another file with --out") from error


def _line(cells: list[str]) -> str:
    """Return cells as a line of CSV."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _text(value: object) -> str:
    """Return a cell: blank for NaN and None, seven digits of a float, 1 and 0 for booleans."""
    if value is None or value != value:  # noqa: PLR0124
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.7g}" if isinstance(value, float) else str(value)


KERNEL = ("gpu", "kind", "op", "dtype", "layout", "batch", "m", "n", "k", "heads", "kv_heads", "causal")
KEY = (*KERNEL, "mode", "note")
CLOCK_KEY = (*KERNEL, "note", "duty", "filler")
CLOCK_COLUMNS = (
    *CLOCK_KEY,
    *("t_s", "latency_s", "busy", "clock_mhz", "power_w", "temperature_c", "reasons", "torch", "cuda"),
)
"""Columns of kernels over time. `t_s` is the middle of a row's interval, `busy` the share of it in which the kernel ran."""
TRACE_KEY = ("gpu", "model", "seq", "micro_batch", "mode", "variant")
TRACE_COLUMNS = (*TRACE_KEY, "name", "calls", "seconds", "steps", "torch", "cuda")
"""Columns of a training step's kernels. `seconds` is the sum over `calls` in `steps` steps."""

WHOLE_COLUMNS = (
    *("gpu", "what", "variant", "mode", "model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq"),
    *("experts", "topk", "micro_batch", "amount", "tokens", "parameters", "latency_s", "low_s", "high_s", "samples"),
    *("tokens_per_s", "peak_memory_bytes", "clock_mhz", "power_w", "torch", "cuda"),
)
WHOLE_KEY = ("gpu", "what", "variant", "mode", "model", "seq", "micro_batch", "amount")


def kernel_row(case: Case, mode: str, device: Device) -> dict[str, object]:
    """Return {column: cell} of a case without what is measured. mode: `burst`, `sustained`; "" for a kernel over time."""
    kernel = case.kernel._asdict() | {"flop": float(case.kernel.flop), "bytes": float(case.kernel.bytes)}
    return kernel | _place(device) | {"layout": case.layout, "mode": mode, "note": case.note}


def trial_row(trial: Trial, device: Device) -> dict[str, object]:
    """Return {column: cell} of a trial, without what is measured."""
    model = trial.model._asdict() | {"model": trial.model.name} if trial.model else {}
    facts = {key: value for key, value in trial._asdict().items() if key != "model" and value not in ("", 0)}
    return {**model, **facts, "mode": trial.mode, **_place(device)}


def _place(device: Device) -> dict[str, Any]:
    """Return {`gpu`, `torch`, `cuda`: cell}."""
    return {"gpu": device.gpu, "torch": device.torch, "cuda": device.cuda}


def name(item: Case | DutyCase | Trial) -> str:
    """Return the name of a case or trial for progress lines."""
    if isinstance(item, DutyCase):
        rest = f" {100 * item.share:.0f} % of time, {item.filler}" if item.share < 1 else ""
        return f"{item.seconds:g} s of {name(item.case)}{rest}"
    if isinstance(item, Trial):
        model = f"{item.model.name} seq {item.seq} × {item.micro_batch}" if item.model else ""
        mode, amount = item.mode if item.model else "", f"{item.amount:,}" if item.amount else ""
        parts: tuple[str, ...] = (item.what, model, mode, item.variant, amount)
    else:
        k = item.kernel
        shape = "×".join(str(size) for size in (k.batch, k.m, k.n, k.k) if size)
        parts = (k.kind, k.op, k.dtype, item.layout, shape, item.note)
    return " ".join(part for part in parts if part)


def measured(timing: Timing, reading: Reading) -> dict[str, object]:
    """Return {`latency_s`, `low_s`, `high_s`, `samples`, `clock_mhz`, `power_w`: cell} of a measurement."""
    names = ("latency_s", "low_s", "high_s", "samples", "clock_mhz", "power_w")
    return dict(zip(names, (*timing, reading.clock, reading.power), strict=True))


def rate(case: Case, mode: str, timing: Timing, reading: Reading) -> str:
    """Return the speed of a kernel in words, with clock and power if `mode` is `sustained`."""
    kernel = case.kernel
    compute, moved = kernel.flop / timing.seconds / 1e12, kernel.bytes / timing.seconds / 1e9
    speed = f"{compute:.4g} TFLOP/s" if kernel.kind in MATRIX else f"{moved:.4g} GB/s"
    watts = f", {reading.clock:.0f} MHz, {reading.power:.0f} W" if mode == "sustained" and reading.power > 0 else ""
    return f"{timing.seconds * 1e6:.4g} us, {speed}{watts}" + (" sustained" if mode == "sustained" else "")
