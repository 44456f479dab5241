"""Weights of the published predictor: learned from a data folder, or read and checked from a file."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from clustersim import gpus
from clustersim.errors import DataError, InputError
from clustersim.predictors import sources, store, tables
from clustersim.predictors.classes import pick
from clustersim.predictors.columns import Floats
from clustersim.predictors.evaluate import measure
from clustersim.predictors.neusight_paper import tiles
from clustersim.predictors.neusight_paper.predictor import NAME, Paper
from clustersim.predictors.neusight_paper.recipe import RECIPES, Learned, learn
from clustersim.predictors.neusight_paper.records import GROUPS, PRODUCTS, Records, described, profiled, records
from clustersim.predictors.neusight_paper.wave import WIDTHS
from clustersim.predictors.samples import Samples, gpus_of
from clustersim.predictors.sources import Data
from clustersim.predictors.store import Weights
from clustersim.predictors.training import Progress

REMEDY = f"`clustersim predictor train {NAME} --data DIR`"


def learned(data: Data | Path, seed: int, progress: Progress) -> Weights:
    """Return weights of all classes with their errors on the split `test` in the metadata. Raises DataError."""
    if sources.left_out(data):
        raise InputError(
            f"{NAME} learns from the published split, which leaves H100, L4 and A100-80GB out; drop --leave-out"
        )
    found = {name: records(data, name) for name in GROUPS}
    outcome = {name: one(name, rows, seed, progress) for name, rows in found.items()}
    return assembled(data, seed, found, outcome)


def one(name: str, rows: Records, seed: int, progress: Progress) -> Learned:
    """Return one class learned by its published recipe."""
    return learn(name, RECIPES[name], described(rows), rows.samples.seconds, seed, progress)


def assembled(data: Data | Path, seed: int, found: Mapping[str, Records], outcome: Mapping[str, Learned]) -> Weights:
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


def opened(path: Path | None) -> Weights:
    """Return the weights of a file, or of those installed. Raises DataError when there are none, or damaged ones."""
    if path is None and not store.shipped(NAME).is_file():
        raise DataError(
            f"{NAME} ships no weights (35 MB); train them with {REMEDY}, about half an hour, and add --install to run with "
            "them or --out FILE to evaluate them"
        )
    path = path or store.shipped(NAME)
    weights = store.read(path, NAME)
    for name in GROUPS:
        if wrong := _wrong(name, weights.classes.get(name, {})):
            raise DataError(f"{path}: {name} {wrong}; train again with {REMEDY}")
    if "errors" not in weights.meta:
        raise DataError(f"{path}: lacks the errors in the metadata; train again with {REMEDY}")
    return weights


def _wrong(name: str, parameters: Mapping[str, Floats]) -> str | None:
    """Return what is wrong with the parameters of a class: an array that is missing or of another shape."""
    wanted: dict[str, tuple[int | None, ...]] = {}
    for index, (before, after) in enumerate(pairwise(WIDTHS)):
        wanted |= {f"mlp.{index}.weight": (1, before, after), f"mlp.{index}.bias": (1, 1, after)}
    if name in PRODUCTS:
        rows = len(parameters.get("tiles.owner", ()))
        wanted |= {
            "tiles.shapes": (rows, 4),
            "tiles.sides": (rows, 2),
            "tiles.owner": (rows,),
            "tiles.boards": (None, 5),
        }
    for key, shape in wanted.items():
        found = parameters[key].shape if key in parameters else None
        if (
            found is None
            or len(found) != len(shape)
            or any(w not in (None, f) for w, f in zip(shape, found, strict=True))
        ):
            return f"lacks {key}" if found is None else f"has {key} of another shape"
    return "has tiles without sides or GPU" if name in PRODUCTS and not _whole(tiles.unpack(parameters)) else None


def _whole(found: tiles.Tiles) -> bool:
    owners = np.isin(found.owner, np.arange(len(found.boards)))
    return bool(len(found.owner) and owners.all() and (found.sides >= 1).all())
