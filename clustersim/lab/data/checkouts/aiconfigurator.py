"""The layout of ai-dynamo/aiconfigurator (Apache-2.0): `src/aiconfigurator/systems/data/GPU/…/VERSION/KIND_perf.txt`.

Files are text with commas (later releases: parquet), in a folder for each GPU, backend and version. Latencies are milliseconds
in CUDA graphs. A shape that several versions measured gets their median.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import polars as pl

from clustersim.config.yaml import read_packaged
from clustersim.errors import DataError, UnknownNameError
from clustersim.hardware import gpus
from clustersim.lab.data.frames import read

REPOSITORY = "ai-dynamo/aiconfigurator"


class FileLayout(NamedTuple):
    """Columns of one kind of file and their names in the tidy table.

    Only rows whose `only` columns have one of these values are kept; the first value is the default of a missing column.
    """

    stem: str
    texts: dict[str, str]
    numbers: dict[str, str]
    only: dict[str, list[str]]


KINDS = {name: FileLayout(**layout) for name, layout in read_packaged(Path(__file__).with_suffix(".yaml")).data.items()}
"""{tidy table: files that give it}"""


def root(path: Path) -> Path | None:
    """Return the folder of the GPUs in a checkout or in a part of one, or None."""
    candidates = (path / "src/aiconfigurator/systems/data", path / "systems/data", path / "data", path)
    return next((c for c in candidates if any(_files(c, kind) for kind in KINDS.values())), None)


def files(root: Path) -> list[Path]:
    """Return all files that are read, sorted."""
    return sorted(path for kind in KINDS.values() for path in _files(root, kind))


def holds(root: Path, name: str) -> bool:
    """Return whether the checkout has the tidy table `name`."""
    return name in KINDS and bool(_files(root, KINDS[name]))


def table(root: Path, name: str) -> pl.DataFrame:
    """Return a tidy table that the checkout has: latency_s (median over versions), low_s, high_s and samples by shape.

    Raises DataError.
    """
    kind = KINDS[name]
    rows = pl.concat([_rows(path, path.relative_to(root).parts[0], kind) for path in _files(root, kind)])
    if not len(rows):
        raise DataError(f"{root}: no row of {kind.stem} can be used; check out a release with its data")
    seconds = pl.col("latency") / 1e3
    keys = ["gpu", *kind.texts.values(), *kind.numbers.values()]
    merged = rows.group_by(keys, maintain_order=True).agg(
        seconds.median().alias("latency_s"),
        seconds.min().alias("low_s"),
        seconds.max().alias("high_s"),
        pl.len().alias("samples"),
    )
    return merged.sort(keys)


def _files(root: Path, kind: FileLayout) -> list[Path]:
    """Return the files of a kind, sorted, of GPUs with a description."""
    below = (*root.glob(f"*/*/*/{kind.stem}.*"), *root.glob(f"*/*/*/*/{kind.stem}.*"))
    return sorted(p for p in below if p.suffix in (".txt", ".parquet") and _known(p.relative_to(root).parts[0]))


def _known(gpu: str) -> bool:
    """Return whether a GPU has a description in `hardware/gpus`."""
    try:
        gpus.load(gpu)
    except UnknownNameError:
        return False  # a board that has no datasheet in `gpus/` cannot be learned from
    return True


def _rows(path: Path, gpu: str, kind: FileLayout) -> pl.DataFrame:
    """Return the rows of a file with the columns of the tidy table, and `latency` in ms."""
    defaults = {name: values[0] for name, values in kind.only.items()}
    frame = read(path, tuple(kind.texts), (*kind.numbers, "latency"), defaults)
    wanted = pl.all_horizontal(pl.lit(True), *(pl.col(name).is_in(values) for name, values in kind.only.items()))
    return frame.filter(wanted & (pl.col("latency") > 0)).select(
        pl.lit(gpu).alias("gpu"),
        *(pl.col(old).alias(new) for old, new in kind.texts.items()),
        *(pl.col(old).cast(pl.Int64).alias(new) for old, new in kind.numbers.items()),
        "latency",
    )
