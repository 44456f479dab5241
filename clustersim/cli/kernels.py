"""`clustersim kernels`: the kernels that one rank launches in a step; `clustersim predict`: a pass of a model on one GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal
from typing import Annotated as Opt

from clustersim.cli.options import RUN, JsonOutput, WorkloadFile, completing, model_file, naming
from clustersim.errors import InputError
from clustersim.units import duration, gibibytes, plural, scaled

if TYPE_CHECKING:
    from clustersim.config.gpu import Gpu
    from clustersim.model.kernel import Kernel
    from clustersim.model.operator import Collective
    from clustersim.parallel.job import Job
    from clustersim.parallel.kernel_table import KernelRow
    from clustersim.predictors.base import Predictor
    from clustersim.predictors.clocks import Clocks
    from clustersim.predictors.uncertainty import Bounds
    from clustersim.single_gpu.model import Graph
    from clustersim.single_gpu.total import Total

    Times = dict[Kernel | Collective, tuple[float, float | None, float | None]]

COLUMNS = ("layer", "operator", "direction", "kind", "op", "shape", "dtype", "launches", "GFLOP", "MB")
SECONDS = ("seconds", "seconds_low", "seconds_high")
Type = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]


def kernels(
    workload: WorkloadFile,
    *,
    gpus: Opt[int | None, "Number of GPUs of the job; default: one replica.", {"min": 1}] = None,
    stage: Opt[int | None, "Pipeline stage; default: all stages.", {"min": 0}] = None,
    gpu: Opt[str | None, "GPU, or path to its YAML file, for forecasts."] = None,
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
    from clustersim.report.table import table

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


def predict(
    model: Opt[
        str,
        "A Hugging Face config.json, a workload file or the name of a shipped one, or file.py:function with a "
        "PyTorch module.",
        "MODEL",
        {"parser": model_file, "autocompletion": completing("workloads")},
    ],
    *,
    gpu: Opt[str, "Name of a GPU, or a path to its YAML file."],
    mode: Opt[Literal["inference", "training"], "Forward pass only, or forward and backward."] = "inference",
    batch: Opt[int | None, "Sequences; default: the workload's, or 1.", {"min": 1}] = None,
    seq: Opt[int | None, "Tokens per sequence; default: the model's, at most 2048.", {"min": 1}] = None,
    dtype: Opt[Type | None, "Data type; default: the model's own, or fp32."] = None,
    fusion: Opt[bool, "Fuse kernels as torch.compile does in inference."] = False,
    predictor: Opt[str, RUN["predictor"].what] = "neusight",
    clocks: Opt[str, RUN["clocks"].what] = "sustained",
    per_kernel: Opt[bool, "List every distinct kernel."] = False,
    output: JsonOutput,
) -> None:
    """Predict one pass of a whole model on one GPU: no cluster, no optimizer, every kernel as PyTorch launches it."""
    import numpy as np

    from clustersim.hardware import gpus
    from clustersim.predictors.clocks import applied, statement
    from clustersim.predictors.load import get
    from clustersim.predictors.uncertainty import bounds
    from clustersim.single_gpu.loading import load
    from clustersim.single_gpu.model import Request
    from clustersim.single_gpu.total import total

    if fusion and mode == "training":
        raise InputError("--fusion is what torch.compile fuses in inference; leave it out or use --mode inference")
    board = gpus.load(gpu)
    graph = load(model, Request(mode == "training", batch, seq, dtype, fusion))
    rates = _clocks(clocks)
    with naming("--predictor"):
        using = get(predictor)
        found = total(graph, using, board, eager=not fusion, clocks=rates)
        off = bounds(
            using, [kernel for kernel, _, _ in found.kernels], board, np.array([one for _, _, one in found.kernels])
        )
        said = {"clocks": statement([kernel for kernel, _, _ in found.kernels], board, applied(using, rates))}
        record = (
            _prediction(graph, found, board, using, mode, off)
            | _memory(graph, board)
            | said
            | ({"kernels": _kernels(found, off)} if per_kernel else {})
        )
    output.show("predict", lambda: record, lambda: _lines(record))


def _memory(graph: Graph, gpu: Gpu) -> dict[str, Any]:
    """Return whether a model fits into the GPU's memory, and its bytes by kind."""
    from clustersim.report.verdicts import band, verdict

    needed = graph.memory
    if needed is None:
        return {}
    kinds = {f"{kind}_bytes": value for kind, value in needed._asdict().items()}
    said, published = verdict(needed.total, gpu.memory), band(needed.total, gpu.memory)
    return {
        "fits": said == "likely",
        "memory": {
            "verdict": said,
            "ran_share": published.share,
            "evidence": published.said,
            "total_bytes": needed.total,
            "capacity_bytes": gpu.memory,
            **kinds,
        },
    }


def _fits(memory: dict[str, Any]) -> str:
    """Return one line: whether the model fits, its memory and the GPU's, and its largest kinds of memory."""
    from clustersim.report.verdicts import WORDS

    kinds = ("parameters", "gradients", "optimizer", "activations")
    parts = ", ".join(f"{kind} {gibibytes(memory[f'{kind}_bytes'])}" for kind in kinds if memory[f"{kind}_bytes"])
    full = f"{gibibytes(memory['total_bytes'])} of {gibibytes(memory['capacity_bytes'])}"
    return f"{WORDS[memory['verdict']]}, {full} ({memory['evidence']}): {parts}"


def _unsure(found: Total) -> str:
    """Return a note on the CPU's share of the time; empty if it is at most 5 %."""
    share = found.waits / found.seconds if found.seconds else 0.0
    return (
        f"; {100 * share:.0f} % of the time waits for the CPU, whose calls are guessed and not in it"
        if share > 0.05
        else ""
    )


