"""Training of `neusight`: vector kernels by least squares in numpy, all other classes in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.hardware import gpus
from clustersim.hardware.constants import LAUNCH
from clustersim.lab.data.samples import Samples, gpus_of
from clustersim.lab.train.dataset import GENERATIONS, WEIGHT, Dataset, dataset, inputs_of, lone, thin
from clustersim.lab.train.ensemble import TrainingBudget, TrainingProgress, initial, minimize, scaling, silent
from clustersim.lab.train.learner import Learner
from clustersim.lab.train.training import learn
from clustersim.model.kernel import gemm as product
from clustersim.predictors.features import Columns, columns
from clustersim.predictors.kinds.neusight import FEW, METHOD, gemm, measured, vector
from clustersim.predictors.kinds.neusight.products import REACH, forecast, parts, shared, speed
from clustersim.predictors.kinds.neusight.vector import SHARES, log_seconds, terms
from clustersim.predictors.mlp import Parameters, forward, standardise
from clustersim.predictors.sums import WIDTH

PATIENCE = 3e-4
"""Seconds below which the weight of a kernel falls: an eager call hides a short kernel behind its dispatch."""
HUBER = 0.1
CYCLES = {"elementwise": (), "softmax": (5000.0, 2500.0, 2000.0, 50.0), "layernorm": (500.0,)}
"""Initial cycles: of a block and a load of long rows, of a block and a load of short ones, and of a load of a norm."""
FIRM = {"share": 1.0, "sharpness": 0.05, "cycles": 0.05, "power": 0.05, "dispatch": 0.02}
"""Strength of the priors, as inverse standard deviations; the errors' weights sum to one. Only element-wise kernels can move the
shares."""


def fit_vectors(name: str, samples: Samples, seed: int, progress: TrainingProgress = silent) -> dict[str, Floats]:
    """Return the parameters of one vector class, (1, size) each, and `dispatch` (s), by least squares. `seed` has no effect."""
    kind, facts = name.partition("/")[2], dataset(samples, terms, PATIENCE)
    begin = start(kind) | {"dispatch": np.full(len(facts.share), np.log(35e-6))}
    firm = FIRM | ({"share": FIRM["dispatch"]} if kind == "elementwise" else {})
    precision = np.concatenate([np.full(value.size, firm[key]) for key, value in begin.items()])
    first, weight = np.concatenate(list(begin.values())), _weight(facts)

    def errors(x: Floats) -> Floats:
        """Return weighted log errors, and the distances from the initial parameters in priors' deviations."""
        return np.concatenate([weight * _misses(_unpack(x, begin), facts), (x - first) * precision])

    found = _unpack(descend(errors, first), begin)
    progress(name, 1, 1)
    dispatch = np.array([float(np.exp(found.pop("dispatch")) @ facts.share)])
    return {key: value[None] for key, value in found.items()} | {"dispatch": dispatch}


def _weight(facts: Dataset) -> Floats:
    """Return the square root of each kernel's weight (rows,): sum 1, each GPU has its `share`, short kernels have less."""
    weight = np.clip(facts.seconds / PATIENCE, 0.02, 1.0) ** 1.5
    own = facts.inputs["gpu"]
    weight *= own @ (facts.share / np.maximum(weight @ own, 1e-30))
    result: Floats = np.sqrt(weight / weight.sum())
    return result


def start(kind: str) -> dict[str, Floats]:
    """Return {parameter: logit or logarithm (size,)} to begin with for `elementwise`, `softmax` or `layernorm` kernels."""
    share = np.array(SHARES)
    return {
        "share": np.log(share / (1 - share)),
        "sharpness": np.log(np.array([3.0])),
        "cycles": np.log(np.array(CYCLES[kind])),
        "power": np.log(np.array([2.0])),
    }


