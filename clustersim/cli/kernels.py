"""`clustersim kernels WORKLOAD`: the table of kernels that one rank launches in a step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from clustersim.cli.commands import option
from clustersim.cli.options import JsonOutput, WorkloadFile
from clustersim.errors import InputError
from clustersim.units import duration, plural, scaled

if TYPE_CHECKING:
    from clustersim.model.kernel import Kernel
    from clustersim.model.operator import Collective
    from clustersim.parallel.job import Job
    from clustersim.parallel.kernel_table import KernelRow

    Times = dict[Kernel | Collective, tuple[float, float | None, float | None]]

COLUMNS = ("layer", "operator", "direction", "kind", "op", "shape", "dtype", "launches", "GFLOP", "MB")
SECONDS = ("seconds", "seconds_low", "seconds_high")


def kernels(
    workload: WorkloadFile,
    *,
    gpus: Annotated[int | None, option("Number of GPUs of the job; default: one replica.", min=1)] = None,
    stage: Annotated[int | None, option("Pipeline stage; default: all stages.", min=0)] = None,
    gpu: Annotated[str | None, option("GPU, or path to its YAML file, for forecasts.")] = None,
    output: JsonOutput,
) -> None:
    """Print the kernels of one step: for each its place in the model, shape, count, FLOP and bytes.

    Counts are launches in one step on one tensor-parallel lane, over all its pipeline stages; GFLOP and MB are of one
    launch. An exchange between GPUs shows its size in MB. With --gpu each kernel has the seconds of one launch, by the
    predictor and clocks of the workload, and between which 80 of 100 such kernels lie.
    """
    from clustersim.parallel.kernel_table import rows
    from clustersim.parallel.load import load

    job = _placed(load(workload), gpus)
    stages = job.parallelism.pp * job.parallelism.vpp
    if stage is not None and stage >= stages:
        listed = f"0 to {stages - 1}" if stages > 1 else "0"
        raise InputError(f"--stage {stage}: the job has {plural(stages, 'stage', 'stages')}; use {listed}")
    found = rows(job, stage)
    times = _times(job, found, gpu) if gpu else {}
    records = [_record(row, times) for row in found]
    total = _total(found)
    output.show(
        "kernels",
        lambda: {"workload": job.name, "kernels": records, "total": total},
        lambda: [_title(job), *_table(records, bool(times)), _sentence(total)],
    )


def _placed(job: Job, gpus: int | None) -> Job:
    """Return the job placed on `gpus` GPUs, by default on those of one replica (or of the dp in the workload)."""
    p = job.parallelism
    replicas = p.ep if p.dp == "auto" else p.dp
    many = gpus or p.lanes * replicas
    return job.place(many, many if p.tp_across_nodes else max(p.tp, 1))


def _times(job: Job, found: list[KernelRow], name: str) -> Times:
    """Return the seconds of each kernel on a GPU, and their low and high ends, None if unknown."""
    from clustersim.hardware import gpus
    from clustersim.model.kernel import Kernel
    from clustersim.plugins import named_by
    from clustersim.predictors.forecasts import Forecasts
    from clustersim.predictors.load import get

    gpu = gpus.load(name)
    own = list(dict.fromkeys(row.step for row in found if isinstance(row.step, Kernel)))
    with named_by(lambda text: job.error("predictor", text)):
        predictor = get(job.spec.predictor)
        forecasts = Forecasts(predictor, gpu)
        seconds, ends = forecasts.seconds(own, job.spec.clocks), forecasts.bounds(own).ends().values()
    return {
        kernel: (seconds[kernel], low and seconds[kernel] * low, high and seconds[kernel] * high)
        for kernel, (low, high) in zip(own, ends, strict=True)
    }


def _record(row: KernelRow, times: Times) -> dict[str, Any]:
    """Return a row of the table of kernels as JSON data, with the seconds of a launch if they are known."""
    from clustersim.model.kernel import Kernel

    step = row.step
    return {
        "layer": row.layer,
        "operator": row.operator,
        "direction": row.direction,
        "kind": step.kind if isinstance(step, Kernel) else "exchange",
        "op": step.op,
        "shape": row.shape,
        "dtype": step.dtype if isinstance(step, Kernel) else "",
        "launches": row.launches,
        "flop": row.flop,
        "bytes": row.bytes,
        **(dict(zip(SECONDS, times.get(step, (None,) * 3), strict=True)) if times else {}),
    }


def _total(found: list[KernelRow]) -> dict[str, float]:
    """Return the sums over a step: launches, FLOP, bytes moved in memory, bytes of exchanges."""
    from clustersim.model.kernel import Kernel

    own = [row for row in found if isinstance(row.step, Kernel)]
    sent = [row for row in found if not isinstance(row.step, Kernel)]
    return {
        "launches": sum(row.launches for row in own),
        "flop": math.fsum(row.flop * row.launches for row in own),
        "bytes": math.fsum(row.bytes * row.launches for row in own),
        "exchanges": sum(row.launches for row in sent),
        "exchange_bytes": math.fsum(row.bytes * row.launches for row in sent),
    }


def _title(job: Job) -> str:
    """Return the job's name, its split and its number of microbatches."""
    p = job.parallelism
    ep = f", ep {p.ep}" if p.ep > 1 else ""
    many = plural(job.microbatches, "microbatch", "microbatches")
    return f"{job.name}: tp {p.tp}, pp {p.pp}, dp {job.dp}{ep}, {many} a step"


def _table(records: list[dict[str, Any]], timed: bool) -> list[str]:
    """Return the kernels as a table, with columns of times if `timed`."""
    from clustersim.report.terminal import table

    def cells(row: dict[str, Any]) -> list[str]:
        numbers = [f"{row['launches']}", f"{row['flop'] / 1e9:.4g}", f"{row['bytes'] / 1e6:.4g}"]
        times = [duration(row[key]) if row[key] else "" for key in SECONDS] if timed else []
        return [*(row[name] for name in COLUMNS[:7]), *numbers, *times]

    head = [*COLUMNS, *(("time", "low", "high") if timed else ())]
    return table([head, *map(cells, records)], "<<<<<<<>")


def _sentence(total: dict[str, float]) -> str:
    """Return the sums over a step as one sentence."""
    return (
        f"One step: {total['launches']:,} launches, {scaled(total['flop'], 'FLOP')}, {scaled(total['bytes'], 'B')} of memory "
        f"traffic; {total['exchanges']:,} tensor-parallel exchanges of {scaled(total['exchange_bytes'], 'B')}."
    )
