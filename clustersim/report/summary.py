"""The content of `summary.json`: step time, breakdown, memory, and how it was simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.config.topology import Jitter
from clustersim.engine.compile import Plan, Work
from clustersim.engine.memory import RankMemory
from clustersim.engine.record import Record
from clustersim.frameworks.table import load
from clustersim.hardware.constants import CALL
from clustersim.parallel.flops import hardware_flop, model_flop
from clustersim.parallel.flops import tokens as tokens_of_step
from clustersim.parallel.job import Job
from clustersim.parallel.memory import Memory
from clustersim.parallel.nearby import Nearby
from clustersim.predictors.uncertainty import Bounds, Margin
from clustersim.report.breakdown import Path, mean_of_ranks, path_parts
from clustersim.report.calibration import Expected, Kind, SoftwareLevel, expected
from clustersim.report.interval import StepKernels
from clustersim.report.links import busiest, link_bytes, path_limits
from clustersim.report.path_shares import path_shares
from clustersim.report.trace import cells_that_fit, shown_counts, slice_counts
from clustersim.report.verdicts import band, idle_facts, not_modelled, verdict, warnings
from clustersim.topology.host_links import host_with_least_room
from clustersim.topology.model import Topology


class Forecast(NamedTuple):
    """Uncertainty of the kernel times."""

    statement: list[str]
    """The predictor's error in words."""
    clocks: str
    """Assumed clocks in words."""
    shares: dict[str, dict[str, Any]]
    """{data type: share of a short burst's rate that GEMMs sustain, and its source}"""
    bounds: Bounds
    """Interval of each kernel."""


class Facts(NamedTuple):
    """Inputs of the summary besides plan and record."""

    memory: list[RankMemory]
    """Memory of each pipeline rank."""
    forecast: Forecast
    kernels: StepKernels
    """Kernels of the critical path."""
    path: Path
    """The critical path."""
    nearby: Nearby | None
    """A split or batch that uses more of the cluster's GPUs, if some are idle and there is one; else None."""
    full_attention: bool


def summary(
    topology: Topology, work: Work, plan: Plan, record: Record, parts: list[dict[str, float]], facts: Facts
) -> dict[str, Any]:
    """Return the content of `summary.json`. parts: {part: s} of each rank cell.

    Keys: `name`, `cluster`, `parallelism`, those of `_speed`, `idle`, `warnings`, `breakdown_s` (mean of ranks),
    `critical_path_s`, `critical_path`, `memory`, `busiest_links`, `predictor`, `not_modelled`, `simulated`, `trace`; if any,
    `assumed` and `ignored_arguments`.
    """
    memory = memory_facts(topology, work.gpus, facts.memory)
    width = work.job.mesh.size // work.job.parallelism.pp
    limiting_links, limiting_seconds = path_limits(facts.path, plan.network)
    return {
        "name": work.job.name,
        "cluster": cluster_facts(topology),
        "parallelism": split_facts(work.job),
        **_speed(topology, work, record.end, facts.kernels, facts.full_attention),
        "idle": idle_facts(topology.gpus, work.job.mesh.size, facts.nearby),
        "warnings": [
            *warnings(work.job, memory["peak_bytes"], memory["capacity_bytes"]),
            *network_warnings(topology, work.job.mesh.size),
        ],
        "breakdown_s": mean_of_ranks(parts, plan.size.tolist()),
        "critical_path_s": path_parts(facts.path),
        "critical_path": path_shares(facts.path, limiting_links, width),
        "memory": memory,
        "busiest_links": busiest(topology, link_bytes(plan), limiting_seconds, record.end),
        "predictor": predictor_facts(work.job, facts.forecast),
        "not_modelled": not_modelled([work.job]),
        **({"assumed": list(work.job.assumed)} if work.job.assumed else {}),
        **({"ignored_arguments": work.job.ignored._asdict()} if any(work.job.ignored) else {}),
        "simulated": _simulated(topology, work, plan, record),
        "trace": shown_counts(cells_that_fit(plan, slice_counts([record]), width), plan),
    }


def outline(
    topology: Topology,
    work: Work,
    plan: Plan,
    record: Record,
    parts: list[dict[str, float]],
    kernels: StepKernels,
    peaks: Sequence[Memory],
) -> dict[str, Any]:
    """Return `parallelism`, speed, `breakdown_s`, `memory`, `simulated` as in `summary`. peaks: of each pipeline rank."""
    return {
        "parallelism": split_facts(work.job),
        **_speed(topology, work, record.end, kernels, full_attention=False),
        "breakdown_s": mean_of_ranks(parts, plan.size.tolist()),
        "memory": _verdict(*fullest(topology, work.gpus, peaks)[1:]),
        "simulated": _ranks(topology, work.job, plan, record),
    }


def network_warnings(topology: Topology, ranks: int) -> tuple[str, ...]:
    """Return the notes on a topology, and if a job of `ranks` ranks spans several nodes, the warnings about its network."""
    return topology.notes + (topology.warnings if topology.numbering.widths[-1] < ranks else ())


