"""Trained weights in safetensors files: tensors `class

name` in float32, and metadata about their origin.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clustersim import writing
from clustersim.arrays import Floats
from clustersim.errors import DataError, InputError
from clustersim.files import exists, read_bytes

FOLDER = Path(__file__).parent / "weights"
"""Folder of the weights that come with the package."""
FORMAT = "clustersim-predictor-1"
"""Key of the metadata in a safetensors file; a changed format gets a new name."""
CHECKSUM = "checksum"
"""Key of the checksum in the metadata."""
MAX_BYTES = 64 * 2**20
"""Largest accepted size of a weights file, in bytes."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Learned parameters of a predictor."""

    classes: Mapping[str, Mapping[str, Floats]]
    """{class of kernels: {parameter: array}}"""
    meta: Mapping[str, Any]
    """Metadata: predictor, seed, split, hashes of the data, rows, held-out errors."""


def shipped(name: str) -> Path:
    """Return the path of the weights that come with the package for the predictor `name`; the file may not exist."""
    return FOLDER / f"{name}.safetensors"


def save(path: Path, weights: Weights) -> None:
    """Write weights to a file, completely or not at all. Raises InputError if the path cannot be written, and DiskFullError if
    the disk is full."""
    from safetensors.numpy import save as pack

    tensors = {
        f"{kind}|{name}": np.ascontiguousarray(value, dtype=np.float32)
        for kind, parameters in sorted(weights.classes.items())
        for name, value in sorted(parameters.items())
    }
    metadata = {**weights.meta, CHECKSUM: _checksum(tensors, weights.meta)}
    meta = {FORMAT: json.dumps(metadata, sort_keys=True)}  # one key: safetensors writes several in random order
    writing.save(path, pack(tensors, meta))


def read(path: Path, predictor: str) -> Weights:
    """Return the weights in a file. predictor: its name, which the file's metadata must have. Raises DataError if the file is
    missing, damaged, or of another predictor."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    remedy = f"train them with `clustersim lab train {predictor} --data DIR`"
    if not exists(path):
        raise DataError(f"{path}: no such weights; {remedy}")
    try:
        raw = read_bytes(path, "a weights file", MAX_BYTES)
    except InputError as error:
        raise DataError(str(error)) from error
    try:
        tensors, meta = load(raw), _metadata(raw)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: damaged or not a safetensors file; {remedy}") from error
    if meta.get("predictor") != predictor:
        raise DataError(f"{path}: holds no weights of {predictor!r} (format {FORMAT}); {remedy}")
    kept = {key: value for key, value in meta.items() if key != CHECKSUM}
    if CHECKSUM in meta and meta[CHECKSUM] != _checksum(tensors, kept):
        raise DataError(f"{path}: damaged, its checksum does not agree; {remedy}")
    return Weights(_nested(path, tensors), kept)


def _checksum(tensors: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all tensors and the metadata, as 16 hexadecimal digits."""
    state = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        state.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return state.hexdigest()[:16]


def _metadata(raw: bytes) -> dict[str, Any]:
    """Return the metadata in the header of a safetensors file; {} if this program did not write it."""
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).get("__metadata__", {})
    meta = json.loads(header.get(FORMAT, "{}"))
    return meta if isinstance(meta, dict) else {}


def _nested(path: Path, tensors: Mapping[str, Any]) -> dict[str, dict[str, Floats]]:
    """Return {class: {parameter: array}} of tensors named `class|parameter`. Raises DataError if a number is not finite."""
    result: dict[str, dict[str, Floats]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("|")
        if not np.isfinite(value).all():
            raise DataError(f"{path}: {key} is not finite; the training diverged, train again with another --seed")
        result.setdefault(kind, {})[name] = np.asarray(value, dtype=np.float64)
    return result
