"""A GPU as input of the published predictor: five figures in the units of its device files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from clustersim.config.gpu import Gpu

GIB = 2.0**30
MIB = 2.0**20


class Board(NamedTuple):
    """SMs, FP32 peak (GFLOP/s), memory (whole GiB), bandwidth (GB/s) and L2 (MiB)."""

    sms: float
    peak: float
    memory: float
    bandwidth: float
    l2: float


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

    Published figures replace datasheet values only; the values of a user's own GPU are kept.
    """
    peak = gpu.matrix_peak("fp32") if matrix else gpu.vector_peak("fp32")
    own = Board(gpu.sms, peak / 1e9, math.ceil(gpu.memory / GIB), gpu.memory_bandwidth / 1e9, gpu.l2 / MIB)
    theirs = PUBLISHED.get(gpu.name, {})
    same = {name: new for name, (old, new) in theirs.items() if math.isclose(getattr(own, name), old, rel_tol=1e-9)}
    return own._replace(**same)
