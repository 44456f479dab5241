"""The layout of sitar-lab/NeuSight (MIT): `scripts/asplos/data/{dataset,dataset_amd}/{train,test}/…`.

`bmm.csv`, `linear.csv`, `elem.csv`, `softmax.csv` and `ln.csv` of a split train and test its predictors.
`collect/OP/VERSION/GPU.csv` are the raw measurements. GEMMs whose first kind of file is missing (too large for some mirrors) are
read from the second, which they concatenate.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import polars as pl

from clustersim.errors import DataError
from clustersim.lab.data.frames import read
from clustersim.lab.data.sources import FP32

REPOSITORY = "sitar-lab/NeuSight"
VENDORS = {"dataset": "nvidia", "dataset_amd": "amd"}
SPLITS = ("train", "test")
GEMMS = ("bmm", "linear")
VECTORS = ("elem", "softmax", "ln")
_RAW = ("add", "addu", "div", "divu", "gelu", "mul", "mulu", "pow", "powu", "relu", "tanh", "softmax", "ln")


class SourceFile(NamedTuple):
    """A file, and the values of all its rows in the tidy table."""

    path: Path
    vendor: str
    split: str
    group: str


def root(path: Path) -> Path | None:
    """Return the folder of the datasets in a checkout or in a part of one, or None."""
    candidates = (path / "scripts/asplos/data", path / "asplos/data", path / "data", path)
    return next((c for c in candidates if (c / "dataset").is_dir() and any(_parts(c))), None)


def files(root: Path) -> list[Path]:
    """Return all files that are read, sorted."""
    return sorted(part.path for part in _parts(root))


def holds(root: Path, name: str) -> bool:
    """Return whether the checkout has the tidy table `name`."""
    return name == FP32 and root.is_dir()


def table(root: Path, name: str) -> pl.DataFrame:
    """Return the FP32 kernels as a tidy table: seconds, sizes b, m, n, k or b, h. Raises DataError."""
    return pl.concat([_rows(part) for part in _parts(root)], how="diagonal")


def _parts(root: Path) -> list[SourceFile]:
    """Return the files that are read, split by split."""
    found: list[SourceFile] = []
    for folder, vendor in VENDORS.items():
        for split in SPLITS:
            base = root / folder / split
            whole = [name for name in (*GEMMS, *VECTORS) if (base / f"{name}.csv").is_file()]
            found += [SourceFile(base / f"{name}.csv", vendor, split, name) for name in whole]
            for op in (*GEMMS, *_RAW):
                group = op if op in GEMMS else f"collect_{op}"
                raw = [] if op in whole and op in GEMMS else sorted((base / "collect" / op).glob("*/*.csv"))
                found += [SourceFile(path, vendor, split, group) for path in raw]
    return found


def _rows(part: SourceFile) -> pl.DataFrame:
    """Return the rows of a file with the columns of the tidy table. Raises DataError."""
    sizes = ("B", "M", "N", "K") if part.group in GEMMS else ("B", "H")
    frame = read(part.path, ("OPName", "Device"), ("Latency", *sizes), {})
    if frame.select((pl.col("Latency") <= 0).any()).item():
        raise DataError(f"{part.path}: has a Latency of zero or less; check the file out again")
    return frame.select(
        pl.lit(part.vendor).alias("vendor"),
        pl.lit(part.split).alias("split"),
        pl.lit(part.group).alias("group"),
        pl.col("OPName").alias("op"),
        pl.col("Device").alias("gpu"),
        *(pl.col(size).cast(pl.Int64).alias(size.lower()) for size in sizes),
        *(pl.lit(None, dtype=pl.Int64).alias(size) for size in "bmnkh" if size.upper() not in sizes),
        (pl.col("Latency") / 1e3).alias("latency_s"),
    )
