"""Finds a predictor by its name."""

from __future__ import annotations

from pathlib import Path

from clustersim.plugins import blaming, load, outside
from clustersim.predictors.base import ROOM, Predictor
from clustersim.predictors.outside import Checked


def get(name: str, weights: Path | None = None) -> Predictor:
    """Return the predictor called `name` in YAML. weights: its weights file; None: the shipped weights.

    Raise UnknownNameError for an unknown name, DataError for missing or damaged weights, and InputError if a plugin fails.
    """
    make = load(ROOM, name, "load")
    with blaming(ROOM, name):
        predictor: Predictor = make(weights) if weights else make()
    if not outside(ROOM, name):
        return predictor
    return Checked(predictor, name)
