"""Learning the few parameters of vector kernels: least squares in logarithms, in numpy, without chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.extras import need
from clustersim.hardware import gpus
from clustersim.hardware.constants import LAUNCH
from clustersim.lab.data.samples import Samples
from clustersim.lab.data.sources import Data
from clustersim.lab.train.dataset import GENERATIONS, WEIGHT, Dataset, dataset
from clustersim.lab.train.ensemble import TrainingBudget, TrainingProgress, initial, minimize, scaling, silent
from clustersim.lab.train.learner import Learner
from clustersim.lab.train.training import learn
from clustersim.predictors.kinds.neusight import FEW, METHOD, gemm, vector
from clustersim.predictors.kinds.neusight.products import REACH, bounded, forecast, parts, shared
from clustersim.predictors.kinds.neusight.vector import SHARES, log_seconds, terms
from clustersim.predictors.mlp import Parameters, forward, standardise
from clustersim.predictors.weights_file import Weights

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


def fit_vectors(name: str, samples: Samples, seed: int, progress: TrainingProgress = silent) -> dict[str, Floats]:
    """Return the parameters of one vector class, (1, size) each, and `dispatch` (s); `seed` changes nothing."""
    kind, facts = name.partition("/")[2], dataset(samples, terms, PATIENCE)
    found = solve(problem(kind, facts))
    progress(name, 1, 1)
    dispatch = np.array([float(np.exp(found.pop("dispatch")) @ facts.share)])
    return {key: value[None] for key, value in found.items()} | {"dispatch": dispatch}


def problem(kind: str, facts: Dataset) -> Problem:
    """Return the least-squares problem of a class: each GPU with its share of the weight."""
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


BUDGET = TrainingBudget(members=1, steps=800)
OWN_PLAN = TrainingBudget(members=1, widths=(128, 128), steps=8000, decay=1e-3)
ROWS = 3000
"""Rows of each GPU and data type that the constants are learned from; networks of single GPUs take all there are."""
SPEED = (0.0, 0.1)
"""Prior of the log speed of a GPU and data type, relative to what its datasheet promises."""
DISPATCH = 3e-5


def calibrated(parameters: Parameters, samples: Samples, gpu: Gpu) -> dict[str, Floats]:
    """Return parameters with the speed of `gpu` set by a few measured kernels: one number for each data type among them.

    The speed at which the median of forecast / measured is one, found by halving. A call by itself takes its dispatch too.
    """
    result, dispatch = dict(parameters), float(parameters["dispatch"].ravel()[0])
    for dtype in dict.fromkeys(samples.table.dtype.tolist()):
        part, name = samples.select(samples.table.dtype == dtype), f"speed.{gpu.name}.{dtype}"
        low, high = -1.0, 1.0
        for _ in range(20):
            result[name] = np.full((1, 1), (low + high) / 2)
            slow = np.median((dispatch + forecast(result, part.table, gpu, alone=True)) / part.seconds) > 1
            low, high = (low + (high - low) / 2, high) if slow else (low, low + (high - low) / 2)
    return result


def fit_products(name: str, samples: Samples, seed: int, progress: TrainingProgress = silent) -> dict[str, Floats]:
    """Return the constants that all GPUs share and the speed of each, learned in torch."""
    samples = _some(samples, seed)
    kind = gemm.units(str(samples.table.dtype[0]))
    groups = _groups(samples)
    names = sorted(set(groups))
    own = np.array([names.index(group) for group in groups])
    inputs = _inputs(samples) | {"gpu": np.eye(len(names))[own]}
    begin = gemm.start(BUDGET.members, kind) | {"gpu.speed": np.zeros((BUDGET.members, len(names)))}
    prior = gemm.prior(kind) | {"gpu.speed": SPEED}
    if kind == "simt":
        begin |= {"gpu.dispatch": np.full((BUDGET.members, len(names)), np.log(DISPATCH))}
    weight, shares = _weights(_boards(samples), names, own)
    weight = weight * np.clip(samples.seconds / (2e-5 if kind == "tensor" else 1e-4), 0.1, 1.0)
    found = minimize(
        name, begin, _task(kind), inputs, samples.seconds, seed, weight / weight.mean(), BUDGET, progress, prior
    )
    return _settled(found, names, shares)


def fit_own(
    parameters: Parameters, samples: Samples, seed: int, progress: TrainingProgress = silent
) -> dict[str, Floats]:
    """Return a network for each GPU and data type of the samples: what it does that the model for all GPUs does not say."""
    samples = samples.of("linear")
    if not len(samples):
        return {}
    everything = _inputs(samples, "features")["features"]
    scale = scaling(np.asarray(everything, dtype=np.float64))
    result: dict[str, Floats] = dict(scale)
    groups = np.array(_groups(samples))
    for group, gpu in sorted(_boards(samples).items()):
        rows = groups == group
        target = _residual(parameters, samples.select(rows), gpu)
        inputs = {"features": standardise(scale, everything[rows])}
        begin = initial(1, (inputs["features"].shape[1], *OWN_PLAN.widths, 1), np.random.default_rng(seed))
        net = minimize(group, begin, _network, inputs, np.exp(target), seed, np.ones(len(target)), OWN_PLAN, progress)
        result |= {f"own.{group}.{key}": value for key, value in net.items()}
    return result


def _network(xp: Any, parameters: Parameters, rows: Mapping[str, Any]) -> Any:
    return bounded(xp, forward(xp, parameters, rows["features"])[..., 0])


def _residual(parameters: Parameters, samples: Samples, gpu: Gpu) -> Floats:
    """Return log(measured / forecast) of products, without the cast that a table holds beside them."""
    result = np.empty(len(samples))
    for rows in parts(samples.table):
        busy, cast = shared(parameters, samples.table.select(rows), gpu, alone=True)
        result[rows] = np.log(np.maximum(samples.seconds[rows] - cast, 0.3 * busy) / busy)
    return np.clip(result, -REACH, REACH)


def _groups(samples: Samples) -> list[str]:
    names = {name: gpus.load(name).name for name in dict.fromkeys(samples.gpu.tolist())}
    return [
        f"{names[gpu]}.{dtype}" for gpu, dtype in zip(samples.gpu.tolist(), samples.table.dtype.tolist(), strict=True)
    ]


def _boards(samples: Samples) -> dict[str, Gpu]:
    """Return the GPU of each group; that of a user's own file is known by its path alone."""
    pairs = dict.fromkeys(zip(_groups(samples), samples.gpu.tolist(), strict=True))
    return {group: gpus.load(name) for group, name in pairs}


