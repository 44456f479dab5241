"""Wraps an outside predictor and checks all its results before they are used."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from clustersim import plugins
from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.errors import shown
from clustersim.model.kernel import Kernel
from clustersim.predictors.base import ROOM, Predictor, Scope

_LONGEST = 1e6
"""Largest accepted time of a kernel, in seconds."""


class Checked(Predictor):
    """Outside predictor `own`, called `spelling` in YAML. Its methods raise InputError with that name for invalid results."""

    __slots__ = ("_burst", "_name", "own", "spelling")

    def __init__(self, own: object, spelling: str) -> None:
        with plugins.blaming(ROOM, spelling):
            if not isinstance(own, Predictor):
                raise TypeError(
                    f"load returned {shown(own)}; derive its class from clustersim.predictors.base.Predictor"
                )
            if not isinstance(own.name, str) or not own.name.isprintable():
                raise TypeError(f"its name is {shown(own.name)}; write one word")
            self.own, self.spelling, self._name, self._burst = own, spelling, own.name[:60], bool(own.burst)

    @property
    def name(self) -> str:
        """Name that the outside predictor returns."""
        return self._name

    @property
    def burst(self) -> bool:
        """Whether its forecasts hold for a short burst."""
        return self._burst

    def predict(self, kernels: Sequence[Kernel], gpu: Gpu, alone: bool = False) -> Floats:
        """Return the seconds of each kernel. Raises InputError unless they are finite, positive and at most `_LONGEST`."""
        with plugins.blaming(ROOM, self.spelling):
            found = _floats("predict", self.own.predict(kernels, gpu, alone=alone), len(kernels))
            if not ((found > 0) & (found <= _LONGEST)).all():
                wrong = found[~((found > 0) & (found <= _LONGEST))][0]
                raise ValueError(f"predict returned {wrong:g} s; a kernel takes more than 0 and at most {_LONGEST:g} s")
            return found

    def statement(self, kernels: Sequence[Kernel], gpu: Gpu) -> tuple[Scope, ...]:
        """Return the outside predictor's known errors, checked for type."""
        with plugins.blaming(ROOM, self.spelling):
            found = tuple(self.own.statement(kernels, gpu))
            for scope in found:
                if not isinstance(scope, Scope):
                    raise TypeError(f"statement returned {shown(scope)}; it is a tuple of Scope")
                str(scope)
            return found

    def interval(self, kernels: Sequence[Kernel], gpu: Gpu, seconds: Floats | None = None) -> tuple[Floats, Floats]:
        """Return the arrays (low, high) of measured / forecast, checked for length and order."""
        with plugins.blaming(ROOM, self.spelling):
            low, high = (_floats("interval", ends, len(kernels)) for ends in self.own.interval(kernels, gpu, seconds))
            if not ((low >= 0) & (low <= high)).all():
                raise ValueError("interval returned ends that are not 0 <= low <= high")
            return low, high

    def trained_on(self) -> Mapping[str, Collection[str]]:
        """Return {class of kernels: GPUs in its training data}."""
        with plugins.blaming(ROOM, self.spelling):
            return {str(name): frozenset(map(str, gpus)) for name, gpus in self.own.trained_on().items()}


def _floats(method: str, values: Any, count: int) -> Floats:
    """Return what a method returned as an array of floats. Raises TypeError unless it has one number per kernel."""
    found = np.asarray(values)
    if found.dtype.kind not in "fiu" or found.shape != (count,):
        raise TypeError(f"{method} returned {shown(values)} for {count} kernels; it is an array of one number for each")
    return found.astype(np.float64)
