"""Reads and checks the weights of the published predictor."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from clustersim.arrays import Floats
from clustersim.errors import DataError
from clustersim.predictors import weights_file
from clustersim.predictors.kinds.neusight_paper import tiles
from clustersim.predictors.kinds.neusight_paper.predictor import CLASSES, NAME, PRODUCTS
from clustersim.predictors.kinds.neusight_paper.wave import WIDTHS
from clustersim.predictors.weights_file import Weights

REMEDY = f"`clustersim lab train {NAME} --data DIR`"
"""Command that creates the weights."""


def opened(path: Path | None) -> Weights:
    """Return the weights in a file; None: installed ones. Raise DataError if there are none or they are damaged."""
    if path is None and not weights_file.shipped(NAME).is_file():
        raise DataError(
            f"{NAME} ships no weights (35 MB); train them with {REMEDY}, about half an hour, and add --install to run with "
            "them or --out FILE to evaluate them"
        )
    path = path or weights_file.shipped(NAME)
    weights = weights_file.read(path, NAME)
    for name in CLASSES:
        if wrong := _defect(name, weights.classes.get(name, {})):
            raise DataError(f"{path}: {name} {wrong}; train again with {REMEDY}")
    if "errors" not in weights.meta:
        raise DataError(f"{path}: lacks the errors in the metadata; train again with {REMEDY}")
    return weights


def _defect(name: str, parameters: Mapping[str, Floats]) -> str | None:
    """Return in words what is wrong with the parameters of class `name`; None if nothing is. The first array that is missing or
    has a wrong shape is named."""
    expected: dict[str, tuple[int | None, ...]] = {}
    for index, (inputs, outputs) in enumerate(pairwise(WIDTHS)):
        expected |= {f"mlp.{index}.weight": (1, inputs, outputs), f"mlp.{index}.bias": (1, 1, outputs)}
    if name in PRODUCTS:
        rows = len(parameters.get("tiles.owner", ()))
        expected |= {
            "tiles.shapes": (rows, 4),
            "tiles.sides": (rows, 2),
            "tiles.owner": (rows,),
            "tiles.boards": (None, 5),
        }
    for key, shape in expected.items():
        actual = parameters[key].shape if key in parameters else None
        if (
            actual is None
            or len(actual) != len(shape)
            or any(w not in (None, f) for w, f in zip(shape, actual, strict=True))
        ):
            return f"lacks {key}" if actual is None else f"has {key} of another shape"
    if name in PRODUCTS:
        profiled = tiles.unpack(parameters)
        owned = np.isin(profiled.owner, np.arange(len(profiled.boards)))
        if not (len(owned) and owned.all() and (profiled.sides >= 1).all()):
            return "has tiles without sides or GPU"
    return None
