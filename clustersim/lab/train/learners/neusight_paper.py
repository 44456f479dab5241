"""Training of `neusight-paper`: every class by its published recipe, judged on the split `test`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.arrays import Floats
from clustersim.errors import InputError
from clustersim.extras import need
from clustersim.hardware import gpus
from clustersim.lab.data import sources, tables
from clustersim.lab.data.samples import Samples, gpus_of, pick
from clustersim.lab.data.sources import Data
from clustersim.lab.evaluate import measure
from clustersim.lab.neusight_paper import (
    GROUPS,
    RECIPES,
    KernelRecords,
    TrainedNetwork,
    described,
    learn,
    profiled,
    records,
)
from clustersim.lab.train.ensemble import TrainingProgress, silent
from clustersim.predictors.kinds.neusight_paper import tiles
from clustersim.predictors.kinds.neusight_paper.predictor import NAME, PRODUCTS, Paper
from clustersim.predictors.weights_file import Weights


def train(
    data: Data | Path, seed: int = 0, progress: TrainingProgress = silent, scratch: Path | None = None
) -> Weights:
    """Return weights of all classes, with their errors on the split `test` in the metadata. `scratch` is not used.

    Raises DataError for missing tables, and InputError for GPUs to leave out, which the published split defines.
    """
    need("torch", "training neusight-paper")
    if sources.left_out(data):
        raise InputError(
            f"{NAME} learns from the published split, which leaves H100, L4 and A100-80GB out; drop --leave-out"
        )
    found = {name: records(data, name) for name in GROUPS}
    outcome = {name: one(name, rows, seed, progress) for name, rows in found.items()}
    return assembled(data, seed, found, outcome)


def one(name: str, rows: KernelRecords, seed: int, progress: TrainingProgress) -> TrainedNetwork:
    """Return one class learned by its published recipe."""
    return learn(name, RECIPES[name], described(rows), rows.samples.seconds, seed, progress)


def assembled(
    data: Data | Path, seed: int, found: Mapping[str, KernelRecords], outcome: Mapping[str, TrainedNetwork]
) -> Weights:
    """Return networks and profiled tiles as weights, judged on the split `test`."""
    classes: dict[str, dict[str, Floats]] = {
        name: result.parameters | (tiles.pack(profiled(found[name])) if name in PRODUCTS else {})
        for name, result in outcome.items()
    }
    seen = {name: sorted(gpus.load(gpu).name for gpu in gpus_of(rows.samples)) for name, rows in found.items()}
    meta: dict[str, Any] = {
        "predictor": NAME,
        "seed": seed,
        "split": "fp32: train, judged on test",
        "data": sources.digests(data),
        "learned": {name: {"gpus": seen[name], "rows": len(rows.samples)} for name, rows in found.items()},
        "validation": {
            name: {"mean": round(result.validation, 5), "epoch": result.epoch, "epochs": result.epochs}
            for name, result in outcome.items()
        },
    }
    paper, test = Paper(Weights(classes, meta)), tables.fp32(data, "test")
    return Weights(classes, meta | {"errors": {name: _errors(paper, name, test, seen[name]) for name in GROUPS}})


def _errors(paper: Paper, name: str, test: Samples, seen: list[str]) -> dict[str, Any]:
    return {
        row.gpu: {k: round(v, 5) for k, v in row._asdict().items() if isinstance(v, float) and np.isfinite(v)}
        | {"count": row.samples, "unseen": row.gpu not in seen}
        for row in measure(paper, name, pick(test, name))
    }
