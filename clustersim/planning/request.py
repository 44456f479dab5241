"""What a plan is asked: how many tokens, until when, for how much, on which clusters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from clustersim.errors import InputError, option
from clustersim.sweeps.space import Point

TOPOLOGY = "rail_optimized"
"""The topology whose nodes are counted anew where nobody names one."""
_SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_NUMBER = re.compile(r"([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([kMBGT]?)")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One training run."""

    tokens: float
    """Of the whole run."""
    days: float | None
    """In which it must be over."""
    budget: float | None
    """USD that it may cost."""
    candidates: tuple[Point, ...]
    """Keys of a topology, one mapping a kind of cluster; nodes are found."""
    asynchronous: bool = True
    """Checkpoints are written while the next steps run."""


def plan_request(
    tokens: float,
    days: float | None,
    budget: float | None,
    fixed: Point,
    axes: Mapping[str, Sequence[object]],
    blocking: bool,
) -> PlanRequest:
    """Return a request for every combination of the values of a cluster's keys. fixed: keys that are the same for all.

    Raises InputError where neither a deadline nor a budget bounds it.
    """
    if days is None and budget is None:
        limits = f"{option('--days', 'days=')}, {option('--budget', 'budget=')}"
        raise InputError(f"nothing bounds the plan; give {limits}, or both")
    kinds = tuple({**fixed, **dict(zip(axes, values, strict=True))} for values in product(*axes.values()))
    return PlanRequest(tokens, days, budget, kinds, not blocking)


def amount(flag: str, text: str) -> float:
    """Return a number above zero such as `15T`, `300B` or `2.5M`. Raises InputError."""
    match = _NUMBER.fullmatch(text.strip())
    value = float(match[1]) * _SCALE[match[2]] if match else 0.0
    if value <= 0 or value > 1e18:
        raise InputError(f"{flag} {text!r}: write a number above 0 such as 15T, 300B or 2.5M")
    return value
