"""Errors of predictors on measured kernels, and their summaries by class, GPU, data type and size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.errors import InputError, suggest
from clustersim.hardware import gpus
from clustersim.lab.data.samples import Samples, canonical, gpus_of
from clustersim.lab.data.tables import BUSY, PREFIX
from clustersim.lab.train.learner import scalable, with_scalar
from clustersim.model.kernel import Kernel
from clustersim.predictors.base import Predictor
from clustersim.predictors.features import Columns
from clustersim.predictors.learned import Learned

KEYS = {"class": "kind", "dtype": "dtype", "gpu": "gpu", "decile": "decile", "flop-decile": "decile"}
"""{name of a grouping of errors: its column}"""
LARGE = 20e9
"""FLOP above which a kernel counts as large."""


def kernels(table: Columns) -> list[Kernel]:
    """Return the rows of columns as a list of kernels."""
    fields = [getattr(table, name).tolist() for name in Columns.__slots__]
    return [Kernel(*row) for row in zip(*fields, strict=True)]


def ratios(predictor: Predictor, kind: str, samples: Samples) -> Iterator[tuple[Gpu, Floats, Samples]]:
    """Yield (GPU, forecast / measured, samples) of a predictor on one class. Published kernels are without an eager call's
    dispatch."""
    for name, rows in sorted(gpus_of(canonical(samples)).items()):
        gpu, part = gpus.load(name), samples.select(rows)
        alone = not kind.startswith((PREFIX, BUSY))
        yield gpu, predictor.predict(kernels(part.table), gpu, alone) / part.seconds, part


def figures(ratio: Floats, table: Columns) -> dict[str, float]:
    """Return the errors of kernels from their ratios of forecast / measured (row,), with five decimals.

    Keys: mean, median and p90 of the absolute relative error (0.1 for 10 %), large (mean above 20 GFLOP; absent without any) and
    bias (median ratio).
    """
    found = pl.DataFrame({"ratio": ratio, "flop": table.flop}).select(**_kernel_errors()).row(0, named=True)
    return {key: round(value, 5) for key, value in found.items() if value is not None}


def groups(text: str) -> tuple[str, ...]:
    """Return the KEYS in a list such as `class,gpu`; deciles get `class` before them. Raises InputError for an unknown key."""
    keys = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for key in keys:
        if key not in KEYS:
            raise InputError(f"--by {text!r}: {key!r} is not known; {suggest(key, KEYS)}")
    if {"decile", "flop-decile"} <= {*keys}:
        raise InputError("--by takes one kind of decile; write decile (of measured time) or flop-decile")
    return keys if "class" in keys or not {"decile", "flop-decile"} & {*keys} else ("class", *keys)


def judge(predictor: Predictor, samples: Mapping[str, Samples], split: str, scalar: bool = False) -> pl.DataFrame:
    """Return a row for each measured kernel of the classes that `predictor` learned. Raises InputError if it learned none.

    Columns: predictor, kind, gpu, dtype, new (what training had not seen), seconds (measured), flop, ratio (forecast / measured),
    inside (whether the 80 % interval contains it; null without one), scalar (ratio after a measured scalar; null without, and for
    the kernels that set it).
    """
    parts = []
    for kind in (kind for kind in samples if _learned(predictor, kind)):
        for gpu, ratio, part in ratios(predictor, kind, samples[kind]):
            after = scaled(predictor, kind, gpu, part) if scalar else np.full(len(part), np.nan)
            columns = {
                "dtype": pl.Series(part.table.dtype.tolist(), dtype=pl.String),
                "seconds": part.seconds,
                "flop": part.table.flop,
                "ratio": ratio,
                "inside": pl.Series(_inside(predictor, gpu, ratio, part)).fill_nan(None),
                "scalar": pl.Series(after).fill_nan(None),
            }
            news = _news(predictor, kind, gpu.name, split)
            named = {"predictor": predictor.name, "kind": kind, "gpu": gpu.name, "new": news}
            literals = (pl.lit(value).alias(name) for name, value in named.items())
            parts.append(pl.DataFrame(columns).select(*literals, pl.all()))
    if not parts:
        raise InputError(f"{predictor.name}: learned none of the measured classes ({', '.join(samples)})")
    return pl.concat(parts)


def _inside(predictor: Predictor, gpu: Gpu, ratio: Floats, part: Samples) -> Floats:
    """Return 1 where the interval contains 1 / ratio, else 0, NaN without interval (rows,). ratio: forecast / measured."""
    if not isinstance(predictor, Learned):
        return np.full(len(part), np.nan)
    low, high = predictor.interval(kernels(part.table), gpu)
    inside = (low <= 1 / ratio) & (1 / ratio <= high)
    return np.where(np.isfinite(high), inside.astype(np.float64), np.nan)


def scaled(predictor: Predictor, kind: str, gpu: Gpu, part: Samples) -> Floats:
    """Return forecast / measured (row,) after a measured scalar; NaN without, and for the kernels that set it."""
    result = np.full(len(part), np.nan)
    if isinstance(predictor, Learned) and scalable(predictor, kind):
        calibrated, rest = with_scalar(predictor, kind, gpu, part)
        if len(rest):
            [(_, result[rest], _)] = ratios(calibrated, kind, part.select(rest))
    return result


def _learned(predictor: Predictor, kind: str) -> bool:
    """Return whether `judge` includes a class: one that the predictor learned, or a published one if it is a `Learned`."""
    classes = predictor.trained_on()
    if not classes or kind.removeprefix(BUSY) in classes:
        return True
    return kind.startswith(PREFIX) and isinstance(predictor, Learned)


def _news(predictor: Predictor, kind: str, gpu: str, split: str) -> str:
    """Return which part of a kernel class's test data training lacked: the `GPU`, its held-out `kernels`, or `nothing`."""
    classes = predictor.trained_on()
    if not classes:
        return "GPU"
    if kind.startswith(PREFIX) and isinstance(predictor, Learned) and predictor.method.memory:
        return "nothing"  # published rates, which its constants were chosen from
    if gpu not in classes.get(kind.removeprefix(BUSY), ()):
        return "GPU"
    fresh = kind.startswith(BUSY) or (split == "test" and kind.startswith("fp32/"))
    return "kernels" if fresh else "nothing"


