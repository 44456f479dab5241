"""What a predictor learns from which tables, and how its error is measured.

FP32 classes learn from the split `train` (P4, P100, V100, T4, A100-40GB) and are judged on `test`, whose L4, A100-80GB and
H100 no training row comes from. Tensor-core classes learn from all GPUs; their error is measured by leaving a whole
generation out, learning again, and forecasting it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clustersim import gpus
from clustersim.errors import DataError
from clustersim.predictors import tables
from clustersim.predictors.classes import MEMORY, SIMT, WEIGHT, pick
from clustersim.predictors.columns import Floats
from clustersim.predictors.evaluate import Row, measure, tensor_samples
from clustersim.predictors.learned import Learned, Method
from clustersim.predictors.samples import Samples, gpus_of
from clustersim.predictors.store import Weights
from clustersim.predictors.tables import ATTENTION, EXPERTS, FP32, GEMM
from clustersim.predictors.training import Progress

GENERATIONS = {
    "hopper": "hopper",
    "ampere": "ampere",
    "ada": "ada",
    "blackwell": "blackwell",
    "blackwell-ultra": "blackwell",
}
PER_GPU = 4000
"""Rows of each GPU and data type that a tensor-core class learns from: more do not lower its error."""
PER_CLASS = 60_000


class Course(NamedTuple):
    """The samples of one class to learn from, and those to be judged on (None: leave a generation out)."""

    learned: Samples
    judged: Samples | None


def courses(data: Path, seed: int) -> dict[str, Course]:
    """Return what every class learns. Raises DataError for missing tables."""
    train, test = tables.fp32(data, "train"), tables.fp32(data, "test")
    rng = np.random.default_rng(seed)
    result = {name: Course(thin(pick(train, name), rng, PER_CLASS), pick(test, name)) for name in SIMT}
    for name, samples in tensor_samples(data).items():
        groups = np.char.add(np.char.add(samples.gpu, " "), samples.table.dtype)
        rows = [_some(np.flatnonzero(groups == group), rng, PER_GPU) for group in np.unique(groups)]
        result[name] = Course(samples.select(np.sort(np.concatenate([*rows, np.zeros(0, dtype=np.int64)]))), None)
    empty = [name for name, course in result.items() if not len(course.learned)]
    if empty:
        raise DataError(f"{data}: no measured kernels of {', '.join(empty)}; the tables must hold all classes")
    return result


def thin(samples: Samples, rng: np.random.Generator, most: int) -> Samples:
    """Return at most `most` of the samples, drawn at random."""
    return samples.select(_some(np.arange(len(samples)), rng, most))


def _some(rows: Any, rng: np.random.Generator, most: int) -> Any:
    return np.sort(rng.permutation(rows)[:most])


def learn(method: Method, data: Path, seed: int, progress: Progress) -> Weights:
    """Return the weights of all classes with their held-out errors in the metadata."""
    plan = courses(data, seed)
    classes: dict[str, dict[str, Floats]] = {MEMORY: memory(plan["fp32/elementwise"].learned)}
    for name, course in plan.items():
        classes[name] = method.fit(name, course.learned, seed, progress)
    errors = {name: _judge(method, classes, name, course, seed, progress) for name, course in plan.items()}
    meta = {
        "predictor": method.name,
        "seed": seed,
        "split": "fp32: train, judged on test; tensor: all GPUs, judged with their generation left out",
        "data": {
            name: tables.digest(data, [name]) for name in (FP32, GEMM, ATTENTION, EXPERTS) if (data / name).is_file()
        },
        "learned": {name: {"gpus": _names(c.learned), "rows": len(c.learned)} for name, c in plan.items()},
        "errors": errors,
    }
    return Weights(classes, meta)


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
    method: Method, classes: Mapping[str, dict[str, Floats]], name: str, course: Course, seed: int, progress: Progress
) -> dict[str, Any]:
    if course.judged is not None:
        seen = set(_names(course.learned))
        rows = measure(_temporary(method, classes), name, course.judged)
        return {row.gpu: _entry(row, row.gpu not in seen) for row in rows}
    result: dict[str, Any] = {}
    for generation, held in _generations(course.learned).items():
        if held.all():
            continue
        parameters = method.fit(name, course.learned.select(~held), seed, _labelled(progress, f" without {generation}"))
        rows = measure(_temporary(method, {**classes, name: parameters}), name, course.learned.select(held))
        result |= {row.gpu: _entry(row, True) for row in rows}
    return result


def _labelled(progress: Progress, label: str) -> Progress:
    return lambda task, done, total: progress(task + label, done, total)


def _temporary(method: Method, classes: Mapping[str, Mapping[str, Floats]]) -> Learned:
    return Learned(method, Weights(classes, {"errors": {}}))


def _entry(row: Row, unseen: bool) -> dict[str, Any]:
    figures = {
        key: round(value, 5) for key, value in row._asdict().items() if isinstance(value, float) and np.isfinite(value)
    }
    return figures | {"count": row.samples, "unseen": unseen}


def _generations(samples: Samples) -> dict[str, Any]:
    groups = gpus_of(samples)
    generation = {name: gpus.load(name).architecture for name in groups}
    names = dict.fromkeys(GENERATIONS.get(text, text) for text in generation.values())
    return {
        name: np.isin(samples.gpu, [gpu for gpu, own in generation.items() if GENERATIONS.get(own, own) == name])
        for name in names
    }


def _names(samples: Samples) -> list[str]:
    return sorted(gpus.load(name).name for name in gpus_of(samples))
