"""Comparison of one measured run with its simulation: a flat outcome for JSON and parquet."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

from clustersim.engine.player import Engine
from clustersim.errors import ClustersimError
from clustersim.hardware.constants import CALL
from clustersim.predictors.uncertainty import Margin
from clustersim.report.calibration import Kind, expected
from clustersim.simulation import StepResult
from clustersim.validate.adapt import adapt, simulate
from clustersim.validate.runs import Refusal, Run
from clustersim.validate.strangers import EVERYTHING, Knowledge, publisher_group
from clustersim.validate.workload import framework_of, known

Outcome = dict[str, Any]
_SHOWN = (
    *("id", "gpu", "num_gpus", "framework", "model", "precision", "tp", "pp", "vpp", "dp", "cp", "ep"),
    *("micro_batch", "global_batch", "seq", "zero_stage", "recompute", "year"),
)
_UNKNOWN: Outcome = {
    **dict.fromkeys(("simulated_s", "predicted_s", "error", "low_s", "high_s", "memory_gib", "allocated_gib", "fits")),
    **dict.fromkeys(("launching", "architecture", "framework_family", "trainer", "experts")),
    "interval": "",
    "without": "",
    "status": "ok",
    "reason_kind": "",
    "reason": "",
    "assumed": [],
    "breakdown_s": {},
}
"""Values of the fields of an outcome that depend on its forecast, before there is one."""
_MEASURED = ("publisher", "measured_s", "ran", "measured_memory_gb", "peers_s")
FIELDS = frozenset((*_SHOWN, *_MEASURED, *_UNKNOWN))
"""Fields of every outcome."""


def evaluate(
    run: Run, ablation: Mapping[str, str] | None = None, engine: Engine = "auto", view: Knowledge = EVERYTHING
) -> Outcome:
    """Simulate a run, and return its outcome. view: knowledge of the forecast. ablation: {part of ABLATIONS: value instead}.

    status: ok, refused (the source is incomplete or needs what is not supported) or failed; a crashed run that cannot fit is ok,
    with `fits` False. simulated_s, predicted_s: simulated and expected seconds of the step, None without a forecast. error:
    predicted_s / measured - 1. low_s, high_s: its 80 % interval. Expected time and interval are based on all publishers
    except the group of `view.without`. reason, reason_kind: cause of a missing forecast. assumed: values that the source leaves
    open, in words. memory_gib: peak memory of the GPU that needs most; allocated_gib: the same without CUDA and NCCL, as
    torch.cuda.max_memory_allocated counts. launching: share of the step that launching its kernels takes, at 12 us each.
    """
    outcome = _run_fields(run) | _UNKNOWN
    try:
        setup = adapt(run, ablation, view)
        return outcome | {"assumed": list(setup.assumed)} | _forecast_fields(run, view, simulate(setup, engine))
    except Refusal as refusal:
        if refusal.kind == "mapping" and not run.ran:  # the forecast is right: the run crashed
            return outcome | {"fits": False, "reason": refusal.why}
        return outcome | {"status": "refused", "reason_kind": refusal.kind, "reason": refusal.why}
    except ClustersimError as error:
        return outcome | {"status": "failed", "reason_kind": "failed", "reason": str(error)}


def _run_fields(run: Run) -> Outcome:
    """Return the fields of an outcome that are columns of its run: `_SHOWN` and `_MEASURED`; None or "" for blank columns."""
    measured = (run.publisher, run.sec_per_iter, run.ran, run.memory_gb, dict(run.peers))
    return {name: getattr(run, name) for name in _SHOWN} | dict(zip(_MEASURED, measured, strict=True))


def log_error(outcome: Outcome) -> float:
    """Return ln(measured / simulated) of an outcome that has both times."""
    return log(outcome["measured_s"] / outcome["simulated_s"])


def kind(row: Outcome) -> Kind:
    """Return the kind of step of an outcome with a forecast, for the intervals of `clustersim run`."""
    job = (row["architecture"], row["precision"], row["num_gpus"], row["launching"], bool(row["experts"]))
    return Kind(*job, framework=row["framework_family"], trainer=row["trainer"], year=row["year"])


def _forecast_fields(run: Run, view: Knowledge, result: StepResult) -> Outcome:
    """Return the fields of an outcome that its simulation determines.

    Step: `num_gpus`, `tp`, `pp`, `vpp`, `cp`, `dp`, `precision`, `seq`, `global_batch`, `micro_batch`, `experts`. Its `Kind`:
    `launching`, `architecture`, `framework_family`, `trainer`, `year`. Time: `simulated_s`, `predicted_s` (expected), `error`
    (predicted_s / measured - 1; None without a measured time), `low_s`, `high_s` (both None without an interval), `interval`
    (its basis in words), `without` (publishers left out), `breakdown_s` ({part: seconds}). Memory of the GPU that needs most:
    `memory_gib`, `allocated_gib` (without CUDA and NCCL), `fits` (likely).
    """
    summary, job, framework = result.summary, result.work.job, framework_of(run, view)
    step, memory = summary["step_time_s"], summary["memory"]
    facts: Outcome = {
        "num_gpus": job.mesh.size,
        **{name: getattr(job.parallelism, name) for name in ("tp", "pp", "vpp", "cp")},
        "dp": job.mesh.dp,
        **{name: getattr(job.training, name) for name in ("precision", "seq", "global_batch", "micro_batch")},
        "launching": CALL * summary["critical_path_kernels"] / step,
        "architecture": result.topology.gpu.architecture,
        "framework_family": framework.family if known(run, view) else run.framework,
        "trainer": framework.trainer,
        "experts": job.model.experts,
        "year": run.year,
    }
    without = publisher_group(view.without)
    forecast = expected(step, kind(facts), without)
    if summary["step_time_low_s"] is None:
        forecast = forecast._replace(margin=Margin(None, None, summary["step_time_interval"]))
    return facts | {
        "simulated_s": step,
        "predicted_s": forecast.seconds,
        "error": forecast.seconds / run.sec_per_iter - 1 if run.sec_per_iter else None,
        "low_s": forecast.margin.low,
        "high_s": forecast.margin.high,
        "interval": forecast.margin.note,
        "without": without,
        "memory_gib": memory["peak_bytes"] / 2**30,
        "allocated_gib": max(gpu["total_bytes"] - gpu["framework_bytes"] for gpu in memory["by_pipeline_rank"]) / 2**30,
        "fits": memory["fits"],
        "breakdown_s": {k: v for k, v in summary["breakdown_s"].items() if k != "rank"},
    }


def with_expected(outcome: Outcome, without: str, table: Mapping[str, Any] | None = None) -> Outcome:
    """Return an outcome with the expected time and interval based on all publishers except the group `without`.

    table: published steps (default: the shipped table). An outcome without a forecast is returned unchanged.
    """
    if outcome["status"] != "ok" or outcome["simulated_s"] is None:  # a published run that failed has no forecast
        return outcome
    forecast = expected(outcome["simulated_s"], kind(outcome), without, table)
    error = forecast.seconds / outcome["measured_s"] - 1 if outcome["measured_s"] else None
    low, high, note = forecast.margin if outcome["low_s"] is not None else (None, None, outcome["interval"])
    changed = {"predicted_s": forecast.seconds, "error": error, "low_s": low, "high_s": high, "interval": note}
    return outcome | changed | {"without": without}
