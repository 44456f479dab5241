"""Clocks: what the board's power leaves of a short burst's rate when matrix products run for seconds.

Tables of kernels are timed in bursts of milliseconds, before the power controller acts; a training step is the steady
state. docs/clocks.md has the argument, the evidence and what each constant was read from. No training run is among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.gpu import Gpu
from clustersim.hardware.constants import LAUNCH
from clustersim.model.kernel import Kernel
from clustersim.predictors.attention_generations import longer
from clustersim.predictors.base import Predictor
from clustersim.predictors.features import Columns, columns, peak, spread

Clocks = Literal["sustained", "boost"] | float

STATIC = 0.14
"""Share of the power limit that does not follow the clock: leakage, memory, links. nvidia-smi shows idle boards at 54 of
400 W (A100), 75 of 700 (H200), 145 of 1000 (B200), 180 of 1100 (B300), 160 of 1200 (GB200), 172 of 1400 W (GB300)."""
EXPONENT = 1.8
"""g of dynamic power ~ clock^g: 1 at a fixed voltage, 3 where voltage follows the clock. The same kernels at 750 and at
1000 W (MI300X, MI325X; AMD, "Measuring Max-Achievable FLOPs", 2025) run at 1115 and 1354 MHz in fp16, 1207 and 1447 in bf16,
1230 and 1464 in fp8: g = 1.5 to 1.7 at half of the boost clock, and more nearer to it, where the voltage rises."""
ENERGY: Mapping[str, float] = {
    "volta": 1.42,
    "turing": 1.46,
    "ampere": 0.996,
    "ada": 0.788,
    "hopper": 0.527,
    "blackwell": 0.378,
    "blackwell-ultra": 0.378,
    "cdna1": 0.965,
    "cdna2": 0.99,
    "cdna3": 0.725,
    "cdna4": 0.524,
}
"""Picojoules a dense 16-bit FLOP at 1 GHz, of the whole board; they grow with clock^(g - 1). From products of 20 ms and more on
A100, H100, H200, L40S, B200, B300 and GB200, which reach 0.91, 0.80, 0.81, 0.68, 0.77, 0.75 and 0.74 of the forecast at boost
clocks, and from AMD's clocks above. Volta, Turing, CDNA 1, 2 and 4 are a full process node from those: 30 % less energy at
the newer one (TSMC), as in `attainable.py`."""
NEWEST: Mapping[str, float] = {"nvidia": ENERGY["blackwell"], "amd": ENERGY["cdna3"]}
"""For an architecture that is not listed."""
WIDTH: Mapping[str, float] = {"tf32": 2.0, "fp16": 1.0, "bf16": 1.0, "fp8": 0.55, "fp4": 0.55**2}
"""Energy of a FLOP relative to 16 bits: operands halve, accumulators do not. AMD's clocks above say 0.48 for fp8, the long
products of H200, B300, B200 and GB200 0.45, 0.48, 0.57 and 0.62; below 0.5 fp8 would clock above bf16."""
FULL = 0.8
"""Share of the peak at boost clocks that large products reach: those that the shares of a GPU were read from."""
SHARPNESS = 3.0
"""How sharply computing and memory bound a kernel: roof = (compute^q + memory^q)^(1/q)."""


def sustained(gpu: Gpu, dtype: str) -> float:
    """Return the share, in (0, 1], of their burst rate that matrix products hold on `gpu` for seconds.

    `sustained` of the GPU's YAML where it has the type; else (P_dynamic / P_burst)^(1/g) with P_dynamic = 0.86 · power and
    P_burst = energy · width · clock^(g - 1) · peak, at most 1: the clock falls until the board meets its limit. Products on SIMT
    units (fp32, fp64) count as 1: their tables are timed in loops of seconds.
    """
    name = gpu.matrix_type(dtype)
    if name in gpu.sustained:
        return gpu.sustained[name]
    if _timed_long(gpu, dtype):
        return 1.0
    energy = (
        ENERGY.get(gpu.architecture, NEWEST[gpu.vendor]) * WIDTH[name] * (gpu.clock * 1e-9) ** (EXPONENT - 1) * 1e-12
    )
    burst = energy * gpu.matrix[name]
    return min(1.0, float(((1 - STATIC) * gpu.power / burst) ** (1 / EXPONENT)))


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
    """Return what was assumed, such as `sustained: bf16 matrix products at 92 % of their rate in a short burst`."""
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
