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


def opened(path: Path | None) -> Weights:
    """Return the weights of a file, or installed ones. Raises DataError if there are none or they are damaged."""
    if path is None and not weights_file.shipped(NAME).is_file():
        raise DataError(
            f"{NAME} ships no weights (35 MB); train them with {REMEDY}, about half an hour, and add --install to run with "
            "them or --out FILE to evaluate them"
        )
    path = path or weights_file.shipped(NAME)
    weights = weights_file.read(path, NAME)
    for name in CLASSES:
        if wrong := _wrong(name, weights.classes.get(name, {})):
            raise DataError(f"{path}: {name} {wrong}; train again with {REMEDY}")
    if "errors" not in weights.meta:
        raise DataError(f"{path}: lacks the errors in the metadata; train again with {REMEDY}")
    return weights


def _wrong(name: str, parameters: Mapping[str, Floats]) -> str | None:
    """Return a message about the first array of a class's parameters that is missing or has a wrong shape, or None."""
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
    if name in PRODUCTS:
        profiled = tiles.unpack(parameters)
        owned = np.isin(profiled.owner, np.arange(len(profiled.boards)))
        if not (len(owned) and owned.all() and (profiled.sides >= 1).all()):
            return "has tiles without sides or GPU"
    return None
