"""A GPU as input of the published predictor: five figures in the units of its device files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from clustersim.config.gpu import Gpu

GIB = 2.0**30
MIB = 2.0**20
"""Bytes of a GiB, and of a MiB."""


class Board(NamedTuple):
    """Figures of a GPU in the units of the published device files."""

    sms: float
    """Number of SMs."""
    peak: float
    """FP32 peak in GFLOP/s."""
    memory: float
    """Memory in whole GiB."""
    bandwidth: float
    """Memory bandwidth in GB/s."""
    l2: float
    """L2 cache in MiB."""


PUBLISHED: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "p4": {"sms": (20, 40)},
    "l4": {"sms": (58, 60), "peak": (30_300, 31_334), "memory": (23, 24)},
    "h100-sxm": {"bandwidth": (3352, 3430)},
}
"""Values in the device files of sitar-lab/NeuSight (MIT) that differ from the datasheet by more than rounding: (datasheet, file).

The network learned with 40 SMs for P4, and the published errors depend on these figures, so they are kept.
"""


def board(gpu: Gpu, matrix: bool) -> Board:
    """Return the figures of `gpu`, with the FP32 peak of GEMMs if `matrix`, else that of element-wise kernels.

    A published figure replaces the datasheet's value; a value that the user changed is kept.
    """
    peak = gpu.matrix_peak("fp32") if matrix else gpu.vector_peak("fp32")
    figures = Board(gpu.sms, peak / 1e9, math.ceil(gpu.memory / GIB), gpu.memory_bandwidth / 1e9, gpu.l2 / MIB)
    listed = PUBLISHED.get(gpu.name, {}).items()
    replaced = {name: new for name, (old, new) in listed if math.isclose(getattr(figures, name), old, rel_tol=1e-9)}
    return figures._replace(**replaced)
