"""Comparison of published memory peaks with simulated ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from clustersim.errors import ConfigError, InputError, shown
from clustersim.validate.evaluate import Outcome
from clustersim.validate.runs import by_column, table

REQUIRED = ("id", "allocated_gib")
"""Columns that the file must have."""


def compare(path: Path, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the numbers of `peaks` in a CSV and of `compared` ones, `runs` (`_row`), and `mean_error`, `worst_error`, `bias`.

    Errors are fractions of the measured peak, None without a compared one. path: CSV of id and allocated GiB of the GPU that
    needs most. Raises InputError for errors in it, or without a known id.
    """
    by_id = {outcome["id"]: outcome for outcome in outcomes}
    measured = read(path, by_id)
    rows = [_row(by_id[name], value) for name, value in measured.items() if name in by_id]
    compared = [row for row in rows if row["error"] is not None]
    size = sorted(abs(row["error"]) for row in compared)
    return {
        "peaks": len(measured),
        "compared": len(compared),
        "mean_error": sum(size) / len(size) if size else None,
        "worst_error": size[-1] if size else None,
        "bias": sum(row["error"] for row in compared) / len(compared) if compared else None,
        "runs": rows,
    }


def read(path: Path, runs: Collection[str]) -> dict[str, float]:
    """Return {id: measured GiB}. Raises InputError for errors in the file, or if it shares no id with `runs`, the ids."""
    peaks: dict[str, float] = {}
    for line, row in table(path, REQUIRED):
        cells = by_column(path, line, row)
        try:
            value = float(cells["allocated_gib"])
        except ValueError:
            value = float("nan")
        if not 0 < value < 1e6:
            what = f"allocated_gib: {shown(cells['allocated_gib'])} is not GiB above 0"
            raise ConfigError(str(path), line, 1, what)
        if cells["id"] in peaks:
            raise ConfigError(str(path), line, 1, f"id: {shown(cells['id'])} stands above already; keep one")
        peaks[cells["id"]] = value
    if not peaks.keys() & set(runs):
        raise InputError(f"{path}: none of its ids is one of the runs; give the file of those runs too")
    return peaks


def _row(outcome: Mapping[str, Any], measured: float) -> dict[str, Any]:
    """Return {id, model, measured_gib, predicted_gib, error, reason} of a run's peak. measured: GiB.

    predicted_gib: `allocated_gib` of the outcome. error: predicted / measured - 1, None without a forecast.
    """
    forecast = outcome["allocated_gib"]
    return {
        "id": outcome["id"],
        "model": outcome["model"],
        "measured_gib": measured,
        "predicted_gib": forecast,
        "error": None if forecast is None else forecast / measured - 1,
        "reason": outcome["reason"],
    }
