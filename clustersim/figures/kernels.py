"""Kernels of a step for pages: time, distance from the roofline, and interval of the forecast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypedDict

import numpy as np

from clustersim.config.gpu import Gpu
from clustersim.model.kernel import Kernel
from clustersim.parallel.kernel_table import KernelRow, rows
from clustersim.preparation import Preparation
from clustersim.report.interval import exposed
from clustersim.simulation import StepResult

PRODUCTS = frozenset({"linear", "bmm", "grouped_gemm", "flash_attention"})
"""Kinds of kernels on matrix units."""


class Rated(TypedDict):
    """A kernel of a page; keys are columns of its table."""

    layer: str
    operator: str
    direction: str
    kind: str
    op: str
    shape: str
    dtype: str
    launches: float
    seconds: float
    flop: float
    bytes: float
    bound: str
    of_roof: float
    share: float
    critical_s: float
    low: float | None
    high: float | None


class Roof(TypedDict):
    """A peak of the GPU: data type, kind of unit and FLOP/s."""

    dtype: str
    unit: str
    peak: float


class KernelRates(TypedDict):
    """Kernels of a page with the roofs of the GPU; `bandwidth` in bytes/s."""

    rows: list[Rated]
    roofs: list[Roof]
    bandwidth: float


def kernels(result: StepResult) -> KernelRates:
    """Return the kernels of a step, the one with the most time first.

    `share` is of the mean rank's step, `critical_s` the seconds on the critical path. Rates are FLOP/s and bytes/s of one
    launch. 80 % of such kernels take between `low` and `high` times the forecast. On mixed GPUs, values are those of the first
    type of the job.
    """
    kind = int(result.topology.kind_of(result.work.gpus).min())
    gpu, seconds = result.topology.kinds[kind].gpu, result.work.seconds[kind]
    bounds, critical = result.facts.forecast.bounds.ends(), _critical(result)
    own = [(row, row.step) for row in rows(result.job) if isinstance(row.step, Kernel) and row.step in seconds]
    launches: defaultdict[Kernel, int] = defaultdict(int)
    for row, kernel in own:
        launches[kernel] += row.launches
    found = [
        _rated(
            row,
            kernel,
            seconds[kernel],
            gpu,
            row.launches * seconds[kernel] / result.job.parallelism.pp / result.record.end,
            critical.get(kernel, 0.0) * row.launches / launches[kernel],
            bounds.get(kernel, (None, None)),
        )
        for row, kernel in own
    ]
    found.sort(key=lambda one: -one["share"])
    return {"rows": found, "roofs": _roofs(gpu, launches), "bandwidth": gpu.memory_bandwidth}


def _rated(
    row: KernelRow,
    kernel: Kernel,
    seconds: float,
    gpu: Gpu,
    share: float,
    critical: float,
    bounds: tuple[float | None, float | None],
) -> Rated:
    """Return a kernel's row. `share` is of the mean rank's step, `critical` in seconds."""
    peak = _peak(gpu, kernel)
    roof = min(peak, kernel.flop / kernel.bytes * gpu.memory_bandwidth) if kernel.flop and kernel.bytes else 0.0
    used = kernel.flop / seconds / roof if roof else kernel.bytes / seconds / gpu.memory_bandwidth
    return {
        "layer": row.layer,
        "operator": row.operator,
        "direction": row.direction,
        "kind": kernel.kind,
        "op": kernel.op,
        "shape": row.shape,
        "dtype": kernel.dtype,
        "launches": row.launches,
        "seconds": seconds,
        "flop": kernel.flop,
        "bytes": kernel.bytes,
        "bound": "compute" if roof and roof == peak else "memory",
        "of_roof": used,
        "share": share,
        "critical_s": critical,
        "low": bounds[0],
        "high": bounds[1],
    }


def _peak(gpu: Gpu, kernel: Kernel) -> float:
    """Return the peak FLOP/s of the units that a kernel uses."""
    return gpu.matrix_peak(kernel.dtype) if kernel.kind in PRODUCTS else gpu.vector_peak(kernel.dtype)


def _roofs(gpu: Gpu, used: Iterable[Kernel]) -> list[Roof]:
    """Return the peaks that the kernels can reach, the highest first, equal ones in the order of the kernels."""
    found = {(kernel.dtype, kernel.kind in PRODUCTS): _peak(gpu, kernel) for kernel in used}
    return [
        {"dtype": dtype, "unit": "matrix" if matrix else "vector", "peak": peak}
        for (dtype, matrix), peak in sorted(found.items(), key=lambda one: -one[1])
    ]


def _critical(result: StepResult) -> dict[Kernel, float]:
    """Return {kernel: seconds on the critical path}."""
    counted = Preparation(result.topology).passes(result.work)
    each = np.array([[own.get(kernel, np.inf) for kernel in counted.kernels] for own in result.work.seconds])
    found = exposed(result.work, result.plan, result.facts.path, counted, each).sum(axis=0)
    return dict(zip(counted.kernels, found.tolist(), strict=True))
