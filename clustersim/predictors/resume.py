"""Training that can be interrupted: every finished class lies in a scratch folder until the weights are written."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from clustersim.errors import DataError
from clustersim.predictors.columns import Columns, Floats
from clustersim.predictors.learned import Method
from clustersim.predictors.samples import Samples
from clustersim.predictors.training import Progress

PACKAGE = Path(__file__).parents[1]


def resumable(method: Method, scratch: Path | None) -> Method:
    """Return `method` whose `fit` keeps its results in the folder `scratch` and takes them from there.

    A result is found again by the hash of its samples, class, seed and method, of the code of the predictors and of the GPUs'
    figures, so that nothing stale is ever taken. None keeps nothing. Raises DataError where nothing can be written.
    """
    if scratch is None:
        return method

    def fit(name: str, samples: Samples, seed: int, progress: Progress) -> dict[str, Floats]:
        path = scratch / f"{_key(method.name, name, samples, seed)}.npz"
        known = _read(path)
        if known is None:
            known = method.fit(name, samples, seed, progress)
            _write(path, known)
        progress(name, 1, 1)
        return known

    return method._replace(fit=fit)


def _key(method: str, name: str, samples: Samples, seed: int) -> str:
    state = hashlib.sha256(repr((method, name, seed, code())).encode())
    for array in (*(getattr(samples.table, field) for field in Columns.__slots__), samples.gpu, samples.seconds):
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
    yield from sorted((PACKAGE / "predictors").rglob("*.py"))
    yield from sorted((PACKAGE / "gpus").glob("*.yaml"))


def _torch() -> str:
    from importlib.metadata import version

    return version("torch")


def _read(path: Path) -> dict[str, Floats] | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None  # absent, or cut off when a training was killed: it is learned anew


def _write(path: Path, parameters: dict[str, Floats]) -> None:
    temporary = path.with_name(f".{os.getpid()}.npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(temporary, **parameters)  # type: ignore[arg-type]
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}; choose another place with --out") from error


def discard(scratch: Path) -> None:
    """Remove the scratch folder of a training that is done."""
    for path in scratch.glob("*.npz"):
        path.unlink(missing_ok=True)
    if scratch.is_dir() and not any(scratch.iterdir()):
        scratch.rmdir()
