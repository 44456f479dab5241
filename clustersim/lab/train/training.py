"""Training of a predictor: every class from its split of the measured kernels, with held-out errors and intervals.

It can be interrupted: every finished class is in a scratch folder until the weights are written.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clustersim import writing
from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.extras import need
from clustersim.hardware import gpus
from clustersim.lab.data.samples import Samples, canonical, gpus_of, merge
from clustersim.lab.data.sources import Data, digests, left_out
from clustersim.lab.evaluate import figures, ratios, scaled
from clustersim.lab.train import intervals
from clustersim.lab.train.dataset import GENERATIONS, WEIGHT, TrainTestSplit, generations, held_shapes, splits
from clustersim.lab.train.ensemble import TrainingProgress, silent
from clustersim.lab.train.intervals import Residuals
from clustersim.lab.train.learner import Learner, scalable
from clustersim.predictors.classes import MEMORY, SIMT
from clustersim.predictors.features import Columns
from clustersim.predictors.learned import Learned
from clustersim.predictors.mlp import Parameters
from clustersim.predictors.weights_file import Weights

PACKAGE = Path(__file__).parents[2]
CODE = (".py", ".csv", ".yaml")
"""Suffixes of code and of its tables."""


def resumable(learner: Learner, scratch: Path | None) -> Learner:
    """Return `learner` with the results of `fit` and `own` cached in the folder `scratch`; None caches nothing.

    The key is a hash of samples, class, seed and method, of the parameters that a result builds on, of the code of predictors
    and learners, and of the GPUs' figures, so that no stale result is used. Raises DataError if nothing can be written.
    """
    if scratch is None:
        return learner
    method, own = learner.method.name, learner.own

    def fit(name: str, samples: Samples, seed: int, progress: TrainingProgress) -> dict[str, Floats]:
        """Return the result of `learner.fit`, from `scratch` if it is there."""
        path = scratch / f"{_key((method, name, seed), samples, {})}.npz"
        found = _kept(path, lambda: learner.fit(name, samples, seed, progress))
        progress(name, 1, 1)
        return found

    def fit_own(parameters: Parameters, samples: Samples, seed: int, progress: TrainingProgress) -> dict[str, Floats]:
        """Return the result of `learner.own`, from `scratch` if it is there."""
        assert own is not None
        path = scratch / f"{_key((method, 'own', seed), samples, parameters)}.npz"
        return _kept(path, lambda: own[1](parameters, samples, seed, progress))

    return learner._replace(fit=fit, own=own and (own[0], fit_own))


def _kept(path: Path, learn: Callable[[], dict[str, Floats]]) -> dict[str, Floats]:
    """Return the arrays of an npz file; if it is absent or damaged, the result of `learn` after writing it there."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        found, buffer = learn(), BytesIO()  # the file is cut off if a training was killed
        np.savez(buffer, **found)  # type: ignore[arg-type]
        writing.save(path, buffer.getvalue())
        return found


def _key(names: tuple[object, ...], samples: Samples, parameters: Parameters) -> str:
    """Return 24 hexadecimal digits that identify a result: of its names, samples, the parameters it builds on, and `code()`."""
    state = hashlib.sha256(repr((*names, code())).encode())
    columns = (*(getattr(samples.table, field) for field in Columns.__slots__), samples.gpu, samples.seconds)
    for array in (*columns, *(parameters[name] for name in sorted(parameters))):
        state.update(str(array.dtype).encode() + np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:24]


@cache
def code() -> str:
    """Return a hash of all that affects training besides samples and seed: code and tables, GPUs' figures, torch."""
    state = hashlib.sha256((version("torch") if find_spec("torch") else "").encode())  # linear learns without it
    rooms = ("predictors", "lab/data", "lab/train")
    files = [path for room in rooms for path in sorted((PACKAGE / room).rglob("*")) if path.suffix in CODE]
    for path in (*files, *sorted(gpus.FOLDER.glob("*.yaml"))):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def discard(scratch: Path) -> None:
    """Remove the results in the scratch folder of a finished training, and the folder if nothing else is in it."""
    for path in scratch.glob("*.npz"):
        path.unlink(missing_ok=True)
    if scratch.is_dir() and not any(scratch.iterdir()):
        scratch.rmdir()


WeightsByClass = Mapping[str, Mapping[str, Floats]]


class HeldOut(NamedTuple):
    """`errors` {GPU: figures} of one class on held-out kernels, and their residuals."""

    errors: dict[str, Any]
    residuals: list[Residuals]


def learn(
    learner: Learner,
    data: Data | Path,
    seed: int = 0,
    progress: TrainingProgress = silent,
    scratch: Path | None = None,
) -> Weights:
    """Return the weights of all classes, learned from measured kernels, with their held-out errors in the metadata.

    Finished classes are in the folder `scratch`, from which an interrupted training continues. Raises DataError for missing
    tables.
    """
    if learner.torch:
        need("torch", f"training {learner.method.name}")
    learner, plan = resumable(learner, scratch), splits(data, seed)
    classes: dict[str, dict[str, Floats]] = {MEMORY: memory(plan["fp32/elementwise"].train)}
    for names in _bundles(learner, plan):
        found = learner.fit(names[0], merge([plan[name].train for name in names]), seed, progress)
        classes |= dict.fromkeys(names, found)
    held_out = {name: _judge(learner, classes, name, plan, seed, progress) for name in plan}
    owners = [name for name in learner.own[0] if name in plan] if learner.own else []
    owned = {name: _with_own(learner, classes, name, plan[name], seed, progress) for name in owners}
    residuals = {
        name: one.residuals + (owned[name].residuals if name in owned else []) for name, one in held_out.items()
    }
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
        "intervals": {name: intervals.quantiles(one) for name, one in residuals.items()},
    }
    return Weights(classes, meta)


