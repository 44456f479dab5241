"""Measured kernels in memory, for training and judging predictors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustersim.arrays import Floats
from clustersim.hardware import gpus
from clustersim.predictors.classes import route
from clustersim.predictors.features import Columns, Flags


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured kernels: row i of `table` took `seconds[i]` on `gpu[i]`."""

    table: Columns
    gpu: NDArray[np.str_]
    seconds: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def select(self, rows: Any) -> Samples:
        """Return the rows of a mask or index."""
        return Samples(self.table.select(rows), self.gpu[rows], self.seconds[rows])

    def of(self, *kinds: str) -> Samples:
        """Return the kernels whose `kind` is one of these."""
        return self.select(np.isin(self.table.kind, kinds))


def merge(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all parts, at least one."""
    table = Columns(*(np.concatenate([getattr(one.table, f) for one in parts]) for f in Columns.__slots__))
    return Samples(table, *(np.concatenate([getattr(one, name) for one in parts]) for name in ("gpu", "seconds")))


def gpus_of(samples: Samples) -> dict[str, Flags]:
    """Return {GPU's name in the table: mask of its rows}."""
    return {name: samples.gpu == name for name in dict.fromkeys(samples.gpu.tolist())}


def pick(samples: Samples, name: str) -> Samples:
    """Return the samples whose class by `predictors.classes.route` is `name`."""
    return samples.select(route(samples.table) == name)


def canonical(samples: Samples) -> Samples:
    """Return samples with each GPU under the name in its YAML; paths to YAML files stay."""
    names = {name: name if name.endswith((".yaml", ".yml")) else gpus.load(name).name for name in gpus_of(samples)}
    return replace(samples, gpu=np.array([names[name] for name in samples.gpu.tolist()], dtype=np.str_))