def _unpack(x: Floats, like: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return a vector `x`, all parameters one after the other, as parameters with the names and sizes of `like`."""
    edges = np.cumsum([value.size for value in like.values()])[:-1]
    return dict(zip(like, np.split(x, edges), strict=True))


def _misses(parameters: Mapping[str, Floats], facts: Dataset) -> Floats:
    """Return ln(forecast / measured) of each kernel (rows,), shrunk if large, so that the square is the Huber loss."""
    one = {key: value[None] for key, value in parameters.items()}
    kernel = np.exp(log_seconds(one, facts.inputs)[0])
    dispatch = facts.inputs["gpu"] @ np.exp(parameters["dispatch"])
    error = np.log((dispatch + kernel) / facts.seconds)
    size = np.abs(error)
    robust = np.sign(error) * np.sqrt(np.maximum(2 * HUBER * size - HUBER**2, 0))
    result: Floats = np.where(size < HUBER, error, robust)
    return result


def descend(errors: Callable[[Floats], Floats], x: Floats, steps: int = 60) -> Floats:
    """Return the x (size,) of least sum of squared `errors` near `x`, by at most `steps` Levenberg-Marquardt steps."""
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
"""Rows of each GPU and data type from which shared constants are learned; tables of single GPUs use all rows."""
SPEED = (0.0, 0.1)
"""Prior of the log speed of a GPU and data type, relative to its datasheet."""
DISPATCH = 3e-5


def calibrated(parameters: Parameters, samples: Samples, gpu: Gpu) -> dict[str, Floats]:
    """Return parameters with `speed.GPU.TYPE` of `gpu` set by its measured kernels, one value for each of their data types.

    The speed makes the median of forecast / measured one, and is found by bisection. An eager call includes its dispatch.
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
    """Return the constants that all GPUs share and the GPUs' speeds, named as by `_settled`. name: shown with progress."""
    kinds = np.char.add(np.array(_groups(samples)), samples.table.kind)
    samples = thin(samples, kinds, np.random.default_rng(seed), ROWS)
    kind = gemm.units(str(samples.table.dtype[0]))
    groups = _groups(samples)
    names = sorted(set(groups))
    own = np.array([names.index(group) for group in groups])
    inputs = inputs_of(samples, gemm.terms) | {"gpu": np.eye(len(names))[own]}
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


LEAST, UNSEEN = 128, 0.02
"""Least side of measured products, and the weight of a table's nodes outside of what was measured."""


def fit_own(
    parameters: Parameters, samples: Samples, seed: int, progress: TrainingProgress = silent
) -> dict[str, Floats]:
    """Return {`own.GPU.TYPE.table`: what the model for all GPUs does not explain, `own.GPU.TYPE.speed`} for GEMMs of op `linear`.

    A network smooths what was measured; the table has its forecasts, made to grow with every side.
    """
    samples = samples.of("linear")
    result: dict[str, Floats] = {}
    groups = np.array(_groups(samples))
    for group, gpu in sorted(_boards(samples).items()):
        some = samples.select(groups == group)
        described, target = features(some.table, gpu.sms), _residual(parameters, some, gpu)
        scale, dtype = scaling(described), str(some.table.dtype[0])
        inputs = {"features": standardise(scale, described)}
        begin = initial(1, (described.shape[1], *OWN_PLAN.widths, 1), np.random.default_rng(seed))
        net = minimize(group, begin, _network, inputs, np.exp(target), seed, np.ones(len(target)), OWN_PLAN, progress)
        result[f"own.{group}.table"] = tabulated(partial(_smooth, parameters, scale | net, gpu), dtype)
        result[f"own.{group}.speed"] = speed(parameters, gpu, dtype)
    return result


def tabulated(forecast: Callable[[Columns], Floats], dtype: str) -> Floats:
    """Return the table (even or odd, rows, columns, reduction) that a forecast of log(seconds) gives for a data type."""
    ms, side = measured.ROWS, measured.SIDES
    sides = np.stack(np.meshgrid([0, 1], ms, side, side, indexing="ij"), -1).reshape(-1, 4).astype(int)
    kernels = [product("linear", "forward", dtype, 1, m + odd, n, k, output=WIDTH) for odd, m, n, k in sides.tolist()]
    smooth = forecast(columns(kernels)).reshape(2, len(ms), len(side), len(side))
    rows, own = ((nodes >= LEAST) & (nodes <= most) for nodes, most in ((ms, 32_768), (side, 65_536)))
    weight = np.where(rows[:, None, None] & own[:, None] & own, 1.0, UNSEEN)
    return np.stack([growing(part, weight) for part in smooth])


def growing(values: Floats, weight: Floats, rounds: int = 30) -> Floats:
    """Return the nearest array, by weighted least squares, whose values grow along every axis.

    Dykstra's projections: isotonic regression along each axis in turn, for `rounds` rounds (Boyle and Dykstra, 1986).
    """
    result, left = values, [np.zeros_like(values) for _ in values.shape]
    for _ in range(rounds):
        for axis in range(values.ndim):
            before = result + left[axis]
            result = _growing_along(before, weight, axis)
            left[axis] = before - result
    low, high = result, result
    for axis in range(values.ndim):  # the projections only approach the result: the last step makes it exact
        low = np.maximum.accumulate(low, axis)
        high = np.flip(np.minimum.accumulate(np.flip(high, axis), axis), axis)
    return (low + high) / 2


def _growing_along(values: Floats, weight: Floats, axis: int) -> Floats:
    """Return isotonic regressions along one axis: at i, the maximum over j <= i of the minimum over l >= i of the mean of j to
    l."""
    lines, weights = np.moveaxis(values * weight, axis, 0), np.moveaxis(weight, axis, 0)
    result = np.full(lines.shape, -np.inf)
    for first in range(len(lines)):
        means = np.cumsum(lines[first:], axis=0) / np.cumsum(weights[first:], axis=0)
        least = np.flip(np.minimum.accumulate(np.flip(means, 0), axis=0), 0)
        result[first:] = np.maximum(result[first:], least)
    return np.moveaxis(result, 0, axis)


def features(table: Columns, sms: int) -> Floats:
    """Return the inputs of a network, (kernel, feature): shape, how tiles fill waves on `sms` SMs, and alignment."""
    log, area = np.log2, table.m * table.n * table.batch
    tiles = ((256, 256), (256, 128), (128, 256), (128, 128), (64, 64))
    blocks = [table.batch * np.ceil(table.m / rows) * np.ceil(table.n / columns) for rows, columns in tiles]
    sides = (log(side) for side in (table.batch, table.m, table.n, table.k, area / sms, table.flop / table.bytes))
    fills = (area / (np.ceil(some / sms) * sms * rows * n) for some, (rows, n) in zip(blocks, tiles, strict=True))
    aligned = ((side * table.size % 16 == 0).astype(float) for side in (table.k, table.n))
    return np.stack([*sides, *fills, *aligned, table.m % 2, log(table.size)], axis=1)


def _network(xp: Any, parameters: Parameters, rows: Mapping[str, Any]) -> Any:
    """Return a network's correction of log(seconds), within ±REACH."""
    return REACH * xp.tanh(forward(xp, parameters, rows["features"])[..., 0] / REACH)


def _smooth(parameters: Parameters, net: Parameters, gpu: Gpu, table: Columns) -> Floats:
    """Return log(seconds in a job) of GEMMs (rows,): the model for all GPUs plus the correction of the network `net`."""
    base = np.empty(len(table))
    for rows in parts(table):
        base[rows] = np.log(shared(parameters, table.select(rows), gpu, alone=False)[0])
    result: Floats = base + _network(np, net, {"features": standardise(net, features(table, gpu.sms))})[0]
    return result


def _residual(parameters: Parameters, samples: Samples, gpu: Gpu) -> Floats:
    """Return ln(measured / forecast) of GEMMs (rows,), within ±REACH; an input's cast is subtracted from the measured seconds."""
    result = np.empty(len(samples))
    for rows in parts(samples.table):
        busy, cast = shared(parameters, samples.table.select(rows), gpu, alone=True)
        result[rows] = np.log(np.maximum(samples.seconds[rows] - cast, 0.3 * busy) / busy)
    return np.clip(result, -REACH, REACH)


def _groups(samples: Samples) -> list[str]:
    """Return the GPU's name in its YAML and the data type of each row, such as `h100-sxm.bf16`."""
    names = {name: gpus.load(name).name for name in gpus_of(samples)}
    pairs = zip(samples.gpu.tolist(), samples.table.dtype.tolist(), strict=True)
    return [f"{names[gpu]}.{dtype}" for gpu, dtype in pairs]


def _boards(samples: Samples) -> dict[str, Gpu]:
    """Return {group of `_groups`: GPU}. A GPU of a user's own file is known only by its path."""
    pairs = dict.fromkeys(zip(_groups(samples), samples.gpu.tolist(), strict=True))
    return {group: gpus.load(name) for group, name in pairs}


def _task(kind: str) -> Callable[[Any, Parameters, Mapping[str, Any]], Any]:
    """Return the function (xp, parameters, rows) -> log(seconds) of a GEMM in a table, for matrix units of a kind."""

    def log_seconds(xp: Any, parameters: Parameters, rows: Mapping[str, Any]) -> Any:
        """Return log(seconds) of GEMMs (members, rows), plus a cast for `tensor`, else plus the GPU's dispatch."""
        own = (rows["gpu"] * parameters["gpu.speed"][:, None, :]).sum(-1)
        busy = gemm.log_seconds(xp, parameters, {**rows, "speed": own})
        if kind == "tensor":
            return xp.log(xp.exp(busy) + gemm.quantize(xp, parameters, rows))
        return lone(xp, parameters, rows, busy)

    return log_seconds


def _weights(boards: Mapping[str, Gpu], names: list[str], group: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return weights of rows, and of `names` (sum 1); each generation and type has its WEIGHT. group: index of a row's name."""
    kinds = [boards[name].architecture for name in names]
    family = [f"{GENERATIONS.get(a, a)}.{n.rsplit('.', 1)[1]}" for a, n in zip(kinds, names, strict=True)]
    share = np.array([WEIGHT.get(a, 1.0) / family.count(f) for a, f in zip(kinds, family, strict=True)])
    counts = np.bincount(group, minlength=len(names))
    return share[group] / counts[group], share / share.sum()


def _settled(fitted: Mapping[str, Floats], names: list[str], shares: Floats) -> dict[str, Floats]:
    """Return `fitted` with `gpu.speed` as `speed.GPU.TYPE` and its means `level.TYPE`, `gemm.level`; `dispatch`, `busy` (s)."""
    speeds = fitted["gpu.speed"]
    result = {name: value for name, value in fitted.items() if not name.startswith("gpu.")}
    result |= {f"speed.{name}": speeds[:, [column]] for column, name in enumerate(names)}
    result["gemm.level"] = (speeds @ shares)[:, None]
    for dtype in dict.fromkeys(name.rpartition(".")[2] for name in names):
        those = np.array([name.endswith(f".{dtype}") for name in names])
        result[f"level.{dtype}"] = (speeds[:, those] @ (shares[those] / shares[those].sum()))[:, None]
    dispatch = float((np.exp(fitted["gpu.dispatch"]) @ shares).mean()) if "gpu.dispatch" in fitted else 0.0
    return result | {"dispatch": np.array([dispatch]), "busy": np.array([LAUNCH if dispatch else 0.0])}


FEW_BUDGET = TrainingBudget(members=2, steps=600, rate=3e-2)
TOGETHER = (("fp32/linear", "fp32/bmm"), ("half/linear", "narrow/linear"))
"""Classes that share constants, because the same units run them."""
OWN = ("half/linear", "narrow/linear")
"""Classes with tables for measured GPUs, because their measurements cover the shapes of training."""


def fit(name: str, samples: Samples, seed: int, progress: TrainingProgress = silent) -> dict[str, Floats]:
    """Return {parameter: values} of the class `name`, or of classes that share them, learned from its samples."""
    if name in vector.CLASSES:
        return fit_vectors(name, samples, seed, progress)
    for family in FEW:
        if name in family.CLASSES:
            return _fit_few(name, family, samples, seed, progress)
    return fit_products(name, samples, seed, progress)


def _fit_few(name: str, family: Any, samples: Samples, seed: int, progress: TrainingProgress) -> dict[str, Floats]:
    """Return the constants of attention or grouped GEMMs, and `dispatch` (s). family: module with their formula."""
    facts = dataset(samples, family.terms, patience=2e-5)
    inputs = {key: value for key, value in facts.inputs.items() if key != "gpu"}
    begin = family.start(FEW_BUDGET.members)
    found = minimize(name, begin, family.log_seconds, inputs, facts.seconds, seed, facts.weight, FEW_BUDGET, progress)
    return found | {"dispatch": np.array([LAUNCH])}


LEARNER = Learner(METHOD, fit, together=TOGETHER, own=(OWN, fit_own), calibrate=calibrated)
train = partial(learn, LEARNER)
