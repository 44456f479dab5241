"""`clustersim kernels`: the kernels that one rank launches in a step; `clustersim predict`: a pass of a model on one GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

from clustersim.cli.options import RUN, JsonOutput, WorkloadFile, completing, model_file, naming
from clustersim.errors import InputError
from clustersim.report.table import table
from clustersim.units import duration, gibibytes, plural, scaled

if TYPE_CHECKING:
    from clustersim.config.gpu import Gpu
    from clustersim.parallel.job import Job
    from clustersim.parallel.kernel_table import KernelRow
    from clustersim.predictors.base import Predictor
    from clustersim.predictors.clocks import Clocks
    from clustersim.predictors.uncertainty import Bounds
    from clustersim.single_gpu.model import Graph
    from clustersim.single_gpu.total import Total

COLUMNS = ("layer", "operator", "direction", "kind", "op", "shape", "dtype", "launches", "GFLOP", "MB")
SECONDS = ("seconds", "seconds_low", "seconds_high")
Type = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]


def kernels(
    workload: WorkloadFile,
    *,
    gpus: Annotated[int | None, "Number of GPUs of the job; default: one replica.", {"min": 1}] = None,
    stage: Annotated[int | None, "Pipeline stage; default: all stages.", {"min": 0}] = None,
    gpu: Annotated[str | None, "GPU, or path to its YAML file, for forecasts."] = None,
    output: JsonOutput,
) -> None:
    """Print the kernels of one step: for each its place in the model, shape, count, FLOP and bytes.

    Counts are launches in one step on one tensor-parallel lane, over all its pipeline stages; GFLOP and MB are of one
    launch. An exchange between GPUs shows its size in MB. With --gpu each kernel has the seconds of one launch, by the
    predictor and clocks of the workload, and between which 80 of 100 such kernels lie.
    """
    from clustersim.model.kernel import Kernel
    from clustersim.parallel.kernel_table import rows
    from clustersim.parallel.load import load

    job = load(workload)
    p = job.parallelism
    many = gpus or p.lanes * (p.ep if p.dp == "auto" else p.dp)
    job = job.place(many, many if p.tp_across_nodes else max(p.tp, 1))
    stages = p.pp * p.vpp
    if stage is not None and stage >= stages:
        listed = f"0 to {stages - 1}" if stages > 1 else "0"
        raise InputError(f"--stage {stage}: the job has {plural(stages, 'stage', 'stages')}; use {listed}")
    kernel_rows = rows(job, stage)
    times = _times(job, kernel_rows, gpu) if gpu else {}
    unknown: dict[str, float | None] = dict.fromkeys(SECONDS) if gpu else {}
    records, size = [], ("launches", "flop", "bytes")
    for row in kernel_rows:
        record = {key: getattr(row, key) for key in ("layer", "operator", "direction")}
        record |= {"kind": getattr(row.step, "kind", "exchange"), "op": row.step.op, "shape": row.shape}
        record |= {"dtype": getattr(row.step, "dtype", ""), **{key: getattr(row, key) for key in size}}
        records.append(record | times.get(row.step, unknown))
    launched, sent = ([row for row in kernel_rows if isinstance(row.step, Kernel) is kind] for kind in (True, False))
    total = {
        "launches": sum(row.launches for row in launched),
        "flop": math.fsum(row.flop * row.launches for row in launched),
        "bytes": math.fsum(row.bytes * row.launches for row in launched),
        "exchanges": sum(row.launches for row in sent),
        "exchange_bytes": math.fsum(row.bytes * row.launches for row in sent),
    }
    fields = {"workload": job.name, "kernels": records, "total": total}
    output.show("kernels", lambda: fields, lambda: _kernel_lines(job, records, total, bool(times)))


def _times(job: Job, kernel_rows: list[KernelRow], name: str) -> dict[object, dict[str, float | None]]:
    """Return {kernel: {each of SECONDS: seconds of a launch on the GPU `name`, None if unknown}}."""
    from clustersim.hardware import gpus
    from clustersim.model.kernel import Kernel
    from clustersim.plugins import named_by
    from clustersim.predictors.forecasts import Forecasts
    from clustersim.predictors.load import get

    distinct = list(dict.fromkeys(row.step for row in kernel_rows if isinstance(row.step, Kernel)))
    gpu = gpus.load(name)
    with named_by(lambda text: job.error("predictor", text)):
        forecasts = Forecasts(get(job.spec.predictor), gpu)
        seconds, ends = forecasts.seconds(distinct, job.spec.clocks), forecasts.bounds(distinct).ends()
    return {kernel: _span(seconds[kernel], ends[kernel]) for kernel in distinct}


def _span(seconds: float, ends: tuple[float | None, float | None]) -> dict[str, float | None]:
    """Return {each of SECONDS: seconds of a launch}, None if unknown. ends: low and high end of the interval / seconds."""
    return dict(zip(SECONDS, (seconds, *(end and seconds * end for end in ends)), strict=True))


def _kernel_lines(job: Job, records: list[dict[str, Any]], total: dict[str, float], timed: bool) -> Iterator[str]:
    """Yield a job's split, its kernels as a table, with columns of times if `timed`, and the sums over a step (`total`)."""
    p, microbatches = job.parallelism, plural(job.microbatches, "microbatch", "microbatches")
    ep = f", ep {p.ep}" if p.ep > 1 else ""
    yield f"{job.name}: tp {p.tp}, pp {p.pp}, dp {job.dp}{ep}, {microbatches} a step"
    cells = [[*COLUMNS, *(("time", "low", "high") if timed else ())]]
    for row in records:
        numbers = [f"{row['launches']}", f"{row['flop'] / 1e9:.4g}", f"{row['bytes'] / 1e6:.4g}"]
        times = [duration(row[key]) if row[key] else "" for key in SECONDS] if timed else []
        cells.append([*(row[name] for name in COLUMNS[:7]), *numbers, *times])
    yield from table(cells, "<<<<<<<>")
    work = f"{total['launches']:,} launches, {scaled(total['flop'], 'FLOP')}, {scaled(total['bytes'], 'B')} of memory traffic"
    sent = f"{total['exchanges']:,} tensor-parallel exchanges of {scaled(total['exchange_bytes'], 'B')}"
    yield f"One step: {work}; {sent}."


