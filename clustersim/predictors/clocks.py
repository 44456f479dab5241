"""Clocks: what the board's power leaves of a short burst's rate when matrix products run for seconds.

Tables of kernels are timed in bursts of milliseconds, before the power controller acts; a training step is the steady
state. docs/predictors.md has the law and its evidence.
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
from clustersim.predictors.attention_generations import longer
from clustersim.predictors.base import Predictor
from clustersim.predictors.features import Columns, columns, peak, spread
from clustersim.predictors.power import EXPONENT, STEP, WIDTH

Clocks = Literal["sustained", "boost"] | float

FULL: Annotated[float, Declared(chosen_on="not recorded; 83 published steps: 12.7, 12.9, 13.3 %")] = 0.8
"""Share of the peak at boost clocks that large products reach: those that the shares of a GPU were read from."""
SHARPNESS: Annotated[float, Declared(chosen_on="not recorded")] = 3.0
"""How sharply computing and memory bound a kernel: roof = (compute^q + memory^q)^(1/q)."""


def sustained(gpu: Gpu, dtype: str) -> float:
    """Return the share, in (0, 1], of their burst rate that matrix products hold on `gpu` for seconds.

    `sustained` of the GPU's YAML where it has the type; else the law of its power (`power.STEP`), at most 1: the clock falls
    until the board meets its limit. Products on SIMT units (fp32, fp64) count as 1: their tables are timed in loops of seconds.
    """
    name = gpu.matrix_type(dtype)
    if name in gpu.sustained:
        return gpu.sustained[name]
    return 1.0 if _timed_long(gpu, dtype) else min(1.0, STEP.share(gpu, name))


def share(gpu: Gpu, dtype: str, clocks: Clocks) -> float:
    """Return the share of the burst rate under `clocks`: `boost` is 1, `sustained` the GPU's own, a number itself."""
    if isinstance(clocks, str):
        return sustained(gpu, dtype) if clocks == "sustained" else 1.0
    return clocks


def source(gpu: Gpu, dtype: str, clocks: Clocks) -> str:
    """Return where the share is from: `measured` on this GPU, `law` of its power, `given`, `boost`; `table` (timed long)."""
    if clocks != "sustained":
        return "boost" if clocks == "boost" else "given"
    if gpu.matrix_type(dtype) in gpu.sustained:
        return "measured"
    return "table" if _timed_long(gpu, dtype) else "law"


def follows_power(gpu: Gpu, dtype: str) -> bool:
    """Return whether matrix products in `dtype` hold a share of their burst rate, so that they slow down under load."""
    return not _timed_long(gpu, dtype)


def _timed_long(gpu: Gpu, dtype: str) -> bool:
    name = gpu.matrix_type(dtype)
    return dtype not in WIDTH or name not in WIDTH or gpu.matrix[name] == gpu.vector.get(name)


def derate(kernels: Sequence[Kernel], seconds: Floats, gpu: Gpu, clocks: Clocks) -> Floats:
    """Return the seconds of kernels at `clocks` from those of a burst; `clocks: boost` gives back what it got.

    A matrix kernel's time behind its launch grows by ((c / share)^q + m^q)^(1/q) over (c^q + m^q)^(1/q), c and m its seconds
    of computing and of memory at the datasheet's rates: bound by memory, it does not change. `sustained` also keeps it from
    beating `attained`. Never faster than the burst, and monotone in the share. Other kernels stay. Attention of a generation that
    was named takes as much longer at all clocks.
    """
    if (factors := longer(kernels, gpu)) is not None:
        plain = [kernel._replace(generation="") for kernel in kernels]
        return factors * derate(plain, seconds, gpu, clocks)
    if clocks == "boost":
        return seconds
    table = columns(kernels)
    shares = spread(table.dtype, lambda dtype: share(gpu, dtype, clocks))
    busy = np.maximum(seconds - LAUNCH, 0.0)
    if clocks == "sustained":
        shares = _spared(table, gpu, shares, busy)
    slower = seconds + busy * (_slowdown(table, gpu, shares) - 1)
    if clocks == "sustained":
        slower = np.maximum(slower, table.flop / spread(table.dtype, lambda dtype: _ceiling(gpu, dtype)))
    return np.where(table.matrix, slower, seconds)


def speeds(kernels: Sequence[Kernel], gpu: Gpu) -> Floats:
    """Return how many times as fast as forecast kernels run on `gpu`, as its `speed` says of their group (kernels,)."""
    groups = {"flash_attention": "attention", **dict.fromkeys(VECTOR, "vector")}
    known: Mapping[str, float] = {str(group): value for group, value in gpu.speed.items()}
    return np.array([known.get(groups.get(kernel.kind, "products"), 1.0) for kernel in kernels])


def _spared(table: Columns, gpu: Gpu, shares: Floats, busy: Floats) -> Floats:
    """Return the shares of kernels that leave matrix units idle, and so draw less: dynamic power goes with their rate too.

    share · (rate / (FULL · peak))^(-1/g), at most 1: flash attention computes exponentials half of the time.
    """
    rate = table.flop / np.maximum(busy, 1e-12) / (FULL * peak(table, gpu))
    result: Floats = np.minimum(1.0, shares * np.clip(rate, 1e-9, 1.0) ** (-1 / EXPONENT))
    return np.where(shares < 1, result, shares)


def _slowdown(table: Columns, gpu: Gpu, shares: Floats) -> Floats:
    compute, memory = table.flop / peak(table, gpu), table.bytes / gpu.memory_bandwidth
    q = SHARPNESS
    result: Floats = (((compute / shares) ** q + memory**q) / (compute**q + memory**q)) ** (1 / q)
    return result


def _ceiling(gpu: Gpu, dtype: str) -> float:
    return gpu.attained.get(gpu.matrix_type(dtype), float("inf"))


def applied(predictor: Predictor, clocks: Clocks) -> Clocks:
    """Return the clocks for the forecasts of `predictor`: bounds at datasheet rates are no bursts and stay as they are."""
    return clocks if clocks != "sustained" or predictor.burst else "boost"


def statement(kernels: Sequence[Kernel], gpu: Gpu, clocks: Clocks) -> str:
    """Return the assumed clocks, such as `sustained: bf16 matrix products at 92 % of their rate in a short burst`."""
    if clocks == "boost":
        return "boost: as in a short burst"
    found = shares_of(kernels, gpu, clocks)
    shares = ", ".join(f"{dtype} {100 * one['share']:.0f} %{SAID[one['source']]}" for dtype, one in found.items())
    if clocks != "sustained":
        return f"as given: matrix products at {shares} of their rate in a short burst" if shares else "as given"
    more = "; kernels that leave matrix units idle keep more"
    return f"sustained: matrix products at {shares} of their rate in a short burst{more}" if shares else "sustained"


SAID: Mapping[str, str] = {
    "measured": " (measured)",
    "law": " (from its power)",
    "given": "",
    "boost": "",
    "table": " (timed for seconds)",
}


def shares_of(kernels: Sequence[Kernel], gpu: Gpu, clocks: Clocks) -> dict[str, dict[str, Any]]:
    """Return {data type: {share, source}} of the matrix products among `kernels`; `source` as of that function."""
    table = columns(kernels)
    types = dict.fromkeys(table.dtype[table.matrix].tolist())
    return {dtype: {"share": share(gpu, dtype, clocks), "source": source(gpu, dtype, clocks)} for dtype in types}
