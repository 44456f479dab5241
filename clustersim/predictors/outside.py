"""Wraps the predictor of a plugin and checks all its results before they are used."""

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
    """Predictor `inner` of a plugin, called `spelling` in YAML. Methods raise InputError with that name for invalid results."""

    __slots__ = ("_burst", "_name", "inner", "spelling")

    def __init__(self, inner: object, spelling: str) -> None:
        with plugins.blaming(ROOM, spelling):
            if not isinstance(inner, Predictor):
                raise TypeError(
                    f"load returned {shown(inner)}; derive its class from clustersim.predictors.base.Predictor"
                )
            if not isinstance(inner.name, str) or not inner.name.isprintable():
                raise TypeError(f"its name is {shown(inner.name)}; write one word")
            self.inner, self.spelling, self._name, self._burst = inner, spelling, inner.name[:60], bool(inner.burst)

    @property
    def name(self) -> str:
        """Name that the plugin's predictor returned when it was loaded, at most 60 characters."""
        return self._name

    @property
    def burst(self) -> bool:
        """Whether its forecasts hold for a short burst, as in `Predictor.burst`."""
        return self._burst

    def predict(self, kernels: Sequence[Kernel], gpu: Gpu, alone: bool = False) -> Floats:
        """Return the seconds of each kernel (kernels,), with arguments as in `Predictor.predict`. Raises InputError unless they
        are finite, positive and at most `_LONGEST`."""
        with plugins.blaming(ROOM, self.spelling):
            seconds = _floats("predict", self.inner.predict(kernels, gpu, alone=alone), len(kernels))
            if not ((seconds > 0) & (seconds <= _LONGEST)).all():
                wrong = seconds[~((seconds > 0) & (seconds <= _LONGEST))][0]
                raise ValueError(f"predict returned {wrong:g} s; a kernel takes more than 0 and at most {_LONGEST:g} s")
            return seconds

    def statement(self, kernels: Sequence[Kernel], gpu: Gpu) -> tuple[Scope, ...]:
        """Return the accuracy that the plugin states. Raises InputError if an entry is not a `Scope`."""
        with plugins.blaming(ROOM, self.spelling):
            scopes = tuple(self.inner.statement(kernels, gpu))
            for scope in scopes:
                if not isinstance(scope, Scope):
                    raise TypeError(f"statement returned {shown(scope)}; it is a tuple of Scope")
                str(scope)
            return scopes

    def interval(self, kernels: Sequence[Kernel], gpu: Gpu, seconds: Floats | None = None) -> tuple[Floats, Floats]:
        """Return (low, high), arrays (kernels,) of measured / forecast, as in `Predictor.interval`. Raises InputError unless 0 <=
        low <= high."""
        with plugins.blaming(ROOM, self.spelling):
            low, high = (_floats("interval", ends, len(kernels)) for ends in self.inner.interval(kernels, gpu, seconds))
            if not ((low >= 0) & (low <= high)).all():
                raise ValueError("interval returned ends that are not 0 <= low <= high")
            return low, high

    def trained_on(self) -> Mapping[str, Collection[str]]:
        """Return {class of kernels: names of the GPUs in its training data}."""
        with plugins.blaming(ROOM, self.spelling):
            return {str(name): frozenset(map(str, gpus)) for name, gpus in self.inner.trained_on().items()}


def _floats(method: str, values: Any, count: int) -> Floats:
    """Return `values` as an array of floats (count,). Raises TypeError if they are not `count` numbers.

    method: name of the plugin's method that returned them, for the message.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or array.shape != (count,):
        raise TypeError(f"{method} returned {shown(values)} for {count} kernels; it is an array of one number for each")
    return array.astype(np.float64)
