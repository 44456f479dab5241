"""Reasons why the best of a search is the best: one sentence per runner-up, in the minimized quantity.

A token's cost is that of a step: seconds, or dollars or kWh of all GPUs of the cluster. It is divided over the parts of a step,
as means of all ranks, and over GPUs without a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isclose

from clustersim.optimization.best import SAME, Best
from clustersim.report.terminal import NAMES
from clustersim.sweeps.evaluate import Row, named
from clustersim.units import plural, seconds

REST = 0.25
"""Share of the difference that unnamed parts may have."""


MEASURES = {
    "rent": ("usd_per_1t_tokens", "USD"),
    "owned": ("usd_owned_per_1t_tokens", "USD"),
    "energy": ("kwh_per_1t_tokens", "kWh"),
}
"""{objective: (column of a row that it minimizes, unit)}; others minimize seconds per token, or GPUs."""


def why(best: Row, other: Row, goal: str = "soonest") -> str:
    """Return the excess of a row over the best in the minimized quantity, and the largest differences by part, in words.

    goal: as in `objective`. Seconds are for as many tokens as the best has per step, dollars and kWh for 10^12 tokens.
    """
    if goal == "gpus" and other["ranks"] != best["ranks"]:
        return f"{plural(other['ranks'] - best['ranks'], 'GPU', 'GPUs')} more"
    if goal in MEASURES:
        column, unit = MEASURES[goal]
        first, second = best[column], other[column]
        if not isclose(first, second, rel_tol=SAME):
            text = _difference(_shared(best, first), _shared(other, second), lambda amount: f"{amount:,.0f} {unit}")
            return f"{second / first - 1:+.1%} {unit} a token: {text}, for 10^12 tokens"
    step, tokens = best["step_time_s"], best["global_batch"] * best["seq"]
    longer = other["step_time_s"] * tokens / (other["global_batch"] * other["seq"])
    text = _difference(_parts(best, step), _parts(other, longer), seconds)
    return f"{longer / step - 1:+.1%} a token: {text}"


def _parts(row: Row, amount: float) -> dict[str, float]:
    """Return {part of a step: its share of `amount`}; `amount` is seconds, USD or kWh of the whole step."""
    return {
        name.partition(" (")[0]: row.get(f"{part}_s", 0.0) / row["step_time_s"] * amount for part, name in NAMES.items()
    }


def _shared(row: Row, amount: float) -> dict[str, float]:
    """Return {part of a step, or `idle GPUs` for those without a rank: its share of `amount`}, USD or kWh of the cluster."""
    used = row["ranks"] / row["gpus"]
    return {**_parts(row, amount * used), "idle GPUs": amount * (1 - used)}


def _difference(best: Mapping[str, float], other: Mapping[str, float], said: Callable[[float], str]) -> str:
    """Return in words the parts with more and with less in `other`, largest difference first.

    The parts left out sum to at most REST of the total difference. best, other: {part: amount}. said: text of an amount.
    """
    more = {part: other[part] - seconds for part, seconds in best.items()}
    order = sorted(more, key=lambda part: -abs(more[part]))
    rests = (abs(sum(more[part] for part in order[count:])) for count in range(len(order)))
    enough = next((count for count, rest in enumerate(rests) if rest <= REST * abs(sum(more.values()))), len(order))
    costs = [f"{said(more[part])} more {part}" for part in order[:enough] if more[part] > 0]
    saves = [f"{said(-more[part])} less {part}" for part in order[:enough] if more[part] < 0]
    return f"{_listed(costs)}{', against ' if saves and costs else ''}{_listed(saves)}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def same(best: Best) -> str:
    """Return in words the other values with which a step is equally good; "" for none."""
    rows = (named(point) for point in best.same)
    others = (
        ", ".join(f"{name} {row[name]}" for name in row if str(row[name]) != str(best.row.get(name))) for row in rows
    )
    return f"the same with {' or with '.join(filter(None, others))}" if best.same else ""
