"""The share of its peak that a GPU's matrix units attain, as tables of kernels show it: what issue slots and power leave.

One figure per GPU and data type, from the datasheet (power, peak, lanes) or from a published search (`attained`), so that
it is known for a GPU that nobody has measured kernel by kernel. Nothing here is learned. What power leaves of it in a step of
seconds is the law of `clustersim.predictors.clocks`; why that law does not serve here too: docs/decisions/0008-power.md.
"""

from __future__ import annotations

from clustersim.config.gpu import Gpu
from clustersim.predictors.clocks import WIDTH

SIMT_WATTS = 17.0
"""Watts per TFLOP/s of FP32 products at 12 nm, whole board: a T4 (70 W) sustains 4.1 TFLOP/s of its 8.1 (NeuSight's
training table)."""
NODE_GAIN = {"pascal": 1.0, "volta": 1.0, "turing": 1.0, "ampere": 1 / 0.7}
NEWEST_GAIN = 1 / 0.49
"""Operations a joule by process node, relative to 16/12 nm: each full node takes 30 % off (TSMC on N7 to N5).

AMD's matrix cores at 7 nm count as one node further, as they share operands that SIMT lanes fetch one by one.
"""
ISSUE = 64 / 76
"""Share of issue slots left to FFMA where a scheduler has 32 FP32 lanes (Pascal, Ada, Hopper).

Such a scheduler issues one warp instruction a clock and an FFMA fills it; an 8×8 register tile needs 64 FFMA, 4 shared
loads and about 8 more a step. With 16 lanes (Volta, Turing, A100) an FFMA takes two clocks and hides the rest.
"""
SEARCHED = (0.77, 0.13)
"""(c, b) of share = c · (gain · watts per TFLOP/s)^b on tensor cores: the line through the published searches (MAMF) on
A100, H100, B200, B300 and GB200, bf16 and fp8, all within 7 %."""
SIMT_SHARPNESS = 6.0
IN_TILE = (0.92, 0.13)
"""(c, b) of the share that tensor cores reach inside a tile in a kernel of microseconds, before the power controller acts.

Learning corrects c (`gemm.level`); b is that of SEARCHED."""
SLOWED_BOARD = (0.7, 1.9e9)
"""The board that `table_slowdown` is relative to: watts per TFLOP/s at 4 nm, and boost clock in Hz."""
SLOWED_EXPONENTS = (-0.5, 2.5)
"""Exponents of `table_slowdown`: of the watts per TFLOP/s, and of the clock."""


def attainable_share(gpu: Gpu, dtype: str) -> float:
    """Return the attainable share of `gpu.matrix_peak(dtype)`, in (0, 1].

    FP32 on SIMT units: (issue^-q + power^-q)^(-1/q), power = gain · watts / (17 · TFLOP/s). Tensor cores: the published
    search where there is one, else the power law. Lower watts per FLOP never raise FLOP/s · share.
    """
    watts = _watts(gpu, dtype)
    if dtype in ("fp32", "fp64"):
        return float(
            (_issue(gpu) ** -SIMT_SHARPNESS + (watts / SIMT_WATTS) ** -SIMT_SHARPNESS) ** (-1 / SIMT_SHARPNESS)
        )
    scale, exponent = SEARCHED
    known = (
        attained(gpu, dtype) if gpu.vendor == "nvidia" else 0.0
    )  # AMD's searches run for seconds: clocks says what they hold
    return known or min(1.0, scale * float(watts**exponent))


def attained(gpu: Gpu, dtype: str) -> float:
    """Return the share of the matrix peak that a published search attained in `dtype` or a type as wide, 0 when unknown."""
    as_wide = ("bf16", "fp16") if dtype in ("bf16", "fp16", "tf32") or dtype not in gpu.matrix else ()
    for name in (dtype, *as_wide):
        if name in gpu.attained and name in gpu.matrix:
            return min(1.0, gpu.attained[name] / gpu.matrix[name])
    return 0.0


def _issue(gpu: Gpu) -> float:
    lanes = gpu.vector_peak("fp32") / (2 * gpu.clock * gpu.sms)  # of an SM; 4 schedulers, but 2 in P100's of 64 lanes
    full = gpu.architecture == "pascal" or lanes > 96
    return ISSUE if gpu.vendor == "nvidia" and full else 1.0


def share_in_tile(gpu: Gpu, dtype: str) -> float:
    """Return the share of the peak that matrix units reach inside a tile, from the datasheet; SIMT units: `attainable_share`."""
    if dtype in ("fp32", "fp64"):
        return attainable_share(gpu, dtype)
    scale, exponent = IN_TILE
    return scale * float(_watts(gpu, dtype) ** exponent)


def table_slowdown(gpu: Gpu, dtype: str) -> float:
    """Return how strongly the power controller slows long products, relative to a 4 nm board of 0.7 W per TFLOP/s at 1.9 GHz.

    Demand over supply: dynamic power goes with clock · voltage², and voltage with the clock, so with clock^2.5; supply with
    the square root of the watts per TFLOP/s, as boards of more power also carry more.
    """
    watts = _watts(gpu, dtype) / NEWEST_GAIN / WIDTH.get(dtype, 1.0)
    (usual, clock), (supply, demand) = SLOWED_BOARD, SLOWED_EXPONENTS
    return float((watts / usual) ** supply * (gpu.clock / clock) ** demand)


def _watts(gpu: Gpu, dtype: str) -> float:
    """Return watts per TFLOP/s of the peak, as a 12 nm board would need them."""
    return NODE_GAIN.get(gpu.architecture, NEWEST_GAIN) * gpu.power / (gpu.matrix_peak(dtype) * 1e-12)