def _some(samples: Samples, seed: int) -> Samples:
    """Return at most ROWS samples of each GPU, kind and data type, drawn at random."""
    rng, groups = np.random.default_rng(seed), np.char.add(np.array(_groups(samples)), samples.table.kind)
    picked = [rng.permutation(np.flatnonzero(groups == group))[:ROWS] for group in np.unique(groups)]
    return samples.select(np.sort(np.concatenate(picked)))


def _inputs(samples: Samples, *only: str) -> dict[str, Floats]:
    """Return the terms of samples, GPU by GPU; `only`: features, without the grid of candidates."""
    inputs: dict[str, Floats] = {}
    for name in dict.fromkeys(samples.gpu.tolist()):
        rows, gpu = samples.gpu == name, gpus.load(name)
        part = samples.table.select(rows)
        found = {"features": gemm.features(part, gpu.sms)} if only else gemm.terms(part, gpu)
        for key, value in found.items():
            inputs.setdefault(key, np.zeros((len(samples), *value.shape[1:]), dtype=np.float32))[rows] = value
    return inputs


def _task(kind: str) -> Callable[[Any, Parameters, Mapping[str, Any]], Any]:
    def log_seconds(xp: Any, parameters: Parameters, rows: Mapping[str, Any]) -> Any:
        own = (rows["gpu"] * parameters["gpu.speed"][:, None, :]).sum(-1)
        busy = gemm.log_seconds(xp, parameters, {**rows, "speed": own})
        if kind == "tensor":
            return xp.log(xp.exp(busy) + gemm.quantize(xp, parameters, rows))
        dispatch = (rows["gpu"] * xp.exp(parameters["gpu.dispatch"])[:, None, :]).sum(-1)
        return xp.log(dispatch + xp.exp(busy))

    return log_seconds