def _clocks(text: str) -> Clocks:
    """Return the clocks named by `--clocks`: `boost`, `sustained` or a share. Raises InputError for any other text."""
    if text in ("boost", "sustained"):
        return "boost" if text == "boost" else "sustained"
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise InputError(f"--clocks {text}: write sustained, boost, or a share above 0 and up to 1, such as 0.85")
    return share


def _prediction(graph: Graph, found: Total, gpu: Gpu, predictor: Predictor, mode: str, off: Bounds) -> dict[str, Any]:
    """Return the prediction as JSON data, in SI units. mode: `training` or `inference`; off: intervals of the kernels."""
    margin = off.margin(found.seconds, found.critical)
    return {
        "model": graph.name,
        "gpu": gpu.name,
        "mode": mode,
        "predictor": predictor.name,
        "parameters": graph.parameters,
        "flop": graph.flop,
        "seconds": found.seconds,
        "seconds_low": margin.low,
        "seconds_high": margin.high,
        "interval": margin.note + _unsure(found),
        "waiting_for_cpu": found.waits,
        "phases": [part._asdict() for part in found.parts],
        "launches": sum(part.launches for part in found.parts),
        "classes": _classes(found),
        "errors": [str(scope) for scope in predictor.statement([kernel for kernel, _, _ in found.kernels], gpu)],
        "priced_by_bytes_alone": list(graph.unknown),
    }


def _classes(found: Total) -> list[dict[str, Any]]:
    """Return, for each class of kernels, its launches and mean seconds per launch, sorted by their product."""
    sums: dict[str, tuple[int, float]] = {}
    for kernel, count, one in found.kernels:
        launches, seconds = sums.get(kernel.kind, (0, 0.0))
        sums[kernel.kind] = launches + count, seconds + count * one
    rows = sorted(sums.items(), key=lambda item: -item[1][1])
    return [{"kind": kind, "launches": count, "seconds": seconds / count} for kind, (count, seconds) in rows]


def _kernels(found: Total, off: Bounds) -> list[dict[str, Any]]:
    """Return all distinct kernels as JSON data, with the seconds per launch, in descending order of total time."""
    ends = off.ends()
    rows = []
    for kernel, launches, seconds in found.kernels:
        sizes = (kernel.batch, kernel.m, kernel.n, kernel.k) if kernel.k else (kernel.m, kernel.n)
        row: dict[str, Any] = {
            "kind": kernel.kind,
            "op": kernel.op,
            "dtype": kernel.dtype,
            "shape": "×".join(map(str, sizes)),
        }
        row |= {"flop": kernel.flop, "bytes": kernel.bytes, "launches": launches, "seconds": seconds}
        low, high = ends[kernel]
        rows.append(row | {"seconds_low": low and seconds * low, "seconds_high": high and seconds * high})
    return sorted(rows, key=lambda row: -float(row["launches"] * row["seconds"]))


def _lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield the text of a prediction: its times, tables of kernels, and how sure they are."""
    yield from _head(record)
    yield from _times_table(record["classes"], ("kind",))
    if "kernels" in record:
        yield from _times_table(record["kernels"], ("kind", "op", "dtype", "shape"))
    for name in record["priced_by_bytes_alone"]:
        yield f"  {name}: not in the table of operators, priced by the bytes it reads and writes"
    yield f"kernel times by {record['predictor']}; error on held-out kernels:"
    yield from (f"  {line}" for line in record["errors"])
    yield f"clocks: {record['clocks']}"
    yield f"interval: {record['interval']}"


def _head(record: dict[str, Any]) -> Iterator[str]:
    """Yield the lines on the whole pass: its time, size, phases, memory and waiting."""
    from clustersim.predictors.uncertainty import between

    span = between(record["seconds_low"], record["seconds_high"])
    yield f"{record['model']} on {record['gpu']}, {record['mode']}: {duration(record['seconds'])}{span}"
    size = f"{record['parameters'] / 1e6:,.1f} million parameters"
    yield f"  {size}, {scaled(record['flop'], 'FLOP')} in products, {record['launches']:,} kernels"
    for part in record["phases"]:
        yield f"  {part['phase']:10} {duration(part['gpu']):>9} of {part['launches']:,} kernels"
    if "memory" in record:
        yield f"  {'memory':10} {_fits(record['memory'])}"
        if record["memory"]["verdict"] == "no":
            yield f"warning: this model does not fit into one {record['gpu']}; the times are those of its kernels alone"
    yield f"  {'waiting':10} {duration(record['waiting_for_cpu']):>9} for calls of the CPU"


def _times_table(rows: list[dict[str, Any]], names: tuple[str, ...]) -> list[str]:
    """Return kernels, or classes of kernels, as a table of their launches, times and share of the sum of all times."""
    from clustersim.report.table import table

    ends = ("low", "high") if rows and "seconds_low" in rows[0] else ()
    whole = math.fsum(row["launches"] * row["seconds"] for row in rows) or 1.0

    def cells(row: dict[str, Any]) -> list[str]:
        every = row["launches"] * row["seconds"]
        times = [duration(row["seconds"]), duration(every), f"{100 * every / whole:.1f} %"]
        bounds = [duration(seconds) if (seconds := row[f"seconds_{end}"]) else "" for end in ends]
        return [*(row[name] for name in names), f"{row['launches']:,}", *times, *bounds]

    head = [*names, "launches", "one", "all", "share", *ends]
    return table([head, *map(cells, rows)], "<" * len(names) + ">")
