"""What a plan is asked: how many tokens, until when, for how much, on which clusters."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clustersim.errors import InputError
from clustersim.sweeps.space import Point

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


def amount(option: str, text: str) -> float:
    """Return a number above zero such as `15T`, `300B` or `2.5M`. Raises InputError."""
    match = _NUMBER.fullmatch(text.strip())
    value = float(match[1]) * _SCALE[match[2]] if match else 0.0
    if value <= 0 or value > 1e18:
        raise InputError(f"{option} {text!r}: write a number above 0 such as 15T, 300B or 2.5M")
    return value
