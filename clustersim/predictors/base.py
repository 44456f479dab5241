"""What a predictor is, and what it says about its own error.

A plugin is a module (or package) in `kinds/` with `load(weights: Path | None = None) -> Predictor`; `load.get(name)` returns one.
How one that has weights learns them is a file of its name in `lab/train/learners/`, which no forecast imports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.model.kernel import Kernel
from clustersim.predictors.features import Columns, columns

ROOM = "clustersim.predictors"


class Scope(NamedTuple):
    """How far the forecasts of one class of kernels can be trusted."""

    subject: str
    """Data type and kind, such as `fp32 linear`."""
    method: str
    """How they are forecast."""
    error: float | None
    """Mean absolute relative error on held-out kernels, 0.15 = 15 %; None where nothing was measured."""
    samples: int
    """How many kernels that is the mean of."""
    on: str
    """The GPU, or what, that they were measured on."""
    nearest: str = ""
    """Which GPU that was measured comes nearest, where this one was not."""

    def __str__(self) -> str:
        """Return one sentence, such as `fp32 linear: 9.1 % on h100-sxm (1040 held-out kernels)`."""
        if self.error is None:
            return f"{self.subject}: {self.method}, error not measured"
        nearest = f"; {self.nearest}" if self.nearest else ""
        return f"{self.subject}: {100 * self.error:.1f} % on {self.on} ({self.samples} held-out kernels){nearest}"


@runtime_checkable
class Predictor(Protocol):
    """Forecasts how long kernels take on a GPU. Derive from it: only `predict` has no default."""

    __slots__ = ()

    def predict(self, kernels: Sequence[Kernel], gpu: Gpu, alone: bool = False) -> Floats:
        """Return the seconds of each kernel on `gpu`.

        `alone` times a kernel as a micro-benchmark does, with the dispatch of one eager call; without it the kernel is
        one of many in a busy stream. Raises InputError for kernels that make no sense.
        """
        ...

    @property
    def name(self) -> str:
        """One word, as in YAML; the default is that of the class, in small letters."""
        return type(self).__name__.lower()

    @property
    def burst(self) -> bool:
        """Whether forecasts hold for a short burst, so that clocks slow them down in a long step; the default says yes."""
        return True

    def statement(self, kernels: Sequence[Kernel], gpu: Gpu) -> tuple[Scope, ...]:
        """Return the known errors, one entry for each data type and kind among the kernels; default: nothing."""
        found = subjects(columns(kernels))
        return tuple(Scope(f"{dtype} {kind}", self.name, None, 0, gpu.name) for dtype, kind in found)

    def interval(self, kernels: Sequence[Kernel], gpu: Gpu, seconds: Floats | None = None) -> tuple[Floats, Floats]:
        """Return (low, high): measured / forecast lies between them for 80 of 100 kernels; 0 and inf, the default, unknown.

        `seconds` are the forecasts where they are known, which saves making them again.
        """
        return unknown(len(kernels))

    def trained_on(self) -> Mapping[str, Collection[str]]:
        """Return the GPUs whose kernels training has seen, by class of kernels; empty, the default, if it learned nothing."""
        return {}


def unknown(count: int) -> tuple[Floats, Floats]:
    """Return the interval of kernels whose error was never measured: 0 to infinity."""
    return np.zeros(count), np.full(count, np.inf)


def subjects(table: Columns) -> list[tuple[str, str]]:
    """Return the distinct (data type, kind) of the kernels, in order of appearance."""
    return list(dict.fromkeys(zip(table.dtype.tolist(), table.kind.tolist(), strict=True)))