def predict(
    model: Annotated[
        str,
        "A Hugging Face config.json, a workload file or the name of a shipped one, or file.py:function with a "
        "PyTorch module.",
        "MODEL",
        {"parser": model_file, "autocompletion": completing("workloads")},
    ],
    *,
    gpu: Annotated[str, "Name of a GPU, or a path to its YAML file."],
    mode: Annotated[Literal["inference", "training"], "Forward pass only, or forward and backward."] = "inference",
    batch: Annotated[int | None, "Sequences; default: the workload's, or 1.", {"min": 1}] = None,
    seq: Annotated[int | None, "Tokens per sequence; default: the model's, at most 2048.", {"min": 1}] = None,
    dtype: Annotated[Type | None, "Data type; default: the model's own, or fp32."] = None,
    fusion: Annotated[bool, "Fuse kernels as torch.compile does in inference."] = False,
    predictor: Annotated[str, RUN["predictor"].what] = "neusight",
    clocks: Annotated[str, RUN["clocks"].what] = "sustained",
    per_kernel: Annotated[bool, "List every distinct kernel."] = False,
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
    chosen_clocks = _clocks(clocks)
    with naming("--predictor"):
        chosen = get(predictor)
        prediction = total(graph, chosen, board, eager=not fusion, clocks=chosen_clocks)
        kinds = [kernel for kernel, _, _ in prediction.kernels]
        intervals = bounds(chosen, kinds, board, np.array([seconds for _, _, seconds in prediction.kernels]))
        record = _prediction(graph, prediction, board, chosen, mode, intervals)
        record["clocks"] = statement(kinds, board, applied(chosen, chosen_clocks))
        record |= {"kernels": _kernels(prediction, intervals)} if per_kernel else {}
    output.show("predict", lambda: record, lambda: _lines(record))


def _clocks(text: str) -> Clocks:
    """Return the clocks named by `--clocks`: `boost`, `sustained` or a share. Raises InputError for any other text."""
    if text in ("boost", "sustained"):
        return "boost" if text == "boost" else "sustained"
    with suppress(ValueError):
        if 0 < (share := float(text)) <= 1:
            return share
    raise InputError(f"--clocks {text}: write sustained, boost, or a share above 0 and up to 1, such as 0.85")


def _prediction(graph: Graph, time: Total, gpu: Gpu, predictor: Predictor, mode: str, bounds: Bounds) -> dict[str, Any]:
    """Return a pass as JSON data in SI units. mode: `training` or `inference`.

    Keys: `model`, `gpu`, `mode`, `predictor`, `parameters`, `flop`, `seconds`, `seconds_low` and `…_high` (None if unknown),
    `interval` in words, `waiting_for_cpu` (s), `phases`, `launches`, `classes` (by kind of kernel), `errors`,
    `priced_by_bytes_alone`, and if known `fits` and `memory`.
    """
    from clustersim.report.verdicts import band, verdict

    sums: dict[str, tuple[int, float]] = {}
    for kernel, count, each in time.kernels:
        launches, seconds = sums.get(kernel.kind, (0, 0.0))
        sums[kernel.kind] = launches + count, seconds + count * each
    margin = bounds.margin(time.seconds, time.critical)
    share = 100 * time.waits / time.seconds if time.seconds else 0.0
    waits = f"; {share:.0f} % of the time waits for the CPU, whose calls are guessed and not in it" if share > 5 else ""
    memory: dict[str, Any] = {}
    if needed := graph.memory:
        judgement, published = verdict(needed.total, gpu.memory), band(needed.total, gpu.memory)
        basis = {"verdict": judgement, "ran_share": published.share, "evidence": published.text}
        sizes = {"total_bytes": needed.total, "capacity_bytes": gpu.memory}
        kinds = {f"{kind}_bytes": value for kind, value in needed._asdict().items()}
        memory = {"fits": judgement == "likely", "memory": basis | sizes | kinds}
    return {
        "model": graph.name,
        "gpu": gpu.name,
        "mode": mode,
        "predictor": predictor.name,
        "parameters": graph.parameters,
        "flop": graph.flop,
        "seconds": time.seconds,
        "seconds_low": margin.low,
        "seconds_high": margin.high,
        "interval": margin.note + waits,
        "waiting_for_cpu": time.waits,
        "phases": [part._asdict() for part in time.parts],
        "launches": sum(part.launches for part in time.parts),
        "classes": [
            {"kind": kind, "launches": count, "seconds": seconds / count}
            for kind, (count, seconds) in sorted(sums.items(), key=lambda item: -item[1][1])
        ],
        "errors": [str(scope) for scope in predictor.statement([kernel for kernel, _, _ in time.kernels], gpu)],
        "priced_by_bytes_alone": list(graph.unknown),
        **memory,
    }


def _kernels(prediction: Total, intervals: Bounds) -> list[dict[str, Any]]:
    """Return {`kind`, `op`, `dtype`, `shape`, `flop`, `bytes`, `launches`, SECONDS} of each kernel, the longest total first."""
    ends = intervals.ends()
    rows = []
    for kernel, launches, seconds in prediction.kernels:
        sizes = (kernel.batch, kernel.m, kernel.n, kernel.k) if kernel.k else (kernel.m, kernel.n)
        names: dict[str, Any] = {key: getattr(kernel, key) for key in ("kind", "op", "dtype")}
        names["shape"] = "×".join(map(str, sizes))
        counts = {"flop": kernel.flop, "bytes": kernel.bytes, "launches": launches}
        rows.append(names | counts | _span(seconds, ends[kernel]))
    return sorted(rows, key=lambda row: -float(row["launches"] * row["seconds"]))


def _lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield the text of a prediction: its time, size, phases and memory, tables of kernels, and how sure they are."""
    from clustersim.predictors.uncertainty import interval_text
    from clustersim.report.verdicts import WORDS

    span = interval_text(record["seconds_low"], record["seconds_high"])
    yield f"{record['model']} on {record['gpu']}, {record['mode']}: {duration(record['seconds'])}{span}"
    size = f"{record['parameters'] / 1e6:,.1f} million parameters"
    yield f"  {size}, {scaled(record['flop'], 'FLOP')} in products, {record['launches']:,} kernels"
    for part in record["phases"]:
        yield f"  {part['phase']:10} {duration(part['gpu']):>9} of {part['launches']:,} kernels"
    if memory := record.get("memory"):
        kinds = ("parameters", "gradients", "optimizer", "activations")
        parts = ", ".join(f"{kind} {gibibytes(memory[f'{kind}_bytes'])}" for kind in kinds if memory[f"{kind}_bytes"])
        full = f"{gibibytes(memory['total_bytes'])} of {gibibytes(memory['capacity_bytes'])}"
        yield f"  {'memory':10} {WORDS[memory['verdict']]}, {full} ({memory['evidence']}): {parts}"
        if memory["verdict"] == "no":
            yield f"warning: this model does not fit into one {record['gpu']}; the times are those of its kernels alone"
    yield f"  {'waiting':10} {duration(record['waiting_for_cpu']):>9} for calls of the CPU"
    yield from _times_table(record["classes"], ("kind",))
    if "kernels" in record:
        yield from _times_table(record["kernels"], ("kind", "op", "dtype", "shape"))
    for name in record["priced_by_bytes_alone"]:
        yield f"  {name}: not in the table of operators, priced by the bytes it reads and writes"
    yield f"kernel times by {record['predictor']}; error on held-out kernels:"
    yield from (f"  {line}" for line in record["errors"])
    yield f"clocks: {record['clocks']}"
    yield f"interval: {record['interval']}"


def _times_table(rows: list[dict[str, Any]], names: tuple[str, ...]) -> list[str]:
    """Return rows, of kernels or classes (columns `names`), as a table of launches, times and share of the sum of all times."""
    ends = ("low", "high") if rows and "seconds_low" in rows[0] else ()
    total = math.fsum(row["launches"] * row["seconds"] for row in rows) or 1.0

    def cells(row: dict[str, Any]) -> list[str]:
        """Return the cells of a kernel: names, launches, time of one and all, share, interval."""
        every = row["launches"] * row["seconds"]
        times = [duration(row["seconds"]), duration(every), f"{100 * every / total:.1f} %"]
        bounds = [duration(seconds) if (seconds := row[f"seconds_{end}"]) else "" for end in ends]
        return [*(row[name] for name in names), f"{row['launches']:,}", *times, *bounds]

    head = [*names, "launches", "one", "all", "share", *ends]
    return table([head, *map(cells, rows)], "<" * len(names) + ">")
