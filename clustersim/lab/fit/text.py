"""What `clustersim lab fit` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clustersim.lab.fit.judge import Errors, GroupErrors
from clustersim.lab.fit.result import PooledFit, contradictions

PUBLISHER_BIAS, GROUP_BIAS = 0.08, 0.04
"""Biases of publishers, and of GPUs and data types, from which on they are named."""


def lines(found: PooledFit) -> Iterator[str]:
    """Yield the lines."""
    publishers = len(found.before.publishers)
    yield f"{len(found.steps):,} steps of {publishers} publishers, each publisher left out of what its steps are forecast with"
    yield ""
    yield f"{'':28}{'mean over publishers':>21}{'median':>9}{'90th':>8}{'bias':>8}"
    yield _errors("as it is", found.before)
    yield _errors("all constants fitted", found.all_fitted)
    yield _errors("those that strangers gain by", found.after)
    yield ""
    yield from _families(found)
    yield ""
    yield f"{'publisher':14}{'steps':>6}{'mean':>8}{'bias':>8}{'fitted':>9}{'bias':>8}"
    for name, one in found.before.publishers.items():
        after = found.all_fitted.publishers[name]
        yield f"{name:14}{one.steps:6}{one.mean:8.1%}{one.bias:+8.1%}{after.mean:9.1%}{after.bias:+8.1%}"
    yield ""
    yield f"{'GPU and data type':28}{'steps':>6}{'mean':>8}{'bias':>8}{'fitted':>9}{'bias':>8}"
    for name, group in found.before.groups.items():
        fitted = found.all_fitted.groups[name]
        yield f"{name:28}{group.steps:6}{group.mean:8.1%}{group.bias:+8.1%}{fitted.mean:9.1%}{fitted.bias:+8.1%}"
    yield ""
    yield _off("publishers", found.before.publishers, PUBLISHER_BIAS)
    yield _off("GPUs and data types", found.before.groups, GROUP_BIAS)
    yield ""
    yield f"{'all constants, fitted to all':48}{'factor':>8}{'± log':>8}"
    for name, (factor, spread) in found.posterior.factors.items():
        yield f"{name:48}{factor:8.3f}{spread:8.3f}"
    for this, other, correlation in found.posterior.alike():
        yield f"{this} and {other} cannot be told apart: their estimates go together by {correlation:+.2f}"
    yield from map(str, contradictions(found.steps))


def _off(what: str, groups: Mapping[str, GroupErrors], most: float) -> str:
    """Return which groups have a larger bias than `most`, the largest first."""
    beyond = sorted((one for one in groups.items() if abs(one[1].bias) > most), key=lambda one: -abs(one[1].bias))
    said = ", ".join(f"{name} {one.bias:+.1%} ({one.steps})" for name, one in beyond)
    return f"{what} with a bias beyond {most:.0%}: {said or 'none'}"


def _errors(title: str, one: Errors) -> str:
    return f"{title:28}{one.mean:21.2%}{one.median:9.2%}{one.p90:8.1%}{one.bias:+8.1%}"


def _families(found: PooledFit) -> Iterator[str]:
    """Yield which families are taken, and why the others are not."""
    for name in found.taken:
        yield f"{name}: fitted, as publishers left out gain by it"
    for one in sorted(found.trials, key=lambda one: one.strangers):
        if one.strangers < one.before:
            gain = f"{one.before - one.strangers:.2%} for publishers left out"
            why = f"{gain}, and nothing without the one that gains most" if one.spared <= 0 else f"no more than {gain}"
        else:
            why = f"publishers left out lose {one.strangers - one.before:.2%}, those in the fit gain {one.before - one.own:.2%}"
        yield f"{one.family}: stays as it is: {why}"
