"""Columns of numbers compared at once. pytest.approx compares each number in Python, which takes longer than many a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def near(found: ArrayLike, wanted: ArrayLike, rel: float, least: float = 0.0, nan_ok: bool = False) -> bool:
    """Return whether all numbers equal the wanted ones as pytest.approx compares: within `rel` of each, or within `least`."""
    mine, its = np.asarray(found, float), np.asarray(wanted, float)
    if mine.shape != its.shape:
        return False
    with np.errstate(invalid="ignore"):  # infinite numbers are near their equals alone
        close = np.isfinite(its) & (np.abs(mine - its) <= np.maximum(rel * np.abs(its), least))
    return bool((close | (mine == its) | (nan_ok & np.isnan(mine) & np.isnan(its))).all())
