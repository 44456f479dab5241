"""Shared parts of learned predictors: classes, fallback for memory-bound kernels, roofline, intervals and statement."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.errors import DataError
from clustersim.hardware.constants import LAUNCH
from clustersim.model.kernel import Kernel
from clustersim.predictors import uncertainty
from clustersim.predictors.base import Predictor, Scope, subjects
from clustersim.predictors.classes import GROUPED, MEMORY, SIMT, TENSOR, class_of, route
from clustersim.predictors.features import MATRIX, Columns, bound, columns, spread
from clustersim.predictors.mlp import Parameters
from clustersim.predictors.weights_file import Weights, read, shipped

BORROWED: Annotated[tuple[float, float], Declared(chosen_on="published kernels on A100, H100")] = (0.75, 1.35)
"""Smallest interval of measured / forecast of 16-bit vector kernels, whose weights are from fp32 kernels and published rates. On
a GPU whose rate was not used, A100 or H100, their forecasts are off by 7 to 16 % on average (rates.py)."""


class Method(NamedTuple):
    """Functions of one learned predictor, and the parameters that they need. Training is in `lab/train/learners/`."""

    name: str
    """Name in YAML and of the weights file."""
    seconds: Callable[[Parameters, Columns, Gpu, bool], Floats]
    """Function (parameters, kernels, gpu, whether a table timed each kernel alone) -> seconds without launch."""
    required: tuple[str, ...]
    """Names of the parameters of a class, besides `dispatch`, the extra seconds of an eager call.

    `busy`, if listed, is the overhead of a kernel in a busy stream, instead of its launch.
    """
    special: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """{class: names of its parameters} of classes with other parameters."""
    memory: Callable[[Mapping[str, Parameters], Columns, Gpu], Floats] | None = None
    """Function (parameters of all classes, kernels, gpu) -> seconds of memory-bound kernels. None: bytes over a learned share of
    the bandwidth."""


@dataclass(frozen=True, slots=True)
class Learned(Predictor):
    """A learned predictor: a method with its weights."""

    method: Method
    """Functions of the predictor."""
    weights: Weights
    """Learned parameters of each class, and errors on held-out kernels."""

    @property
    def name(self) -> str:
        """Name of the predictor in YAML."""
        return self.method.name

    def predict(self, kernels: Sequence[Kernel], gpu: Gpu, alone: bool = False) -> Floats:
        """Return the seconds of each kernel on `gpu` (kernels,), never below the roofline. Raises InputError for invalid kernels.

        alone: whether each kernel is timed as in a micro-benchmark.
        """
        return self.columns(columns(kernels), gpu, alone)

    def columns(self, table: Columns, gpu: Gpu, alone: bool = False) -> Floats:
        """Return the seconds of the kernels in `table`, launch included (kernels,), as `predict` does.

        alone: whether each is timed as in a micro-benchmark, with the dispatch of an eager call instead of a launch.
        """
        result, names = np.empty(len(table)), self._known(route(table))
        for name in dict.fromkeys(names.tolist()):
            rows = names == name
            parameters = self.weights.classes[name]
            start = scalar(parameters["dispatch"]) if alone else scalar(parameters.get("busy", np.array(LAUNCH)))
            result[rows] = start + self._kernels(name, table.select(rows), gpu, alone)
        return np.maximum(result, bound(table, gpu))

    def interval(self, kernels: Sequence[Kernel], gpu: Gpu, seconds: Floats | None = None) -> tuple[Floats, Floats]:
        """Return (low, high), arrays (kernels,): measured / forecast is between them for 80 % of kernels; (0, inf) if unknown.

        The interval is wider for a GPU farther from the measured ones than these are from each other (module uncertainty). For
        16-bit vector kernels, whose weights are from fp32 ones, it is at least BORROWED. seconds: forecasts of the kernels, if
        the caller has them.
        """
        table = columns(kernels)
        seconds = self.columns(table, gpu) if seconds is None else seconds
        names = self._known(route(table))
        low, high = np.zeros(len(table)), np.full(len(table), np.inf)
        for name in dict.fromkeys(names.tolist()):
            rows = names == name
            quantiles = self.weights.meta.get("intervals", {}).get(name)
            if quantiles:
                is_measured = gpu.name in self.weights.meta["learned"][name]["gpus"]
                distance = None if is_measured else self.distance(name, gpu)
                low[rows], high[rows] = uncertainty.lookup(quantiles, seconds[rows], distance)
        from_fp32 = (spread(names, lambda name: name.startswith("fp32/")) > 0) & (table.dtype != "fp32")
        return np.where(from_fp32, np.minimum(low, BORROWED[0]), low), np.where(
            from_fp32, np.maximum(high, BORROWED[1]), high
        )

    def trained_on(self) -> Mapping[str, Collection[str]]:
        """Return {class of kernels: names of the GPUs in its training data}."""
        return {name: facts["gpus"] for name, facts in self.weights.meta["learned"].items()}

    def distance(self, name: str, gpu: Gpu) -> uncertainty.Distance:
        """Return the distance of `gpu` from the nearest GPU in the training data of class `name`."""
        return uncertainty.nearest(gpu, self.weights.meta["learned"][name]["gpus"])

    def _kernels(self, name: str, table: Columns, gpu: Gpu, alone: bool) -> Floats:
        """Return the seconds of kernels of class `name` without launch (kernels,). Memory-bound kernels take their bytes over a
        share of the bandwidth if the method has no function for them."""
        if name != MEMORY:
            return self.method.seconds(self.weights.classes[name], table, gpu, alone)
        if self.method.memory:
            return self.method.memory(self.weights.classes, table, gpu)
        return table.bytes / (gpu.memory_bandwidth * scalar(self.weights.classes[MEMORY]["fraction"]))

    def _known(self, names: NDArray[np.str_]) -> NDArray[np.str_]:
        """Return the class whose weights forecast the kernels of each class: linear for grouped GEMMs without weights of their
        own."""
        for name in set(GROUPED) - set(self.weights.classes):
            names = np.where(names == name, name.replace("grouped_gemm", "linear"), names)
        return names

    def statement(self, kernels: Sequence[Kernel], gpu: Gpu) -> tuple[Scope, ...]:
        """Return the measured error of each data type and kind among the kernels, on `gpu` or on GPUs left out of training."""
        return tuple(self._scope(dtype, kind, gpu) for dtype, kind in subjects(columns(kernels)))

    def _scope(self, dtype: str, kind: str, gpu: Gpu) -> Scope:
        """Return the measured error of kernels of a data type and kind on `gpu`, or how they are forecast if no error was
        measured."""
        name, subject = str(self._known(np.array([class_of(kind, dtype)]))[0]), f"{dtype} {kind}"
        runs_as = gpu.matrix_type(dtype) if kind in MATRIX else dtype
        subject += f" as {runs_as}" if runs_as != dtype else ""
        if name == MEMORY and self.method.memory:
            return Scope(subject, "bytes at the rate of element-wise kernels, and published rates", None, 0, gpu.name)
        if name == MEMORY:
            share = scalar(self.weights.classes[MEMORY]["fraction"])
            return Scope(subject, f"bytes at {100 * share:.0f} % of the bandwidth", None, 0, gpu.name)
        if origin := weights_source(name, kind, dtype):
            return Scope(subject, origin, None, 0, gpu.name)
        return self._measured(name, subject, gpu)

    def _measured(self, name: str, subject: str, gpu: Gpu) -> Scope:
        """Return the measured error of class `name` on `gpu`, else the mean over GPUs left out of training; None if unknown.

        subject: data type and kind for the result.
        """
        own_errors: Mapping[str, Any] = self.weights.meta.get("own", {}).get(name, {})
        measured: Mapping[str, Any] = {**self.weights.meta["errors"].get(name, {}), **own_errors}
        if gpu.name in measured:
            return Scope(subject, self.name, measured[gpu.name]["mean"], measured[gpu.name]["count"], gpu.name)
        unseen = [row for row in self.weights.meta["errors"].get(name, {}).values() if row["unseen"]]
        count = sum(row["count"] for row in unseen)
        mean = math.fsum(row["mean"] * row["count"] for row in unseen) / count if count else None
        return Scope(subject, self.name, mean, count, "GPUs left out of training", str(self.distance(name, gpu)))


def weights_source(name: str, kind: str, dtype: str) -> str | None:
    """Return in words from which kernels the weights of class `name` are, for a kind and data type that no table measured. Return
    None for those that were measured."""
    family, _, class_kind = name.partition("/")
    if family == "fp32" and dtype != "fp32":
        return "weights of fp32 kernels, scaled by bytes"
    if class_kind != kind:
        return f"weights of {class_kind} kernels"
    return "weights of bf16 kernels" if family == "half" and dtype != "bf16" else None


def scalar(value: Floats) -> float:
    """Return the single number in an array of one element."""
    return float(value.ravel()[0])


def open_weights(method: Method, path: Path | None) -> Learned:
    """Return the predictor of `method` with the weights of a file; None: the shipped ones. Raises DataError if they are missing
    or damaged."""
    path = path or shipped(method.name)
    weights = read(path, method.name)
    for name in (*SIMT, *TENSOR, MEMORY, *(name for name in GROUPED if name in weights.classes)):
        keys = method.special.get(name, method.required)
        required = ("fraction", "dispatch") if name == MEMORY else (*keys, "dispatch")
        missing = [key for key in required if key not in weights.classes.get(name, {})]
        missing_metadata = [key for key in ("errors", "learned") if not isinstance(weights.meta.get(key), dict)]
        if missing or missing_metadata:
            parts = f"{name} {', '.join(missing)}" if missing else f"{' and '.join(missing_metadata)} in the metadata"
            raise DataError(f"{path}: lacks {parts}; train again with `clustersim lab train {method.name}`")
    return Learned(method, weights)