def predictor_facts(job: Job, forecast: Forecast) -> dict[str, Any]:
    """Return {`name` of the predictor, `error` and `clocks` in words, `clock_shares` by data type} of a job's kernel times."""
    return {
        "name": job.spec.predictor,
        "error": forecast.statement,
        "clocks": forecast.clocks,
        "clock_shares": forecast.shares,
    }


def cluster_facts(topology: Topology) -> dict[str, Any]:
    """Return `name`, `gpu_facts`, and the numbers of `nodes`, `gpus`, `links` and `cables` of a cluster."""
    return {
        "name": topology.name,
        **gpu_facts(topology),
        "nodes": topology.nodes,
        "gpus": topology.gpus,
        "links": len(topology.capacity),
        "cables": int(topology.counts.get("cables", 0)),
    }


def gpu_facts(topology: Topology) -> dict[str, Any]:
    """Return {`gpu`: name}; for a mixed cluster, its names joined with ` + `, and in `pools` {`gpu`, `gpus`: number} of each."""
    each = topology.gpu_counts()
    names = list(dict.fromkeys(gpu.name for gpu, _ in each))
    if not topology.pools:
        return {"gpu": names[0]}
    return {"gpu": " + ".join(names), "pools": [{"gpu": gpu.name, "gpus": count} for gpu, count in each]}


def jitter_facts(jitter: Jitter, steps: Floats) -> dict[str, Any]:
    """Return the settings of `jitter`, `draws`, and `step_time_mean_s`, `…_p10_s`, `…_p50_s`, `…_p99_s` of `steps` (draws,)."""
    low, half, most = (float(np.quantile(steps, share, method="inverted_cdf")) for share in (0.1, 0.5, 0.99))
    return {
        **jitter.model_dump(exclude={"draws"}),
        "draws": len(steps),
        "step_time_mean_s": float(steps.mean()),
        "step_time_p10_s": low,
        "step_time_p50_s": half,
        "step_time_p99_s": most,
    }


def split_facts(job: Job) -> dict[str, Any]:
    """Return the degrees and options of a job: `tp`, `cp`, `pp`, `dp`, `ep`, `expert_tp`, `vpp`, `zero`, `schedule`, and others.

    These are `micro_batch`, `global_batch`, `seq`, `microbatches` (per replica), `precision`, `recompute`.
    """
    split, training = job.parallelism, job.training
    return {
        "tp": split.tp,
        "cp": split.cp,
        "pp": split.pp,
        "dp": split.dp,
        "ep": split.ep,
        "expert_tp": split.etp,
        "vpp": split.vpp,
        "zero": split.zero,
        "schedule": split.schedule,
        "micro_batch": training.micro_batch,
        "global_batch": training.global_batch,
        "seq": training.seq,
        "microbatches": job.microbatches,
        "precision": training.precision,
        "recompute": training.recompute,
    }


def _speed(topology: Topology, work: Work, end: float, kernels: StepKernels, full_attention: bool) -> dict[str, Any]:
    """Return `step_time_s` (`end`), `expected_step_time_s`, and `tokens_per_s`, `mfu` and other rates of the expected time.

    `step_time_low_s` and `…_high_s` are None without an interval. `…_per_gpu` is per GPU of the job, `…_per_owned_gpu` per GPU
    of the cluster. `hfu` is there only with recomputation. full_attention: whether model FLOP count causal attention in full.
    """
    job, used = work.job, work.job.mesh.size
    expected_step = _expected_step(topology, work, end, kernels)
    likely, margin = expected_step.seconds, expected_step.margin
    tokens = tokens_of_step(job) / likely
    flop = model_flop(job, full_attention)
    rate = flop / likely / used
    each = [(gpu.matrix_peak(job.training.precision), count) for gpu, count in topology.gpu_counts(work.gpus)]
    peak = each[0][0] if len(each) == 1 else sum(peak * count for peak, count in each) / used
    recomputes = job.training.recompute != "none"
    attention = (
        "causal attention counted half" if job.model.causal and not full_attention else "attention counted in full"
    )
    times = "3 x forward" + (" (frozen linears 2 x: no gradients of their weights)" if job.training.lora else "")
    return {
        "step_time_s": end,
        "expected_step_time_s": likely,
        "software_level": {"factor": expected_step.level.factor, "publishers": expected_step.level.publishers},
        "step_time_low_s": margin.low,
        "step_time_high_s": margin.high,
        "step_time_interval": margin.note,
        "critical_path_kernels": kernels.launches,
        "tokens_per_s": tokens,
        "tokens_per_s_per_gpu": tokens / used,
        "tokens_per_s_per_owned_gpu": tokens / topology.gpus,
        "model_tflops_per_gpu": rate / 1e12,
        "mfu": rate / peak,
        **({"hfu": hardware_flop(job, full_attention) / likely / used / peak} if recomputes else {}),
        "peak_tflops_per_gpu": peak / 1e12,
        "model_flop": flop,
        "flop_rule": f"{times}, 2mnk a matrix product, {attention}, nothing recomputed; hfu adds what is recomputed",
    }


