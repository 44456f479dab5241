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
from clustersim.predictors.columns import Columns, Floats
from clustersim.predictors.learned import Method, Own
from clustersim.predictors.mlp import Parameters
from clustersim.predictors.samples import Samples
from clustersim.predictors.training import Progress

PACKAGE = Path(__file__).parents[1]


def resumable(method: Method, scratch: Path | None) -> Method:
    """Return `method` whose `fit` and `own` keep their results in the folder `scratch` and take them from there.

    A result is found again by the hash of its samples, class, seed and method, of the parameters it builds on, of the code of
    the predictors and of the GPUs' figures, so that nothing stale is ever taken. None keeps nothing. Raises DataError where
    nothing can be written.
    """
    if scratch is None:
        return method

    def fit(name: str, samples: Samples, seed: int, progress: Progress) -> dict[str, Floats]:
        path = scratch / f"{_key((method.name, name, seed), samples, {})}.npz"
        found = _kept(path, lambda: method.fit(name, samples, seed, progress))
        progress(name, 1, 1)
        return found

    return method._replace(fit=fit, own=_resumable_own(method, scratch))


def _resumable_own(method: Method, scratch: Path) -> Own | None:
    if method.own is None:
        return None
    names, learn = method.own

    def own(parameters: Parameters, samples: Samples, seed: int, progress: Progress) -> dict[str, Floats]:
        path = scratch / f"{_key((method.name, 'own', seed), samples, parameters)}.npz"
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
    yield from sorted((PACKAGE / "predictors").rglob("*.py"))
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
