"""Kernels of a step for pages: time, distance from the roofline, and interval of the forecast."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from clustersim.config.gpu import Gpu
from clustersim.model.kernel import Kernel
from clustersim.parallel.kernel_table import rows
from clustersim.report.interval import exposed
from clustersim.simulation import StepResult

PRODUCTS = frozenset({"linear", "bmm", "grouped_gemm", "flash_attention"})
"""Kinds of kernels on matrix units."""


class KernelRates(NamedTuple):
    """Kernels of a step with the roofs of its GPU."""

    rows: list[dict[str, Any]]
    """Rows of kernels, the one with the most time first; keys are columns of the page's table."""
    roofs: list[dict[str, Any]]
    """`dtype`, `unit` and `peak` (FLOP/s) of each peak that the kernels can reach, the highest first."""
    bandwidth: float
    """Memory bandwidth of the GPU in bytes/s."""


def kernels(result: StepResult) -> KernelRates:
    """Return the kernels of a step.

    `share` is of the mean rank's step, `critical_s` the seconds on the critical path. Rates are FLOP/s and bytes/s of one
    launch. 80 % of such kernels take between `low` and `high` times the forecast. On mixed GPUs, values are those of the first
    type of the job.
    """
    kind = int(result.topology.kind_of(result.work.gpus).min())
    gpu, seconds = result.topology.kinds[kind].gpu, result.work.seconds[kind]
    on_path = exposed(result.work, result.facts.path)[0].sum(axis=0).tolist()
    bounds, critical = result.facts.forecast.bounds.ends(), dict(zip(result.work.kernels, on_path, strict=True))
    launched = [(row, row.step) for row in rows(result.job) if isinstance(row.step, Kernel) and row.step in seconds]
    launches: defaultdict[Kernel, int] = defaultdict(int)
    for row, kernel in launched:
        launches[kernel] += row.launches
    table = []
    for row, kernel in launched:
        low, high = bounds.get(kernel, (None, None))
        table.append(
            {
                **{name: getattr(row, name) for name in ("layer", "operator", "direction")},
                "kind": kernel.kind,
                "op": kernel.op,
                "shape": row.shape,
                "dtype": kernel.dtype,
                "launches": row.launches,
                "seconds": seconds[kernel],
                "flop": kernel.flop,
                "bytes": kernel.bytes,
                **_roofline(gpu, kernel, seconds[kernel]),
                "share": row.launches * seconds[kernel] / result.job.parallelism.pp / result.record.end,
                "critical_s": critical.get(kernel, 0.0) * row.launches / launches[kernel],
                "low": low,
                "high": high,
            }
        )
    table.sort(key=lambda line: -line["share"])
    peaks = {(kernel.dtype, kernel.kind in PRODUCTS): _peak(gpu, kernel) for kernel in launches}
    roofs = [
        {"dtype": dtype, "unit": "matrix" if matrix else "vector", "peak": peak}
        for (dtype, matrix), peak in sorted(peaks.items(), key=lambda roof: -roof[1])
    ]
    return KernelRates(table, roofs, gpu.memory_bandwidth)


def _roofline(gpu: Gpu, kernel: Kernel, seconds: float) -> dict[str, Any]:
    """Return `bound`, the limit of a kernel (compute or memory), and `of_roof`, its share of that limit in `seconds` a launch."""
    peak = _peak(gpu, kernel)
    roof = min(peak, kernel.flop / kernel.bytes * gpu.memory_bandwidth) if kernel.flop and kernel.bytes else 0.0
    used = kernel.flop / seconds / roof if roof else kernel.bytes / seconds / gpu.memory_bandwidth
    return {"bound": "compute" if roof and roof == peak else "memory", "of_roof": used}


def _peak(gpu: Gpu, kernel: Kernel) -> float:
    """Return the peak FLOP/s of the units that a kernel uses."""
    return gpu.matrix_peak(kernel.dtype) if kernel.kind in PRODUCTS else gpu.vector_peak(kernel.dtype)