def _expected_step(topology: Topology, work: Work, end: float, kernels: StepKernels) -> Expected:
    """Return the expected time of a step that is simulated to take `end` s, and its 80 % interval, from published steps.

    Without an interval, as for bounds, other predictors or several kinds of GPUs, the expected time is the simulated one.
    """
    job = work.job
    [gpu, *others] = [gpu for gpu, _ in topology.gpu_counts(work.gpus)]
    name = job.training.framework
    kind = Kind(
        architecture=gpu.architecture,
        precision=job.training.precision,
        gpus=job.mesh.size,
        launching=CALL * kernels.launches / end,
        experts=job.model.experts is not None,
        predictor=job.spec.predictor,
        clocks=str(job.spec.clocks),
        trainer=load(name).trainer if name else "",
    )
    step = expected(end, kind)
    if None in (kernels.margin.low, kernels.margin.high):
        step = step._replace(margin=kernels.margin)
    elif others:
        note = "none: no published step on GPUs of several kinds has been compared"
        step = step._replace(margin=Margin(None, None, note))
    if None in (step.margin.low, step.margin.high):
        return step._replace(seconds=end, level=SoftwareLevel(0.0, 0))
    return step


def memory_facts(topology: Topology, gpus: Ints, memory: list[RankMemory]) -> dict[str, Any]:
    """Return `_verdict` of the rank that fills its GPU most, and `by_pipeline_rank`: {`KIND_bytes`, `total_bytes`} of each.

    With offloading there are `host_bytes` and `host_capacity_bytes`; with several types of GPUs, `gpu_by_pipeline_rank`.
    """
    peaks = [rank.peak for rank in memory]
    facts = _verdict(*fullest(topology, gpus, peaks)[1:])
    if any(hosts := [rank.host for rank in memory]):
        facts["host_bytes"], facts["host_capacity_bytes"] = host_with_least_room(topology, gpus, hosts)
    kinds = [{**peak._asdict(), "total": peak.total} for peak in peaks]
    facts["by_pipeline_rank"] = [{f"{kind}_bytes": size for kind, size in of_rank.items()} for of_rank in kinds]
    if topology.pools:
        each = [topology.gpu_counts(of_rank) for of_rank in np.reshape(gpus, (len(peaks), -1))]
        facts["gpu_by_pipeline_rank"] = [" + ".join(dict.fromkeys(gpu.name for gpu, _ in of_rank)) for of_rank in each]
    return facts


class FullestGpu(NamedTuple):
    """The pipeline rank that fills its GPU most."""

    rank: int
    """Index of the pipeline rank."""
    need: float
    """Bytes that it needs."""
    have: float
    """Bytes of its GPU, the smallest of several types."""


def fullest(topology: Topology, gpus: Ints, peaks: Sequence[Memory]) -> FullestGpu:
    """Return the pipeline rank of a job on `gpus` that fills its GPU most; the first of several. peaks: of each pipeline rank."""
    need, have = [peak.total for peak in peaks], [gpu.memory for gpu in topology.smallest_gpus(gpus, len(peaks))]
    _, most, rank = max(zip(np.divide(need, have).tolist(), need, range(0, -len(need), -1), strict=True))
    return FullestGpu(-rank, most, have[-rank])


def _verdict(need: float, have: float) -> dict[str, Any]:
    """Return `fits` (likely), `verdict` (of `WORDS`), `peak_bytes` (`need`) and `capacity_bytes` (`have`) of a GPU, and evidence.

    It is from published runs with a similar need: `ran_share`, `ran` of `published`, and `evidence` in words.
    """
    judgement, published = verdict(need, have), band(need, have)
    return {
        "fits": judgement == "likely",
        "verdict": judgement,
        "ran_share": published.share,
        "ran": published.ran,
        "published": published.published,
        "evidence": published.text,
        "peak_bytes": need,
        "capacity_bytes": have,
    }


def _simulated(topology: Topology, work: Work, plan: Plan, record: Record) -> dict[str, Any]:
    """Return `_ranks`, the numbers of `groups` and `links_that_can_be_short`, of their classes, and of `maxmin_solves`."""
    cells = plan.network.cells
    return {
        **_ranks(topology, work.job, plan, record),
        "groups": int(sum(len(c.of) for c in cells.groups.values())),
        "group_classes": int(sum(len(c.first) for c in cells.groups.values())),
        "links_that_can_be_short": len(cells.links.of),
        "link_classes": len(cells.links.first),
        "maxmin_solves": record.solves,
    }


def _ranks(topology: Topology, job: Job, plan: Plan, record: Record) -> dict[str, Any]:
    """Return the numbers of `gpus`, `ranks`, `idle_gpus`, simulated `rank_classes` and `events`, and the engine (`player`)."""
    return {
        "gpus": topology.gpus,
        "ranks": job.mesh.size,
        "idle_gpus": topology.gpus - job.mesh.size,
        "rank_classes": len(plan.first),
        "player": record.player,
        "events": record.events,
    }
