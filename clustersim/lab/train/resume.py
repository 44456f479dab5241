"""Training that can be interrupted: every finished class lies in a scratch folder until the weights are written."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np

from clustersim import writing
from clustersim.arrays import Floats
from clustersim.lab.data.samples import Samples
from clustersim.lab.train.ensemble import TrainingProgress
from clustersim.lab.train.learner import FitOwn, Learner
from clustersim.predictors.features import Columns
from clustersim.predictors.mlp import Parameters

PACKAGE = Path(__file__).parents[2]


def resumable(learner: Learner, scratch: Path | None) -> Learner:
    """Return `learner` whose `fit` and `own` keep their results in the folder `scratch` and take them from there.

    A result is found again by the hash of its samples, class, seed and method, of the parameters it builds on, of the code of
    predictors and learners and of the GPUs' figures, so that nothing stale is ever taken. None keeps nothing.
    Raises DataError where nothing can be written.
    """
    if scratch is None:
        return learner

    def fit(name: str, samples: Samples, seed: int, progress: TrainingProgress) -> dict[str, Floats]:
        path = scratch / f"{_key((learner.method.name, name, seed), samples, {})}.npz"
        found = _kept(path, lambda: learner.fit(name, samples, seed, progress))
        progress(name, 1, 1)
        return found

    return learner._replace(fit=fit, own=_resumable_own(learner, scratch))


def _resumable_own(learner: Learner, scratch: Path) -> tuple[tuple[str, ...], FitOwn] | None:
    if learner.own is None:
        return None
    names, learn = learner.own

    def own(parameters: Parameters, samples: Samples, seed: int, progress: TrainingProgress) -> dict[str, Floats]:
        path = scratch / f"{_key((learner.method.name, 'own', seed), samples, parameters)}.npz"
        return _kept(path, lambda: learn(parameters, samples, seed, progress))

    return names, own


def _kept(path: Path, learn: Callable[[], dict[str, Floats]]) -> dict[str, Floats]:
    """Return what a file holds, or else what `learn` returns, after writing it there."""
    found = _read(path)
    if found is None:
        found = learn()
        _write(path, found)
    return found


def _key(names: tuple[object, ...], samples: Samples, parameters: Parameters) -> str:
    state = hashlib.sha256(repr((*names, code())).encode())
    columns = (*(getattr(samples.table, field) for field in Columns.__slots__), samples.gpu, samples.seconds)
    for array in (*columns, *(parameters[name] for name in sorted(parameters))):
        state.update(str(array.dtype).encode() + np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:24]


@cache
def code() -> str:
    """Return the hash of all that decides what is learned beside samples and seed: code, GPUs' figures, torch."""
    state = hashlib.sha256(_torch().encode())
    for path in _sources():
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def _sources() -> Iterator[Path]:
    for room in ("predictors", "lab/data", "lab/train"):
        yield from sorted((PACKAGE / room).rglob("*.py"))
    yield from sorted((PACKAGE / "gpus").glob("*.yaml"))


def _torch() -> str:
    from importlib.metadata import version

    return version("torch") if find_spec("torch") else ""  # linear learns without it


def _read(path: Path) -> dict[str, Floats] | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None  # absent, or cut off when a training was killed: it is learned anew


def _write(path: Path, parameters: dict[str, Floats]) -> None:
    buffer = BytesIO()
    np.savez(buffer, **parameters)  # type: ignore[arg-type]
    writing.save(path, buffer.getvalue())


def discard(scratch: Path) -> None:
    """Remove the scratch folder of a training that is done."""
    for path in scratch.glob("*.npz"):
        path.unlink(missing_ok=True)
    if scratch.is_dir() and not any(scratch.iterdir()):
        scratch.rmdir()
