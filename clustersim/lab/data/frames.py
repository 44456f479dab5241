"""Tables of measurements as polars frames, read through one bounded reader."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim.errors import DataError
from clustersim.files import read_table

if TYPE_CHECKING:
    import polars as pl


def parquet(path: Path) -> pl.DataFrame:
    """Return a parquet file. Raises DataError when it cannot be read."""
    import polars as pl

    return _read(pl.read_parquet, path, "parquet")


def csv(path: Path, **options: Any) -> pl.DataFrame:
    """Return a CSV file by polars' options. Raises DataError when it cannot be read."""
    import polars as pl

    return _read(pl.read_csv, path, "CSV", **options)


def _read(reader: Callable[..., pl.DataFrame], path: Path, form: str, **options: Any) -> pl.DataFrame:
    import polars as pl

    raw = read_table(path, f"a {form} table")
    try:
        return reader(io.BytesIO(raw), **options)
    except pl.exceptions.PanicException as error:  # a fault of polars, and no Exception
        raise DataError(f"{path}: cannot be read as {form}: damaged; write it anew") from error
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), "damaged")
        raise DataError(f"{path}: cannot be read as {form}: {reason}; write it anew") from error
