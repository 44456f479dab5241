"""Sources of measured kernels: the places that `--data` can name, and the tables in each.

A place is a folder of tidy tables (with a user's own files in `measurements/`), a checkout of a public repository (folder
`checkouts`), or a single file of a user's own measurements.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from clustersim import plugins
from clustersim.errors import DataError, InputError, UnknownNameError
from clustersim.files import exists, read_table
from clustersim.hardware import gpus
from clustersim.lab.data import frames

FP32 = "neusight/kernels_fp32.parquet"
GEMM = "kernels/gemm.parquet"
ATTENTION = "kernels/attention_forward.parquet"
GROUPED = "kernels/moe_grouped_gemm_forward.parquet"
NAMES = (FP32, GEMM, ATTENTION, GROUPED)
"""Tables that predictors learn from."""
OWN = "measurements"
"""Folder of a user's own files, next to the tidy tables."""
FILES = (".csv", ".parquet")
LAYOUTS = "clustersim.lab.data.checkouts"


class Data(NamedTuple):
    """Places of measured kernels, and the GPUs (by the name of their YAML) whose rows are left out of training."""

    paths: tuple[Path, ...]
    leave_out: tuple[str, ...] = ()


def named_data(paths: Sequence[Path] | None = None, leave_out: Iterable[str] = ()) -> Data:
    """Return the data that a command line names: `paths`, or else $CLUSTERSIM_DATA. leave_out: GPUs' names.

    Raises DataError for a missing or empty place, and InputError for an unknown GPU.
    """
    chosen = tuple(paths or (Path(text) for text in (os.environ.get("CLUSTERSIM_DATA"),) if text))
    if not chosen:
        raise DataError("no measurements are given; pass --data DIR or set $CLUSTERSIM_DATA")
    for path in chosen:
        _usable(path)
    return Data(chosen, tuple(dict.fromkeys(_gpu(name) for name in leave_out)))


def places(data: Data | Path) -> tuple[Path, ...]:
    """Return the places of `data`, or the path itself."""
    return data.paths if isinstance(data, Data) else (data,)


def left_out(data: Data | Path) -> tuple[str, ...]:
    """Return the GPUs whose rows are left out of training; () for a path."""
    return data.leave_out if isinstance(data, Data) else ()


def tables(data: Data | Path, name: str) -> list[tuple[Path, pl.DataFrame]]:
    """Return (path, table) of the table `name` (of NAMES) in every place that has it. Raises DataError if one is unreadable."""
    found = []
    for path in places(data):
        if (path / name).is_file():
            found.append((path / name, frames.parquet(path / name)))
        else:
            found += [(root, layout.table(root, name)) for layout, root in _checkouts(path) if layout.holds(root, name)]
    return found


def csv(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Return columns of a CSV table. Raises DataError if it cannot be read or lacks one."""
    frame = frames.csv(path, infer_schema_length=None)
    frames.check_columns(path, frame.columns, columns)
    return frame.select(columns)


def holds(data: Data | Path, name: str) -> bool:
    """Return whether a place has the table `name`."""
    return any(
        (path / name).is_file() or any(layout.holds(root, name) for layout, root in _checkouts(path))
        for path in places(data)
    )


def own_files(data: Data | Path) -> list[Path]:
    """Return a user's own files: places that are files, and the files in `measurements/`."""
    return [
        file
        for path in places(data)
        for file in ([path] if path.is_file() else sorted((path / OWN).glob("*.*")))
        if file.suffix in FILES
    ]


def digests(data: Data | Path) -> dict[str, str]:
    """Return {table, checkout or own file: 16 hexadecimal digits of its SHA-256} of all input data."""
    result = {f"{OWN}/{file.name}": _digest([file]) for file in own_files(data)}
    for path in places(data):
        result |= {name: _digest([path / name]) for name in NAMES if (path / name).is_file()}
        for layout, root in _checkouts(path):
            result[f"checkout of {layout.REPOSITORY}"] = _digest(layout.files(root))
    return result


def _digest(files: Iterable[Path]) -> str:
    """Return the start of the SHA-256 of files, 16 hexadecimal digits."""
    state = hashlib.sha256()
    for file in files:
        state.update(read_table(file))
    return state.hexdigest()[:16]


def _layouts() -> list[Any]:
    """Return the modules of the layouts of checkouts."""
    return [importlib.import_module(module) for module in plugins.names(LAYOUTS).values()]


def _checkouts(path: Path) -> list[tuple[Any, Path]]:
    """Return [(layout module, folder of its data)] of a checkout at a path; [] if it is not one or has tidy tables."""
    if any((path / name).is_file() for name in NAMES):
        return []
    return [(layout, root) for layout in _layouts() if (root := layout.root(path))][:1]


def _usable(path: Path) -> None:
    """Raise DataError for a place without measurements."""
    if not exists(path):
        raise DataError(f"{path}: no such file or folder; it should hold {FP32}, {OWN}/*.csv or a checkout")
    if path.is_file() and path.suffix not in FILES:
        raise DataError(f"{path}: neither a folder nor a CSV or parquet file; name one that is")
    if path.is_dir() and not (any((path / name).is_file() for name in NAMES) or own_files(path) or _checkouts(path)):
        known = ", ".join(layout.REPOSITORY for layout in _layouts())
        raise DataError(f"{path}: has no measurements; it should have {FP32}, {OWN}/*.csv or a checkout of {known}")


def _gpu(name: str) -> str:
    """Return the name of the YAML of a GPU to leave out. Raises InputError if it is unknown."""
    try:
        return gpus.load(name).name
    except UnknownNameError as error:
        raise InputError(f"--leave-out: {error}") from error