def _coverage(residuals: list[Residuals]) -> dict[str, float | None]:
    """Return {`plain`, `widened`: `intervals.coverage` without and with widening, `widen`: `intervals.widening`} of one class."""
    widen = intervals.widening(residuals)
    return {"plain": intervals.coverage(residuals), "widened": intervals.coverage(residuals, widen), "widen": widen}


def _bundles(learner: Learner, plan: Mapping[str, TrainTestSplit]) -> list[tuple[str, ...]]:
    """Return groups of classes of `plan`: `learner.together`'s, which share parameters, and each other class alone."""
    shared = [tuple(name for name in names if name in plan) for names in learner.together]
    return [names for names in shared if names] + [(n,) for n in plan if not any(n in names for names in shared)]


def _with_own(
    learner: Learner,
    classes: dict[str, dict[str, Floats]],
    name: str,
    split: TrainTestSplit,
    seed: int,
    progress: TrainingProgress,
) -> HeldOut:
    """Add the parameters of `learner.own` to `classes[name]`, learned without held-out shapes. Return the errors on those."""
    assert learner.own is not None
    samples, held_out = canonical(split.train), held_shapes(split.train)
    classes[name] = classes[name] | learner.own[1](classes[name], samples.select(~held_out), seed, progress)
    return _errors(_temporary(learner, classes), name, split.train.select(held_out), set(_names(split.train)))


def memory(samples: Samples) -> dict[str, Floats]:
    """Return {`fraction` of the bandwidth that element-wise kernels of over 0.3 ms reach, at most 1, `dispatch` in seconds}.

    The fraction is the median on each GPU, without dispatch, averaged with the weights of the GPUs; 0.8 without such kernels.
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
    plan: Mapping[str, TrainTestSplit],
    seed: int,
    progress: TrainingProgress,
) -> HeldOut:
    """Return the errors of a class on its test samples, or else on each generation of GPUs by a fit without that generation."""
    split = plan[name]
    if split.test is not None:
        return _errors(_temporary(learner, classes), name, split.test, set(_names(split.train)), learner)
    names = next(names for names in _bundles(learner, plan) if name in names)
    everything, parts = merge([plan[one].train for one in names]), []
    for generation, held_out in generations(split.train).items():
        out = np.isin(everything.gpu, np.unique(split.train.gpu[held_out]))
        if not out.all():
            label = partial(_labelled, progress, f" without {generation}")
            found = learner.fit(names[0], everything.select(~out), seed, label)
            predictor = _temporary(learner, {**classes, name: found})
            parts.append(_errors(predictor, name, split.train.select(held_out), set(), learner))
    errors = {gpu: one for part in parts for gpu, one in part.errors.items()}
    return HeldOut(errors, [one for part in parts for one in part.residuals])


def _labelled(progress: TrainingProgress, label: str, task: str, done: int, total: int) -> None:
    """Call `progress` with `label` appended to the task's name."""
    progress(task + label, done, total)


def _errors(predictor: Learned, name: str, samples: Samples, seen: set[str], learner: Learner | None = None) -> HeldOut:
    """Return `figures`, `count` and `unseen` of a class by GPU; with `learner`, also `scalar` for GPUs that are not `seen`.

    Tensor-core GEMMs also have `wide`: {data type: `figures`, and `scalar`} of those with all sides of at least 256.
    """
    errors, residuals = dict[str, Any](), []
    for gpu, ratio, part in ratios(predictor, name, samples):
        unseen = gpu.name not in seen
        errors[gpu.name] = figures(ratio, part.table) | {"count": len(part), "unseen": unseen}
        group = GENERATIONS.get(gpu.architecture, gpu.architecture)
        residuals.append(Residuals(group, not unseen, ratio * part.seconds, 1 / ratio))
        one_scalar = learner is not None and unseen and scalable(predictor, name)
        if one_scalar:
            errors[gpu.name]["scalar"] = _scalar(predictor, name, gpu, part)
        if name.endswith("/linear") and name not in SIMT:
            table, wide = part.table, dict[str, Any]()
            large = np.minimum(np.minimum(table.m, table.n), table.k) >= 256
            for dtype in np.unique(table.dtype[large]).tolist():
                rows = large & (table.dtype == dtype)
                wide[dtype] = figures(ratio[rows], table.select(rows))
                if one_scalar:
                    wide[dtype]["scalar"] = _scalar(predictor, name, gpu, part.select(rows))
            errors[gpu.name]["wide"] = wide
    return HeldOut(errors, residuals)


def _scalar(predictor: Learned, name: str, gpu: Gpu, samples: Samples) -> dict[str, float]:
    """Return `figures` of the kernels left after FEW kernels of each data type set the GPU's speed; {} if none are left."""
    ratio = scaled(predictor, name, gpu, samples)
    rest = np.isfinite(ratio)
    return figures(ratio[rest], samples.table.select(rest)) if rest.any() else {}


def _temporary(learner: Learner, classes: WeightsByClass) -> Learned:
    """Return a predictor with the parameters learned so far, without metadata."""
    return Learned(learner.method, Weights(classes, {"errors": {}}))


def _names(samples: Samples) -> list[str]:
    """Return the sorted names of the GPUs of samples."""
    return sorted({gpus.load(name).name for name in gpus_of(samples)})
