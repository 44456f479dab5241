"""Learning the few parameters of vector kernels: least squares in logarithms, in numpy, without chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.lab.data.samples import Samples
from clustersim.lab.train.dataset import Dataset, dataset
from clustersim.lab.train.ensemble import TrainingProgress, silent
from clustersim.predictors.kinds.neusight.vector import SHARES, log_seconds, terms

PATIENCE = 3e-4
"""Seconds below which a kernel counts less: an eager call hides a short kernel behind its dispatch."""
HUBER = 0.1
CYCLES = {"elementwise": (), "softmax": (5000.0, 2500.0, 2000.0, 50.0), "layernorm": (500.0,)}
"""Cycles to begin with: of a block and a load of long rows, of a block and a load of short ones; a load of a norm."""
FIRM = {"share": 1.0, "sharpness": 0.05, "cycles": 0.05, "power": 0.05, "dispatch": 0.02}
"""How firmly parameters stay where they begin, as inverse standard deviations; the errors' weights sum to one. Shares are
those of element-wise kernels, which alone are free to move them."""


class Problem(NamedTuple):
    """Samples of one class with the weight of each, and where the parameters begin."""

    facts: Dataset
    weight: Floats
    begin: Mapping[str, Floats]
    firm: Floats


def fit(name: str, samples: Samples, seed: int, progress: TrainingProgress = silent) -> dict[str, Floats]:
    """Return the parameters of one vector class, (1, size) each, and `dispatch` (s); `seed` changes nothing."""
    kind, facts = name.partition("/")[2], dataset(samples, terms, PATIENCE)
    found = solve(problem(kind, facts))
    progress(name, 1, 1)
    dispatch = np.array([float(np.exp(found.pop("dispatch")) @ facts.share)])
    return {key: value[None] for key, value in found.items()} | {"dispatch": dispatch}


def problem(kind: str, facts: Dataset) -> Problem:
    """Return what is learned: each GPU with its share of the weight."""
    weight = np.clip(facts.seconds / PATIENCE, 0.02, 1.0) ** 1.5
    own = facts.inputs["gpu"]
    weight *= own @ (facts.share / np.maximum(weight @ own, 1e-30))
    begin = start(kind) | {"dispatch": np.full(len(facts.share), np.log(35e-6))}
    firm = FIRM | ({"share": FIRM["dispatch"]} if kind == "elementwise" else {})
    precision = np.concatenate([np.full(value.size, firm[key]) for key, value in begin.items()])
    return Problem(facts, np.sqrt(weight / weight.sum()), begin, precision)


def start(kind: str) -> dict[str, Floats]:
    """Return the parameters of one kind to begin with."""
    share = np.array(SHARES)
    return {
        "share": np.log(share / (1 - share)),
        "sharpness": np.log(np.array([3.0])),
        "cycles": np.log(np.array(CYCLES[kind])),
        "power": np.log(np.array([2.0])),
    }


def solve(task: Problem) -> dict[str, Floats]:
    """Return the parameters of least weighted squares."""
    begin = np.concatenate(list(task.begin.values()))

    def errors(x: Floats) -> Floats:
        return np.concatenate([_misses(_unpack(x, task.begin), task), (x - begin) * task.firm])

    return _unpack(descend(errors, begin), task.begin)


def _unpack(x: Floats, like: Mapping[str, Floats]) -> dict[str, Floats]:
    edges = np.cumsum([value.size for value in like.values()])[:-1]
    return dict(zip(like, np.split(x, edges), strict=True))


def _misses(parameters: Mapping[str, Floats], task: Problem) -> Floats:
    one = {key: value[None] for key, value in parameters.items()}
    kernel = np.exp(log_seconds(one, task.facts.inputs)[0])
    dispatch = task.facts.inputs["gpu"] @ np.exp(parameters["dispatch"])
    error = np.log((dispatch + kernel) / task.facts.seconds)
    size = np.abs(error)
    robust = np.sign(error) * np.sqrt(np.maximum(2 * HUBER * size - HUBER**2, 0))
    result: Floats = task.weight * np.where(size < HUBER, error, robust)
    return result


def descend(errors: Callable[[Floats], Floats], x: Floats, steps: int = 60) -> Floats:
    """Return a minimum of |errors(x)|² near `x`: Levenberg-Marquardt with differences for derivatives."""
    now, damping = errors(x), 1e-2
    for _ in range(steps):
        slopes = np.stack([(errors(x + step) - now) / 1e-4 for step in 1e-4 * np.eye(len(x))], axis=1)
        normal, gradient = slopes.T @ slopes, slopes.T @ now
        better = None
        while better is None and damping < 1e6:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            then = errors(x + step)
            better = then if then @ then < now @ now else None
            damping = damping * 4 if better is None else max(damping / 3, 1e-6)
        if better is None:
            break
        gain = 1 - (better @ better) / (now @ now)
        x, now = x + step, better
        if gain < 1e-7:
            break
    return x
