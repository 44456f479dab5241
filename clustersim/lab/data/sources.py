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
from typing import TYPE_CHECKING, NamedTuple

from clustersim import plugins
from clustersim.errors import DataError, InputError, UnknownNameError
from clustersim.files import exists, read_table
from clustersim.hardware import gpus
from clustersim.lab.data import frames

if TYPE_CHECKING:
    from types import ModuleType

    import polars as pl

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


def given(paths: Sequence[Path] | None = None, leave_out: Iterable[str] = ()) -> Data:
    """Return the data that a command line names: `paths`, or else $CLUSTERSIM_DATA.

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
    """Return the GPUs whose rows are left out of training."""
    return data.leave_out if isinstance(data, Data) else ()


def tables(data: Data | Path, name: str) -> list[tuple[Path, pl.DataFrame]]:
    """Return (path, table) of the table `name` in every place that has it. Raises DataError."""
    found = []
    for path in places(data):
        if (path / name).is_file():
            found.append((path / name, frames.parquet(path / name)))
        elif checkout := _checkout(path):
            layout, root = checkout
            frame = layout.table(root, name)
            found += [] if frame is None else [(root, frame)]
    return found


def csv(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Return columns of a CSV table. Raises DataError if it cannot be read or lacks one."""
    frame = frames.csv(path, infer_schema_length=None)
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise DataError(f"{path}: has no column {', '.join(missing)}; expected {', '.join(columns)}")
    return frame.select(columns)


def holds(data: Data | Path, name: str) -> bool:
    """Return whether a place has the table `name`."""
    return any((path / name).is_file() or _in_checkout(path, name) for path in places(data))


def _in_checkout(path: Path, name: str) -> bool:
    checkout = _checkout(path)
    return checkout is not None and bool(checkout[0].holds(checkout[1], name))


def own_files(data: Data | Path) -> list[Path]:
    """Return a user's own files: places that are files, and the files in `measurements/`."""
    return [
        file
        for path in places(data)
        for file in ([path] if path.is_file() else sorted((path / OWN).glob("*.*")))
        if file.suffix in FILES
    ]


def digests(data: Data | Path) -> dict[str, str]:
    """Return the SHA-256 of all input data by table, checkout or own file, as 16 hexadecimal digits."""
    result = {f"{OWN}/{file.name}": _digest([file]) for file in own_files(data)}
    for path in places(data):
        result |= {name: _digest([path / name]) for name in NAMES if (path / name).is_file()}
        if checkout := _checkout(path):
            layout, root = checkout
            result[f"checkout of {layout.REPOSITORY}"] = _digest(layout.files(root))
    return result


def _digest(files: Iterable[Path]) -> str:
    state = hashlib.sha256()
    for file in files:
        state.update(read_table(file))
    return state.hexdigest()[:16]


def _checkout(path: Path) -> tuple[ModuleType, Path] | None:
    if any((path / name).is_file() for name in NAMES):
        return None
    for module in plugins.names(LAYOUTS).values():
        layout = importlib.import_module(module)
        if root := layout.root(path):
            return layout, root
    return None


def _usable(path: Path) -> None:
    if not exists(path):
        raise DataError(f"{path}: no such file or folder; it should hold {FP32}, {OWN}/*.csv or a checkout")
    if path.is_file() and path.suffix not in FILES:
        raise DataError(f"{path}: neither a folder nor a CSV or parquet file; name one that is")
    if path.is_dir() and not (any((path / name).is_file() for name in NAMES) or own_files(path) or _checkout(path)):
        known = ", ".join(importlib.import_module(module).REPOSITORY for module in plugins.names(LAYOUTS).values())
        raise DataError(f"{path}: has no measurements; it should have {FP32}, {OWN}/*.csv or a checkout of {known}")


def _gpu(name: str) -> str:
    try:
        return gpus.load(name).name
    except UnknownNameError as error:
        raise InputError(f"--leave-out: {error}") from error
