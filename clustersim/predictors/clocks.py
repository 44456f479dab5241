"""Clocks: the share of a short burst's rate that remains for GEMMs that run for seconds, because of the power limit.

Tables of kernels are timed in bursts of milliseconds, before the power controller acts; a training step is a steady state.
docs/predictors.md has the law and its evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.evidence import Declared
from clustersim.config.gpu import Gpu
from clustersim.hardware.constants import LAUNCH
from clustersim.model.kernel import VECTOR, Kernel
from clustersim.predictors.attention_generations import slowdown_factors
from clustersim.predictors.base import Predictor
from clustersim.predictors.features import Columns, columns, peak, spread
from clustersim.predictors.power import EXPONENT, STEP, WIDTH

Clocks = Literal["sustained", "boost"] | float
"""`sustained` for steps of seconds, `boost` for a short burst, or the share of the burst rate that GEMMs keep."""

FULL: Annotated[float, Declared(chosen_on="not recorded; 83 published steps: 12.7, 12.9, 13.3 %")] = 0.8
"""Share of the peak at boost clocks that large GEMMs reach, such as those from which a GPU's sustained shares were read."""
SHARPNESS: Annotated[float, Declared(chosen_on="not recorded")] = 3.0
"""How sharply the time turns from compute-bound to memory-bound: roof = (compute^q + memory^q)^(1/q), with this q."""


def sustained(gpu: Gpu, dtype: str) -> float:
    """Return the share, in (0, 1], of their burst rate that GEMMs of `dtype` sustain on `gpu` for seconds.

    It is `sustained` in the GPU's YAML if the type is listed, else the power law (`power.STEP`), at most 1: the clock falls until
    the board meets its power limit. A lower limit set by the GPU's owner reduces the share in both cases. GEMMs on SIMT units
    (fp32, fp64) have 1.
    """
    name = gpu.matrix_type(dtype)
    if name in gpu.sustained:
        return gpu.sustained[name] * STEP.limited(gpu)
    return min(1.0, STEP.share(gpu, name) * STEP.limited(gpu)) if follows_power(gpu, dtype) else 1.0


def share(gpu: Gpu, dtype: str, clocks: Clocks) -> float:
    """Return the share of the burst rate of GEMMs: 1 for `boost`, `sustained(gpu, dtype)` for `sustained`, or the number
    `clocks`."""
    if isinstance(clocks, str):
        return sustained(gpu, dtype) if clocks == "sustained" else 1.0
    return clocks


def source(gpu: Gpu, dtype: str, clocks: Clocks) -> str:
    """Return where the result of `share` is from.

    `boost` and `given` (a number) are the requested clocks. For `sustained`, it is `measured` on this GPU without a lower power
    limit, `law` for the power law, or `table` for types whose tables are timed for seconds.
    """
    if clocks != "sustained":
        return "boost" if clocks == "boost" else "given"
    if gpu.matrix_type(dtype) in gpu.sustained and gpu.power_limit is None:
        return "measured"
    return "law" if follows_power(gpu, dtype) else "table"


def follows_power(gpu: Gpu, dtype: str) -> bool:
    """Return whether GEMMs of `dtype` slow down under sustained load. Those on SIMT units do not: their tables are timed for
    seconds."""
    name = gpu.matrix_type(dtype)
    return dtype in WIDTH and name in WIDTH and gpu.matrix[name] != gpu.vector.get(name)


def derate(kernels: Sequence[Kernel], seconds: Floats, gpu: Gpu, clocks: Clocks) -> Floats:
    """Return the seconds of each kernel at `clocks` (kernels,). seconds: their forecasts for a short burst.

    The time of a matrix kernel after its launch grows by ((c / share)^q + m^q)^(1/q) over (c^q + m^q)^(1/q), with c and m its
    seconds of computation and of memory at datasheet rates. So memory-bound kernels do not change. With `sustained`, kernels also
    cannot exceed the GPU's `attained` rate. The result is never faster than the burst, and monotone in the share. Other kernels
    are unchanged. A named generation of attention slows down by the same factor at all clocks, `boost` included.
    """
    if (factors := slowdown_factors(kernels, gpu)) is not None:
        plain = [kernel._replace(generation="") for kernel in kernels]
        return factors * derate(plain, seconds, gpu, clocks)
    if clocks == "boost":
        return seconds
    table = columns(kernels)
    shares = spread(table.dtype, lambda dtype: share(gpu, dtype, clocks))
    busy = np.maximum(seconds - LAUNCH, 0.0)
    if clocks == "sustained":
        shares = _partly_idle(table, gpu, shares, busy)
    slower = seconds + busy * (_slowdown(table, gpu, shares) - 1)
    if clocks == "sustained":
        ceiling = spread(table.dtype, lambda dtype: gpu.attained.get(gpu.matrix_type(dtype), float("inf")))
        slower = np.maximum(slower, table.flop / ceiling)
    return np.where(table.matrix, slower, seconds)


