"""The published predictor in clustersim's interface: FP32 kernels of five classes, and memory-bound ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.errors import InputError
from clustersim.model.kernel import Kernel
from clustersim.predictors.base import Predictor, Scope, subjects
from clustersim.predictors.classes import MEMORY, class_of
from clustersim.predictors.features import Columns, Flags, columns
from clustersim.predictors.kinds.neusight_paper.board import GIB, board
from clustersim.predictors.kinds.neusight_paper.terms import product, terms, vector
from clustersim.predictors.kinds.neusight_paper.tiles import nearest, shapes, unpack
from clustersim.predictors.kinds.neusight_paper.wave import seconds
from clustersim.predictors.weights_file import Weights

NAME = "neusight-paper"
"""Name of the predictor in YAML."""
CLASSES = ("fp32/linear", "fp32/bmm", "fp32/elementwise", "fp32/softmax", "fp32/layernorm")
"""Classes with learned weights; memory-bound kernels take bytes / bandwidth."""
PRODUCTS = ("fp32/linear", "fp32/bmm")
"""Classes whose kernels have a tile in their names."""


@dataclass(frozen=True, slots=True)
class Paper(Predictor):
    """NeuSight as published, with weights."""

    weights: Weights
    """Networks and profiled tiles of each class."""

    @property
    def name(self) -> str:
        """Name of the predictor in YAML."""
        return NAME

    def predict(self, kernels: Sequence[Kernel], gpu: Gpu, alone: bool = False) -> Floats:
        """Return the seconds of each kernel on `gpu` (kernels,). `alone` has no effect, and no roofline bounds them, as
        published.

        Raise InputError for kernels that the published predictor does not support.
        """
        table = columns(kernels)
        _check(table)
        result = np.empty(len(table))
        for kind in dict.fromkeys(table.kind.tolist()):
            rows = table.kind == kind
            result[rows] = self._kind(kind, table.select(rows), gpu)
        return result

    def _kind(self, kind: str, table: Columns, gpu: Gpu) -> Floats:
        """Return the seconds of kernels of one kind (kernels,): by tiles and network or, for memory-bound kernels, by bytes."""
        if kind == MEMORY:
            result: Floats = table.bytes / (gpu.memory_bandwidth / 1e9 * GIB)
            return result
        name = class_of(kind, "fp32")
        parameters, figures = self.weights.classes[name], board(gpu, name in PRODUCTS)
        if name not in PRODUCTS:
            return seconds(parameters, terms(vector(table), figures))
        sides = nearest(unpack(parameters), shapes(table), figures)
        return seconds(parameters, terms(product(table, sides), figures))

    def statement(self, kernels: Sequence[Kernel], gpu: Gpu) -> tuple[Scope, ...]:
        """Return the measured error of each kind among the kernels, on `gpu` or on the GPUs left out of training."""
        return tuple(self._scope(dtype, kind, gpu) for dtype, kind in subjects(columns(kernels)))

    def trained_on(self) -> Mapping[str, Collection[str]]:
        """Return {class of kernels: names of the GPUs in its training data}."""
        return {name: facts["gpus"] for name, facts in self.weights.meta["learned"].items()}

    def _scope(self, dtype: str, kind: str, gpu: Gpu) -> Scope:
        """Return the measured error of a data type and kind on `gpu`, else the mean over GPUs left out of training."""
        subject = f"{dtype} {kind}"
        if kind == MEMORY:
            return Scope(subject, "bytes at the bandwidth, GB read as GiB", None, 0, gpu.name)
        errors: Mapping[str, Any] = self.weights.meta["errors"].get(class_of(kind, dtype), {})
        if gpu.name in errors:
            return Scope(subject, NAME, errors[gpu.name]["mean"], errors[gpu.name]["count"], gpu.name)
        unseen = [entry for entry in errors.values() if entry["unseen"]]
        count = sum(entry["count"] for entry in unseen)
        mean = math.fsum(entry["mean"] * entry["count"] for entry in unseen) / count if count else None
        return Scope(subject, NAME, mean, count, "GPUs left out of training")


def _check(table: Columns) -> None:
    """Raise InputError for a kernel that the published predictor does not support."""
    wrong = ~known(table)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        kinds = ", ".join(name.partition("/")[2] for name in CLASSES)
        raise InputError(
            f"kernel {table.kind[row]}/{table.op[row]} ({table.dtype[row]}): {NAME} supports only fp32 kernels of the kinds "
            f"{kinds} and memory-bound kernels; choose another predictor or set the data type to fp32"
        )


def known(table: Columns) -> Flags:
    """Return a mask of the kernels that the published predictor supports."""
    learned = [name.partition("/")[2] for name in CLASSES]
    result: Flags = (table.kind == MEMORY) | (np.isin(table.kind, learned) & (table.dtype == "fp32"))
    return result
