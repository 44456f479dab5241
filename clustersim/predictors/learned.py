"""What all learned predictors share: classes, the fallback for memory-bound kernels, the bound, and the statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.config.gpu import Gpu
from clustersim.errors import DataError
from clustersim.predictors.classes import GROUPED, MEMORY, SIMT, TENSOR, class_of, route
from clustersim.predictors.columns import Columns, Floats, bound, columns
from clustersim.predictors.mlp import Parameters
from clustersim.predictors.model import LAUNCH, Scope, subjects
from clustersim.predictors.samples import Samples
from clustersim.predictors.store import Weights, read, shipped
from clustersim.predictors.training import Progress
from clustersim.workload.kernel import Kernel


class Method(NamedTuple):
    """How one predictor forecasts and learns kernels of one class.

    `seconds` gives the time of each kernel without its launch. `fit` returns the parameters, among them `dispatch`: the
    seconds that a call by itself takes on top. `required` names the parameters of a class, `special` those of classes that
    have others.
    """

    name: str
    seconds: Callable[[Parameters, Columns, Gpu], Floats]
    fit: Callable[[str, Samples, int, Progress], dict[str, Floats]]
    required: tuple[str, ...]
    special: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Learned:
    """A predictor with weights."""

    method: Method
    weights: Weights

    @property
    def name(self) -> str:
        """The name in YAML."""
        return self.method.name

    def predict(self, kernels: Sequence[Kernel], gpu: Gpu, alone: bool = False) -> Floats:
        """Return the seconds of each kernel on `gpu`, never below the roofline. Raises InputError."""
        return self.columns(columns(kernels), gpu, alone)

    def columns(self, table: Columns, gpu: Gpu, alone: bool = False) -> Floats:
        """Return the seconds of kernels that are columns already."""
        result, names = np.empty(len(table)), self._known(route(table))
        for name in dict.fromkeys(names.tolist()):
            rows = names == name
            parameters = self.weights.classes[name]
            start = scalar(parameters["dispatch"]) if alone else LAUNCH
            seconds = _memory if name == MEMORY else self.method.seconds
            result[rows] = start + seconds(parameters, table.select(rows), gpu)
        return np.maximum(result, bound(table, gpu))

    def _known(self, names: NDArray[np.str_]) -> NDArray[np.str_]:
        """Return the classes of kernels with that of linear ones for grouped products that these weights do not know."""
        for name in set(GROUPED) - set(self.weights.classes):
            names = np.where(names == name, name.replace("grouped_gemm", "linear"), names)
        return names

    def statement(self, kernels: Sequence[Kernel], gpu: Gpu) -> tuple[Scope, ...]:
        """Return the measured error of each data type and kind among the kernels, on `gpu` or on what comes nearest."""
        return tuple(self._scope(dtype, kind, gpu) for dtype, kind in subjects(columns(kernels)))

    def _scope(self, dtype: str, kind: str, gpu: Gpu) -> Scope:
        name, subject = str(self._known(np.array([class_of(kind, dtype)]))[0]), f"{dtype} {kind}"
        measured: Mapping[str, Any] = self.weights.meta["errors"].get(name, {})
        if name == MEMORY:
            share = scalar(self.weights.classes[MEMORY]["fraction"])
            return Scope(subject, f"bytes at {100 * share:.0f} % of the bandwidth", None, 0, gpu.name)
        if borrowed := lender(name, kind, dtype):
            return Scope(subject, borrowed, None, 0, gpu.name)
        if gpu.name in measured:
            return Scope(subject, self.name, measured[gpu.name]["mean"], measured[gpu.name]["count"], gpu.name)
        unseen = [row for row in measured.values() if row["unseen"]]
        count = sum(row["count"] for row in unseen)
        mean = sum(row["mean"] * row["count"] for row in unseen) / count if count else None
        return Scope(subject, self.name, mean, count, "GPUs left out of training")


def lender(name: str, kind: str, dtype: str) -> str | None:
    """Return whose weights, of class `name`, forecast kernels that no table has; None for those that were measured."""
    family, _, own = name.partition("/")
    if family == "fp32" and dtype != "fp32":
        return "weights of fp32 kernels, scaled by bytes"
    if own != kind:
        return f"weights of {own} kernels"
    return "weights of bf16 kernels" if family == "half" and dtype != "bf16" else None


def scalar(value: Floats) -> float:
    """Return the one number of an array."""
    return float(value.ravel()[0])


def _memory(parameters: Parameters, table: Columns, gpu: Gpu) -> Floats:
    result: Floats = table.bytes / (gpu.memory_bandwidth * scalar(parameters["fraction"]))
    return result


def open_weights(method: Method, path: Path | None) -> Learned:
    """Return the predictor with the weights of a file, or with the shipped ones. Raises DataError."""
    path = path or shipped(method.name)
    weights = read(path, method.name)
    for name in (*SIMT, *TENSOR, MEMORY, *(name for name in GROUPED if name in weights.classes)):
        keys = method.special.get(name, method.required)
        wanted = ("fraction", "dispatch") if name == MEMORY else (*keys, "dispatch")
        missing = [key for key in wanted if key not in weights.classes.get(name, {})]
        if missing or "errors" not in weights.meta:
            what = f"{name} {', '.join(missing)}" if missing else "the errors in the metadata"
            raise DataError(f"{path}: lacks {what}; train again with `clustersim predictor train {method.name}`")
    return Learned(method, weights)
