"""Why the best of a search is the best: one sentence for each that comes behind it, from where the steps differ."""

from __future__ import annotations

from clustersim.report.terminal import NAMES
from clustersim.sweeps.evaluate import Row
from clustersim.units import seconds

PARTS = ("compute", "tp", "pp", "dp", "ep", "cp", "optimizer", "bubble")
LEAST = 0.002
"""Share of a step from which on a difference is worth a word."""


def why(best: Row, other: Row) -> str:
    """Return how much longer another takes than the best a token, and what it spends more and less on.

    Parts are the means of all ranks, for as many tokens as the best takes in a step.
    """
    scale = (best["global_batch"] * best["seq"]) / (other["global_batch"] * other["seq"])
    more = {part: other.get(f"{part}_s", 0.0) * scale - best.get(f"{part}_s", 0.0) for part in PARTS}
    step = best["step_time_s"]
    slower = other["step_time_s"] * scale / step - 1
    order = sorted((part for part in PARTS if abs(more[part]) > LEAST * step), key=lambda part: -more[part])
    costs = [f"{seconds(more[part])} more {_name(part)}" for part in order if more[part] > 0][:2]
    saves = [f"{seconds(-more[part])} less {_name(part)}" for part in reversed(order) if more[part] < 0][:2]
    said = " and ".join(costs) or "no part stands out"
    against = f", against {' and '.join(saves)}" if saves and costs else ""
    return f"{slower:+.1%} a token: {said}{against}"


def _name(part: str) -> str:
    return NAMES.get(part, part).partition(" (")[0]