def errors(frame: pl.DataFrame, keys: Sequence[str] = ("class", "gpu")) -> Iterator[dict[str, Any]]:
    """Yield the absolute relative errors of each group of judged kernels, 0.1 for 10 %.

    Keys: mean, median, p90, large (mean above 20 GFLOP), bias (median of forecast / measured), samples, coverage (share inside
    the 80 % interval), scalar_mean, scalar_median, scalar_p90, seconds (median of the measured); None if unknown.
    """
    names = ["predictor", *(KEYS[key] for key in keys)]
    found = deciles(frame, keys).group_by(names, maintain_order=True)
    table = found.agg(
        **_kernel_errors(),
        samples=pl.len(),
        coverage=pl.col("inside").mean(),
        **_percentiles("scalar", "scalar_"),
        seconds=pl.col("seconds").median(),
        new=pl.col("new").unique(maintain_order=True).str.join(", "),
    )
    rows = list(table.iter_rows(named=True))
    others = [name for name in names if name != "decile"]
    order = {place: i for i, place in enumerate(dict.fromkeys(tuple(row[name] for name in others) for row in rows))}
    yield from sorted(rows, key=lambda row: (order[tuple(row[name] for name in others)], row.get("decile", 0)))


def _kernel_errors() -> dict[str, pl.Expr]:
    """Return {`mean`, `median`, `p90`, `large`, `bias`: expression} over the columns `ratio` and `flop`, as in `figures`."""
    large = (pl.col("ratio") - 1).abs().filter(pl.col("flop") > LARGE).mean()
    return _percentiles("ratio") | {"large": large, "bias": pl.col("ratio").median()}


def _percentiles(column: str, prefix: str = "") -> dict[str, pl.Expr]:
    """Return {prefix + `mean`, `median`, `p90`: expression of the absolute relative error} of a column of forecast / measured."""
    kept = (pl.col(column) - 1).abs().drop_nulls()
    found = {"mean": kept.mean(), "median": kept.median(), "p90": kept.quantile(0.9, "linear")}
    return {f"{prefix}{key}": value for key, value in found.items()}


def deciles(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the frame with `decile`, 1 to 10 by time or (`flop-decile`) FLOP, within groups by the other `keys`."""
    if not {"decile", "flop-decile"} & {*keys}:
        return frame
    size = "flop" if "flop-decile" in keys else "seconds"
    rest = ["predictor", *(KEYS[key] for key in keys if not key.endswith("decile"))]
    rank = pl.col(size).rank("ordinal").over(rest).cast(pl.Int64) - 1
    return frame.with_columns(decile=rank * 10 // pl.len().over(rest) + 1)
