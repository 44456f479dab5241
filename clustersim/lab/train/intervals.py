"""Intervals of forecasts, from errors on kernels outside the training data.

Split conformal prediction (Vovk et al., 2005): the 80 % interval is that of measured / forecast between its 10 % and 90 %
quantiles over similar kernels, of the same class and similar length, on GPUs that were measured (`seen`) or not (`new`). Every
generation of GPUs has equal weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.predictors.uncertainty import EDGES, Distance, lookup

LEVELS = (0.1, 0.9)
GENERATIONS = 3
"""Smallest number of generations whose errors on new GPUs count by themselves."""
FEWEST = 200
"""Smallest number of kernels for a quantile of one length; below it, kernels of all lengths count."""


class Residuals(NamedTuple):
    """Seconds of forecasts and measured / forecast of one class on a GPU of generation `group`, `seen` in training or not."""

    group: str
    seen: bool
    forecast: Floats
    ratio: Floats


def quantiles(residuals: Sequence[Residuals]) -> dict[str, Any]:
    """Return {`new`, `seen`: [[low, high] of short, medium and long kernels], `widen`: power}, without empty groups."""
    result: dict[str, Any] = {}
    for name, part in (("new", _new(residuals)), ("seen", [one for one in residuals if one.seen and len(one.ratio)])):
        if part:
            result[name] = [_quantiles(part, size) for size in range(len(EDGES) + 1)]
    return result | {"widen": widening(residuals)} if result else {}


def _new(residuals: Sequence[Residuals]) -> list[Residuals]:
    """Return the residuals of GPUs not trained on, or of all GPUs if those are of fewer than GENERATIONS generations."""
    filled = [one for one in residuals if len(one.ratio)]
    new = [one for one in filled if not one.seen]
    return new if len({one.group for one in new}) >= GENERATIONS else filled


def widening(residuals: Sequence[Residuals]) -> float:
    """Return the power of the quantiles that covers 80 % of a generation left out of them.

    Few generations were measured, so the quantiles of the others alone cover less. Found by bisection between 1/2 and 4.
    """
    low, high = 0.5, 4.0
    for _ in range(20):
        middle = float(np.sqrt(low * high))
        covered = coverage(residuals, middle)
        if covered is None:
            return 1.0
        low, high = (middle, high) if covered < LEVELS[1] - LEVELS[0] else (low, middle)
    return round(float(np.sqrt(low * high)), 3)


def _quantiles(part: Sequence[Residuals], size: int) -> list[float]:
    """Return [low, high] of measured / forecast for lengths of index `size` between EDGES, for all if such kernels are few."""
    masks = [np.searchsorted(EDGES, one.forecast) == size for one in part]
    enough = sum(int(mask.sum()) for mask in masks) >= FEWEST
    picked = [one.ratio[mask] if enough else one.ratio for one, mask in zip(part, masks, strict=True)]
    groups = np.repeat([one.group for one in part], [len(ratios) for ratios in picked])
    _, group_of, counts = np.unique(groups, return_inverse=True, return_counts=True)
    weights = 1 / counts[group_of]
    ends = np.quantile(np.concatenate(picked), LEVELS, weights=weights, method="inverted_cdf")
    return [float(f"{end:.4g}") for end in ends]


def coverage(residuals: Sequence[Residuals], widen: float = 1.0) -> float | None:
    """Return the mean share of kernels inside the interval from all other generations' residuals; None with one generation."""
    new = _new(residuals)
    names = list(dict.fromkeys(one.group for one in new))
    if len(names) < 2:
        return None
    return round(float(np.mean([_covered(new, name, widen) for name in names])), 3)


def _covered(new: Sequence[Residuals], name: str, widen: float) -> float:
    """Return the share of generation `name`'s kernels inside the interval of the others, its ends raised to the power `widen`."""
    others = [one for one in new if one.group != name]
    table = {"new": [_quantiles(others, size) for size in range(len(EDGES) + 1)], "widen": widen}
    inside = []
    for one in (one for one in new if one.group == name):
        low, high = lookup(table, one.forecast, Distance("", 0.0))
        inside.append((one.ratio >= low) & (one.ratio <= high))
    return float(np.concatenate(inside).mean())
