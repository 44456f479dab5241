"""Loads a predictor by its name."""

from __future__ import annotations

from pathlib import Path

from clustersim.plugins import blaming, load, outside
from clustersim.predictors.base import ROOM, Predictor
from clustersim.predictors.outside import Checked


def get(name: str, weights: Path | None = None) -> Predictor:
    """Return the predictor called `name`, with its shipped weights or those of a file.

    Raises UnknownNameError, DataError for missing or damaged weights, and InputError if an outside predictor fails.
    """
    make = load(ROOM, name, "load")
    with blaming(ROOM, name):
        found: Predictor = make(weights) if weights else make()
    if not outside(ROOM, name):
        return found
    return Checked(found, name)
