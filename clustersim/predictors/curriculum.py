"""What a predictor learns from which tables, and how its error is measured.

FP32 classes learn from the split `train` (P4, P100, V100, T4, A100-40GB) and are judged on `test`, whose L4, A100-80GB and
H100 no training row comes from. Tensor-core classes learn from all GPUs; their error is measured by leaving a whole
generation out, learning again, and forecasting it. What is learned of one GPU alone is judged on shapes held out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clustersim import gpus
from clustersim.config.gpu import Gpu
from clustersim.errors import DataError
from clustersim.predictors import intervals, tables
from clustersim.predictors.calibration import scalable, with_scalar
from clustersim.predictors.classes import GENERATIONS, MEMORY, SIMT, WEIGHT, pick
from clustersim.predictors.columns import Flags, Floats
from clustersim.predictors.evaluate import canonical, own_samples, ratios, summary, tensor_samples
from clustersim.predictors.intervals import Residuals
from clustersim.predictors.learned import Learned, Method
from clustersim.predictors.resume import resumable
from clustersim.predictors.samples import Samples, gpus_of, join, merge
from clustersim.predictors.sources import Data, digests, left_out, places
from clustersim.predictors.store import Weights
from clustersim.predictors.training import Progress

PER_GPU = 20_000
"""Rows of each GPU and data type that a tensor-core class learns from and is judged on."""
PER_CLASS = 60_000

Classes = Mapping[str, Mapping[str, Floats]]


class Course(NamedTuple):
    """The samples of one class to learn from, and those to be judged on (None: leave a generation out)."""

    learned: Samples
    judged: Samples | None


class Verdict(NamedTuple):
    """Errors of one class by GPU, and the residuals behind them."""

    errors: dict[str, Any]
    residuals: list[Residuals]


def courses(data: Data | Path, seed: int) -> dict[str, Course]:
    """Return what every class learns, without the GPUs that `data` leaves out. Raises DataError for missing tables."""
    train, test = tables.fp32(data, "train"), tables.fp32(data, "test")
    rng = np.random.default_rng(seed)
    result = {name: Course(thin(pick(train, name), rng, PER_CLASS), pick(test, name)) for name in SIMT}
    for name, samples in tensor_samples(data).items():
        groups = np.char.add(np.char.add(samples.gpu, " "), samples.table.dtype)
        rows = [_some(np.flatnonzero(groups == group), rng, PER_GPU) for group in np.unique(groups)]
        result[name] = Course(samples.select(np.sort(np.concatenate([*rows, np.zeros(0, dtype=np.int64)]))), None)
    for name, samples in own_samples(data).items():
        if name in result:
            result[name] = result[name]._replace(learned=join(result[name].learned, samples))
    result = {name: _leave_out(course, data) for name, course in result.items()}
    empty = [name for name, course in result.items() if not len(course.learned)]
    if empty:
        where, out = ", ".join(map(str, places(data))), ", ".join(left_out(data))
        what = f"{', '.join(empty)}{f' without {out}' if out else ''}"
        raise DataError(f"{where}: no measured kernels of {what}; the tables must hold all classes")
    return result


def _leave_out(course: Course, data: Data | Path) -> Course:
    """Return the course without the GPUs to leave out; where no other kernels judge it, theirs do."""
    held = np.isin(canonical(course.learned).gpu, left_out(data))
    judged = course.learned.select(held) if course.judged is None and held.any() else course.judged
    return Course(course.learned.select(~held), judged)


def thin(samples: Samples, rng: np.random.Generator, most: int) -> Samples:
    """Return at most `most` of the samples, drawn at random."""
    return samples.select(_some(np.arange(len(samples)), rng, most))


def _some(rows: Any, rng: np.random.Generator, most: int) -> Any:
    return np.sort(rng.permutation(rows)[:most])


def learn(method: Method, data: Data | Path, seed: int, progress: Progress, scratch: Path | None = None) -> Weights:
    """Return the weights of all classes with their held-out errors in the metadata.

    Finished classes are kept in the folder `scratch`, from which an interrupted training goes on.
    """
    method = resumable(method, scratch)
    plan = courses(data, seed)
    classes: dict[str, dict[str, Floats]] = {MEMORY: memory(plan["fp32/elementwise"].learned)}
    for names in _bundles(method, plan):
        found = method.fit(names[0], merge([plan[name].learned for name in names]), seed, progress)
        classes |= dict.fromkeys(names, found)
    verdicts = {name: _judge(method, classes, name, plan, seed, progress) for name in plan}
    owned = {name: _own(method, classes, name, plan[name], seed, progress) for name in _owners(method, plan)}
    meta = {
        "predictor": method.name,
        "seed": seed,
        "split": "fp32: train, judged on test; tensor: all GPUs, judged with their generation left out",
        "left_out": list(left_out(data)),
        "data": digests(data),
        "learned": {name: {"gpus": _names(c.learned), "rows": len(c.learned)} for name, c in plan.items()},
        "errors": {name: verdict.errors for name, verdict in verdicts.items()},
        "own": {name: verdict.errors for name, verdict in owned.items()},
        "coverage": {name: _coverage(verdict.residuals) for name, verdict in verdicts.items()},
        "intervals": {name: intervals.learned(_residuals(verdicts[name], owned.get(name))) for name in plan},
    }
    return Weights(classes, meta)


def _coverage(residuals: list[Residuals]) -> dict[str, float | None]:
    """Return the coverage of generations left out, with the plain quantiles of the others and as widened."""
    widen = intervals.widening(residuals)
    return {"plain": intervals.coverage(residuals), "widened": intervals.coverage(residuals, widen), "widen": widen}


def _bundles(method: Method, plan: Mapping[str, Course]) -> list[tuple[str, ...]]:
    """Return the classes of `plan`, those that share parameters together."""
    shared = [tuple(name for name in names if name in plan) for names in method.together]
    return [names for names in shared if names] + [(n,) for n in plan if not any(n in names for names in shared)]


def _owners(method: Method, plan: Mapping[str, Course]) -> list[str]:
    return [name for name in method.own[0] if name in plan] if method.own else []


def _own(
    method: Method, classes: dict[str, dict[str, Floats]], name: str, course: Course, seed: int, progress: Progress
) -> Verdict:
    """Add to a class what is learned of each GPU alone, and judge that on shapes held out."""
    assert method.own is not None
    learned, held = canonical(course.learned), held_shapes(course.learned)
    classes[name] = classes[name] | method.own[1](classes[name], learned.select(~held), seed, progress)
    return _verdict(_temporary(method, classes), name, course.learned.select(held), set(_names(course.learned)))


def held_shapes(samples: Samples) -> Flags:
    """Return which samples have a shape that is held out: every fifth, by a hash of m, n and k, the same on all GPUs."""
    table = samples.table
    sides = np.stack([table.m, table.n, table.k]).astype(np.int64)
    result: Flags = (_PRIMES @ sides // 64) % 5 == 0
    return result


_PRIMES = np.array([73_856_093, 19_349_663, 83_492_791])


def memory(samples: Samples) -> dict[str, Floats]:
    """Return the share of the bandwidth that element-wise kernels of 0.3 ms and more reach, and the dispatch (s).

    The median on each GPU, averaged with the weights of the GPUs; a dispatch of 25 us is taken off.
    """
    overhead, shares, weights = 25e-6, [], []
    for name, rows in gpus_of(samples).items():
        gpu, part = gpus.load(name), samples.select(rows & (samples.seconds > 3e-4))
        if len(part):
            shares.append(np.median(part.table.bytes / gpu.memory_bandwidth / (part.seconds - overhead)))
            weights.append(WEIGHT.get(gpu.architecture, 1.0))
    share = float(np.average(shares, weights=weights)) if shares else 0.8
    return {"fraction": np.array(min(1.0, share)), "dispatch": np.array(overhead)}


def _judge(
    method: Method, classes: Classes, name: str, plan: Mapping[str, Course], seed: int, progress: Progress
) -> Verdict:
    course = plan[name]
    if course.judged is not None:
        return _verdict(_temporary(method, classes), name, course.judged, set(_names(course.learned)), method)
    names = next(names for names in _bundles(method, plan) if name in names)
    everything, parts = merge([plan[one].learned for one in names]), []
    for generation, held in _generations(course.learned).items():
        out = np.isin(everything.gpu, np.unique(course.learned.gpu[held]))
        if not out.all():
            label = _labelled(progress, f" without {generation}")
            found = method.fit(names[0], everything.select(~out), seed, label)
            parts.append(
                _verdict(_temporary(method, {**classes, name: found}), name, course.learned.select(held), set(), method)
            )
    return Verdict(
        {k: v for part in parts for k, v in part.errors.items()}, [r for part in parts for r in part.residuals]
    )


def _verdict(predictor: Learned, name: str, samples: Samples, seen: set[str], method: Method | None = None) -> Verdict:
    """Return the errors of a class on samples; with `method`, also those after a few kernels of a new GPU set its speed."""
    errors, residuals = {}, []
    for gpu, ratio, part in ratios(predictor, name, samples):
        row = summary(predictor.name, name, gpu.name, ratio, part.table)
        errors[gpu.name] = _rounded(row) | {"count": row.samples, "unseen": gpu.name not in seen}
        group = GENERATIONS.get(gpu.architecture, gpu.architecture)
        residuals.append(Residuals(group, gpu.name in seen, ratio * part.seconds, 1 / ratio))
        if method and gpu.name not in seen and scalable(predictor, name):
            errors[gpu.name]["scalar"] = _scalar(predictor, name, gpu, part)
        if name.endswith("/linear") and name not in SIMT:
            errors[gpu.name]["wide"] = _wide(method, predictor, name, gpu, part)
    return Verdict(errors, residuals)


def _wide(method: Method | None, predictor: Learned, name: str, gpu: Gpu, samples: Samples) -> dict[str, Any]:
    """Return the errors on products whose sides are all 256 and more, by data type; with one scalar too."""
    table, result = samples.table, {}
    for dtype in np.unique(table.dtype).tolist():
        rows = (np.minimum(np.minimum(table.m, table.n), table.k) >= 256) & (table.dtype == dtype)
        part = samples.select(rows)
        if len(part):
            [(_, ratio, _)] = ratios(predictor, name, part)
            result[dtype] = _rounded(summary(predictor.name, name, gpu.name, ratio, part.table))
            if method and scalable(predictor, name):
                result[dtype]["scalar"] = _scalar(predictor, name, gpu, part)
    return result


def _scalar(predictor: Learned, name: str, gpu: Gpu, samples: Samples) -> dict[str, float]:
    """Return the errors when one scalar for each data type is set by a few kernels, on all the others."""
    calibrated, rest = with_scalar(predictor, name, gpu, samples)
    if not len(rest):
        return {}
    [(_, ratio, part)] = ratios(calibrated, name, samples.select(rest))
    return _rounded(summary(predictor.name, name, gpu.name, ratio, part.table))


def _labelled(progress: Progress, label: str) -> Progress:
    return lambda task, done, total: progress(task + label, done, total)


def _temporary(method: Method, classes: Classes) -> Learned:
    return Learned(method, Weights(classes, {"errors": {}}))


def _residuals(verdict: Verdict, own: Verdict | None) -> list[Residuals]:
    return verdict.residuals + (own.residuals if own else [])


def _rounded(row: Any) -> dict[str, Any]:
    return {
        key: round(value, 5) for key, value in row._asdict().items() if isinstance(value, float) and np.isfinite(value)
    }


def _generations(samples: Samples) -> dict[str, Flags]:
    boards = {name: gpus.load(name).architecture for name in gpus_of(samples)}
    own = {name: GENERATIONS.get(text, text) for name, text in boards.items()}
    return {
        generation: np.isin(samples.gpu, [name for name, one in own.items() if one == generation])
        for generation in dict.fromkeys(own.values())
    }


def _names(samples: Samples) -> list[str]:
    return sorted({gpus.load(name).name for name in gpus_of(samples)})