def speeds(kernels: Sequence[Kernel], gpu: Gpu) -> Floats:
    """Return the factor by which each kernel runs faster than forecast, as `speed` in the GPU's YAML says (kernels,); 1 by
    default."""
    groups = {"flash_attention": "attention", **dict.fromkeys(VECTOR, "vector")}
    known: Mapping[str, float] = {str(group): value for group, value in gpu.speed.items()}
    return np.array([known.get(groups.get(kernel.kind, "products"), 1.0) for kernel in kernels])


def _partly_idle(table: Columns, gpu: Gpu, shares: Floats, busy: Floats) -> Floats:
    """Return larger shares of the burst rate for kernels that leave matrix units partly idle, and so draw less power (kernels,).

    The result is share · (rate / (FULL · peak))^(-1/g), at most 1. Flash attention, for example, spends half of its time on
    exponentials. busy: seconds of each kernel in a burst, without its launch.
    """
    rate = table.flop / np.maximum(busy, 1e-12) / (FULL * peak(table, gpu))
    result: Floats = np.minimum(1.0, shares * np.clip(rate, 1e-9, 1.0) ** (-1 / EXPONENT))
    return np.where(shares < 1, result, shares)


def _slowdown(table: Columns, gpu: Gpu, shares: Floats) -> Floats:
    """Return the factor, at least 1, by which each kernel takes longer than in a burst (kernels,).

    shares: share of the burst rate at which each kernel computes (kernels,); its rate of memory is unchanged.
    """
    compute, memory = table.flop / peak(table, gpu), table.bytes / gpu.memory_bandwidth
    q = SHARPNESS
    result: Floats = (((compute / shares) ** q + memory**q) / (compute**q + memory**q)) ** (1 / q)
    return result


def applied(predictor: Predictor, clocks: Clocks) -> Clocks:
    """Return the clocks for forecasts of `predictor`: `clocks`, but `boost` for `sustained` if the predictor returns bounds."""
    return clocks if clocks != "sustained" or predictor.burst else "boost"


def statement(kernels: Sequence[Kernel], gpu: Gpu, clocks: Clocks) -> str:
    """Return the assumed clocks in words, such as `sustained: matrix products at bf16 92 % of their rate in a short burst`."""
    if clocks == "boost":
        return "boost: as in a short burst"
    types = shares_of(kernels, gpu, clocks).items()
    shares = ", ".join(f"{dtype} {100 * row['share']:.0f} %{SOURCES.get(row['source'], '')}" for dtype, row in types)
    if clocks != "sustained":
        return f"as given: matrix products at {shares} of their rate in a short burst" if shares else "as given"
    more = "; kernels that leave matrix units idle keep more"
    return f"sustained: matrix products at {shares} of their rate in a short burst{more}" if shares else "sustained"


SOURCES = {"measured": " (measured)", "law": " (from its power)", "table": " (timed for seconds)"}
"""{result of `source`: its words after a share}."""


def shares_of(kernels: Sequence[Kernel], gpu: Gpu, clocks: Clocks) -> dict[str, dict[str, Any]]:
    """Return {data type: {`share`: result of `share`, `source`: result of `source`}} for the GEMMs among `kernels`."""
    table = columns(kernels)
    types = dict.fromkeys(table.dtype[table.matrix].tolist())
    return {dtype: {"share": share(gpu, dtype, clocks), "source": source(gpu, dtype, clocks)} for dtype in types}