def _weights(boards: Mapping[str, Gpu], names: list[str], own: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the weight of each row, and of each GPU and data type: generations count equally, similar GPUs share."""
    kinds = [boards[name].architecture for name in names]
    family = [f"{GENERATIONS.get(a, a)}.{n.rsplit('.', 1)[1]}" for a, n in zip(kinds, names, strict=True)]
    share = np.array([WEIGHT.get(a, 1.0) / family.count(f) for a, f in zip(kinds, family, strict=True)])
    counts = np.bincount(own, minlength=len(names))
    return share[own] / counts[own], share / share.sum()


def _settled(found: Mapping[str, Floats], names: list[str], shares: Floats) -> dict[str, Floats]:
    """Return parameters for forecasts: speeds by the names of their GPUs, and their weighted mean for all others."""
    speeds = found["gpu.speed"]
    result = {name: value for name, value in found.items() if not name.startswith("gpu.")}
    result |= {f"speed.{name}": speeds[:, [column]] for column, name in enumerate(names)}
    result["gemm.level"] = (speeds @ shares)[:, None]
    for dtype in dict.fromkeys(name.rpartition(".")[2] for name in names):
        those = np.array([name.endswith(f".{dtype}") for name in names])
        result[f"level.{dtype}"] = (speeds[:, those] @ (shares[those] / shares[those].sum()))[:, None]
    dispatch = float((np.exp(found["gpu.dispatch"]) @ shares).mean()) if "gpu.dispatch" in found else 0.0
    return result | {"dispatch": np.array([dispatch]), "busy": np.array([LAUNCH if dispatch else 0.0])}


FEW_BUDGET = TrainingBudget(members=2, steps=600, rate=3e-2)
TOGETHER = (("fp32/linear", "fp32/bmm"), ("half/linear", "narrow/linear"))
"""Classes that one set of constants forecasts: the same units run them."""
OWN = ("half/linear", "narrow/linear")
"""Classes of which a measured GPU gets a network of its own: their tables cover the shapes of training."""


def fit(name: str, samples: Samples, seed: int, progress: TrainingProgress = silent) -> dict[str, Floats]:
    """Return the parameters of one class, or of classes that share them, learned from its samples."""
    if name in vector.CLASSES:
        return fit_vectors(name, samples, seed, progress)
    for family in FEW:
        if name in family.CLASSES:
            return _fit_few(name, family, samples, seed, progress)
    return fit_products(name, samples, seed, progress)


def _fit_few(name: str, family: Any, samples: Samples, seed: int, progress: TrainingProgress) -> dict[str, Floats]:
    facts = dataset(samples, family.terms, patience=2e-5)
    inputs = {key: value for key, value in facts.inputs.items() if key != "gpu"}
    begin = family.start(FEW_BUDGET.members)
    found = minimize(name, begin, family.log_seconds, inputs, facts.seconds, seed, facts.weight, FEW_BUDGET, progress)
    return found | {"dispatch": np.array([LAUNCH])}


LEARNER = Learner(METHOD, fit, together=TOGETHER, own=(OWN, fit_own), calibrate=calibrated)


def train(
    data: Data | Path, seed: int = 0, progress: TrainingProgress = silent, scratch: Path | None = None
) -> Weights:
    """Return weights learned from measured kernels; `scratch` makes it resumable. Raises DataError for what is missing."""
    need("torch", "training neusight")
    return learn(LEARNER, data, seed, progress, scratch)
