"""The share of its peak that a GPU's matrix units attain in tables of kernels, limited by issue slots and power.

One figure per GPU and data type, from the datasheet (power, peak, lanes) or a published search (`attained`), so that it is known
for GPUs without measured kernels. Nothing here is learned. The limit by power is the law of `clustersim.predictors.power`, with
the figures of such tables.
"""

from __future__ import annotations

from typing import Annotated

from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.predictors.power import LONG, SEARCH, SIMT, TILE

ISSUE: Annotated[float, Declared()] = 64 / 76
"""Share of issue slots left to FFMA instructions where a scheduler has 32 FP32 lanes (Pascal, Ada, Hopper).

Such a scheduler issues one warp instruction per clock, and an FFMA fills it; an 8×8 register tile needs 64 FFMA, 4 shared loads
and about 8 others per step. With 16 lanes (Volta, Turing, A100) an FFMA takes two clocks, which hides the others.
"""
SIMT_SHARPNESS: Annotated[float, Declared(chosen_on="not recorded; FP32 products of 10 GPUs: 16.1, 16, 15.9 %")] = 6.0
"""How sharply the limits of issue slots and of power combine: the exponent q of `attainable_share`."""


def attainable_share(gpu: Gpu, dtype: str) -> float:
    """Return the attainable share of `gpu.matrix_peak(dtype)`, in (0, 1].

    FP32 on SIMT units: (issue^-q + power^-q)^(-1/q). Tensor cores: the published search if there is one, else the power law.
    Fewer watts per FLOP never raise FLOP/s · share.
    """
    if dtype in ("fp32", "fp64"):
        q = SIMT_SHARPNESS
        return float((_issue(gpu) ** -q + SIMT.share(gpu, dtype) ** -q) ** (-1 / q))
    # AMD's searches run for seconds, so that clocks.py uses them as sustained rates
    known = attained(gpu, dtype) if gpu.vendor == "nvidia" else 0.0
    return known or min(1.0, SEARCH.share(gpu, dtype))


def attained(gpu: Gpu, dtype: str) -> float:
    """Return the share of the matrix peak that a published search attained in `dtype` or a type of equal width; 0 if unknown. It
    is at most 1."""
    as_wide = ("bf16", "fp16") if dtype in ("bf16", "fp16", "tf32") or dtype not in gpu.matrix else ()
    for name in (dtype, *as_wide):
        if name in gpu.attained and name in gpu.matrix:
            return min(1.0, gpu.attained[name] / gpu.matrix[name])
    return 0.0


def _issue(gpu: Gpu) -> float:
    """Return the share of FP32 issue slots, in (0, 1], that GEMMs have for FFMA instructions; 1 if issue does not limit them."""
    lanes = gpu.vector_peak("fp32") / (2 * gpu.clock * gpu.sms)  # lanes of one of 4 schedulers (P100: of 2)
    full = gpu.architecture == "pascal" or lanes > 96
    return ISSUE if gpu.vendor == "nvidia" and full else 1.0


def share_in_tile(gpu: Gpu, dtype: str) -> float:
    """Return the share of the peak that matrix units reach inside a tile of a GEMM, from the datasheet.

    On SIMT units it is `attainable_share`. On tensor cores it may exceed 1; learned constants correct it.
    """
    return attainable_share(gpu, dtype) if dtype in ("fp32", "fp64") else TILE.share(gpu, dtype)


def table_slowdown(gpu: Gpu, dtype: str) -> float:
    """Return how strongly the power limit slows the long GEMMs of measured tables, relative to `power.SLOWED_BOARD`.

    It is below 1 for boards with more power per FLOP/s than that board.
    """
    return 1 / LONG.share(gpu, dtype)
