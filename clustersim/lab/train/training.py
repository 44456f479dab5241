"""Training a predictor: every class from its split of the measured kernels, with its held-out errors and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.hardware import gpus
from clustersim.lab.data.samples import Samples, canonical, gpus_of, merge
from clustersim.lab.data.sources import Data, digests, left_out
from clustersim.lab.evaluate import ratios, summary
from clustersim.lab.train import intervals
from clustersim.lab.train.calibration import scalable, with_scalar
from clustersim.lab.train.dataset import GENERATIONS, WEIGHT
from clustersim.lab.train.ensemble import TrainingProgress
from clustersim.lab.train.intervals import Residuals
from clustersim.lab.train.learner import Learner
from clustersim.lab.train.resume import resumable
from clustersim.lab.train.splits import Split, generations, held_shapes, splits
from clustersim.predictors.classes import MEMORY, SIMT
from clustersim.predictors.learned import Learned
from clustersim.predictors.weights_file import Weights

WeightsByClass = Mapping[str, Mapping[str, Floats]]


class HeldOut(NamedTuple):
    """Errors of one class by GPU on kernels that were held out, and the residuals behind them."""

    errors: dict[str, Any]
    residuals: list[Residuals]


def learn(
    learner: Learner, data: Data | Path, seed: int, progress: TrainingProgress, scratch: Path | None = None
) -> Weights:
    """Return the weights of all classes with their held-out errors in the metadata.

    Finished classes are kept in the folder `scratch`, from which an interrupted training goes on.
    """
    learner, plan = resumable(learner, scratch), splits(data, seed)
    classes: dict[str, dict[str, Floats]] = {MEMORY: memory(plan["fp32/elementwise"].train)}
    for names in _bundles(learner, plan):
        found = learner.fit(names[0], merge([plan[name].train for name in names]), seed, progress)
        classes |= dict.fromkeys(names, found)
    held_out = {name: _judge(learner, classes, name, plan, seed, progress) for name in plan}
    owned = {name: _own(learner, classes, name, plan[name], seed, progress) for name in _owners(learner, plan)}
    meta = {
        "predictor": learner.method.name,
        "seed": seed,
        "split": "fp32: train, judged on test; tensor: all GPUs, judged with their generation left out",
        "left_out": list(left_out(data)),
        "data": digests(data),
        "learned": {name: {"gpus": _names(c.train), "rows": len(c.train)} for name, c in plan.items()},
        "errors": {name: one.errors for name, one in held_out.items()},
        "own": {name: one.errors for name, one in owned.items()},
        "coverage": {name: _coverage(one.residuals) for name, one in held_out.items()},
        "intervals": {name: intervals.quantiles(_residuals(held_out[name], owned.get(name))) for name in plan},
    }
    return Weights(classes, meta)


def _coverage(residuals: list[Residuals]) -> dict[str, float | None]:
    """Return the coverage of generations left out, with the plain quantiles of the others and as widened."""
    widen = intervals.widening(residuals)
    return {"plain": intervals.coverage(residuals), "widened": intervals.coverage(residuals, widen), "widen": widen}


def _bundles(learner: Learner, plan: Mapping[str, Split]) -> list[tuple[str, ...]]:
    """Return the classes of `plan`, those that share parameters together."""
    shared = [tuple(name for name in names if name in plan) for names in learner.together]
    return [names for names in shared if names] + [(n,) for n in plan if not any(n in names for names in shared)]


def _owners(learner: Learner, plan: Mapping[str, Split]) -> list[str]:
    return [name for name in learner.own[0] if name in plan] if learner.own else []


def _own(
    learner: Learner,
    classes: dict[str, dict[str, Floats]],
    name: str,
    split: Split,
    seed: int,
    progress: TrainingProgress,
) -> HeldOut:
    """Add to a class what is learned of each GPU alone, and judge that on shapes held out."""
    assert learner.own is not None
    samples, held_out = canonical(split.train), held_shapes(split.train)
    classes[name] = classes[name] | learner.own[1](classes[name], samples.select(~held_out), seed, progress)
    return _errors(_temporary(learner, classes), name, split.train.select(held_out), set(_names(split.train)))


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
    learner: Learner,
    classes: WeightsByClass,
    name: str,
    plan: Mapping[str, Split],
    seed: int,
    progress: TrainingProgress,
) -> HeldOut:
    split = plan[name]
    if split.test is not None:
        return _errors(_temporary(learner, classes), name, split.test, set(_names(split.train)), learner)
    names = next(names for names in _bundles(learner, plan) if name in names)
    everything, parts = merge([plan[one].train for one in names]), []
    for generation, held_out in generations(split.train).items():
        out = np.isin(everything.gpu, np.unique(split.train.gpu[held_out]))
        if not out.all():
            label = _labelled(progress, f" without {generation}")
            found = learner.fit(names[0], everything.select(~out), seed, label)
            parts.append(
                _errors(
                    _temporary(learner, {**classes, name: found}), name, split.train.select(held_out), set(), learner
                )
            )
    return HeldOut(
        {k: v for part in parts for k, v in part.errors.items()}, [r for part in parts for r in part.residuals]
    )


def _errors(predictor: Learned, name: str, samples: Samples, seen: set[str], learner: Learner | None = None) -> HeldOut:
    """Return the errors of a class on samples; with `learner`, also those after a few kernels of a new GPU set its speed."""
    errors, residuals = {}, []
    for gpu, ratio, part in ratios(predictor, name, samples):
        row = summary(predictor.name, name, gpu.name, ratio, part.table)
        errors[gpu.name] = _rounded(row) | {"count": row.samples, "unseen": gpu.name not in seen}
        group = GENERATIONS.get(gpu.architecture, gpu.architecture)
        residuals.append(Residuals(group, gpu.name in seen, ratio * part.seconds, 1 / ratio))
        if learner and gpu.name not in seen and scalable(predictor, name):
            errors[gpu.name]["scalar"] = _scalar(predictor, name, gpu, part)
        if name.endswith("/linear") and name not in SIMT:
            errors[gpu.name]["wide"] = _wide(learner, predictor, name, gpu, part)
    return HeldOut(errors, residuals)


def _wide(learner: Learner | None, predictor: Learned, name: str, gpu: Gpu, samples: Samples) -> dict[str, Any]:
    """Return the errors on products whose sides are all 256 and more, by data type; with one scalar too."""
    table, result = samples.table, {}
    for dtype in np.unique(table.dtype).tolist():
        rows = (np.minimum(np.minimum(table.m, table.n), table.k) >= 256) & (table.dtype == dtype)
        part = samples.select(rows)
        if len(part):
            [(_, ratio, _)] = ratios(predictor, name, part)
            result[dtype] = _rounded(summary(predictor.name, name, gpu.name, ratio, part.table))
            if learner and scalable(predictor, name):
                result[dtype]["scalar"] = _scalar(predictor, name, gpu, part)
    return result


def _scalar(predictor: Learned, name: str, gpu: Gpu, samples: Samples) -> dict[str, float]:
    """Return the errors when one scalar for each data type is set by a few kernels, on all the others."""
    calibrated, rest = with_scalar(predictor, name, gpu, samples)
    if not len(rest):
        return {}
    [(_, ratio, part)] = ratios(calibrated, name, samples.select(rest))
    return _rounded(summary(predictor.name, name, gpu.name, ratio, part.table))


def _labelled(progress: TrainingProgress, label: str) -> TrainingProgress:
    return lambda task, done, total: progress(task + label, done, total)


def _temporary(learner: Learner, classes: WeightsByClass) -> Learned:
    return Learned(learner.method, Weights(classes, {"errors": {}}))


def _residuals(shapes: HeldOut, own: HeldOut | None) -> list[Residuals]:
    return shapes.residuals + (own.residuals if own else [])


def _rounded(row: Any) -> dict[str, Any]:
    return {
        key: round(value, 5) for key, value in row._asdict().items() if isinstance(value, float) and np.isfinite(value)
    }


def _names(samples: Samples) -> list[str]:
    return sorted({gpus.load(name).name for name in gpus_of(samples)})
