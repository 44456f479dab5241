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
"""Fields of an outcome without a forecast."""
_OF_RUN = ("publisher", "measured_s", "ran", "measured_memory_gb", "peers_s")
FIELDS = frozenset((*_SHOWN, *_OF_RUN, *_UNKNOWN))
"""Fields of every outcome."""


def evaluate(
    run: Run, ablation: Mapping[str, str] | None = None, engine: Engine = "auto", view: Knowledge = EVERYTHING
) -> Outcome:
    """Simulate one run. status: ok, refused (the source or the model has what cannot be simulated) or failed.

    simulated_s, predicted_s: simulated and expected seconds of the step, None unless ok. error: predicted / measured - 1. low_s,
    high_s: interval of `clustersim run`. Expected time and interval are based on all publishers except the view's `without` and
    its kin. reason, reason_kind: cause of a missing forecast. assumed: how open values were filled. memory_gib: of the fullest
    GPU; allocated_gib: without the memory of CUDA and NCCL, as torch.cuda.max_memory_allocated counts. launching: share of the
    step for launching its kernels at 12 us each. view: knowledge of the forecast.
    """
    outcome = _said(run) | _UNKNOWN
    try:
        setup = adapt(run, ablation, view)
        return outcome | {"assumed": list(setup.assumed)} | _found(run, view, simulate(setup, engine))
    except Refusal as refusal:
        if refusal.kind == "mapping" and not run.ran:  # said not to run, and it did not
            return outcome | {"fits": False, "reason": refusal.why}
        return outcome | {"status": "refused", "reason_kind": refusal.kind, "reason": refusal.why}
    except ClustersimError as error:
        return outcome | {"status": "failed", "reason_kind": "failed", "reason": str(error)}


def _said(run: Run) -> Outcome:
    """Return the cells of the run's row that an outcome contains."""
    measured = (run.publisher, run.sec_per_iter, run.ran, run.memory_gb, dict(run.peers))
    return {name: getattr(run, name) for name in _SHOWN} | dict(zip(_OF_RUN, measured, strict=True))


def log_error(outcome: Outcome) -> float:
    """Return ln(measured / simulated) of an outcome that has both."""
    return log(outcome["measured_s"] / outcome["simulated_s"])


def kind(one: Outcome) -> Kind:
    """Return the kind of step of an outcome with a forecast, for the intervals of `clustersim run`."""
    job = (one["architecture"], one["precision"], one["num_gpus"], one["launching"], bool(one["experts"]))
    return Kind(*job, framework=one["framework_family"], trainer=one["trainer"], year=one["year"])


def _found(run: Run, view: Knowledge, result: StepResult) -> Outcome:
    """Return the fields of an outcome that its simulation decides: split, times, interval, error, memory, breakdown."""
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
    found = expected(step, kind(facts), without)
    if summary["step_time_low_s"] is None:
        found = found._replace(margin=Margin(None, None, summary["step_time_interval"]))
    return facts | {
        "simulated_s": step,
        "predicted_s": found.seconds,
        "error": found.seconds / run.sec_per_iter - 1 if run.sec_per_iter else None,
        "low_s": found.margin.low,
        "high_s": found.margin.high,
        "interval": found.margin.note,
        "without": without,
        "memory_gib": memory["peak_bytes"] / 2**30,
        "allocated_gib": max(one["total_bytes"] - one["framework_bytes"] for one in memory["by_pipeline_rank"]) / 2**30,
        "fits": memory["fits"],
        "breakdown_s": {k: v for k, v in summary["breakdown_s"].items() if k != "rank"},
    }


def expected_again(one: Outcome, without: str, table: Mapping[str, Any] | None = None) -> Outcome:
    """Return an outcome with the expected time and interval based on all publishers except a group.

    table: published steps (default: the shipped table).
    """
    if one["status"] != "ok" or one["simulated_s"] is None:  # a published run that failed has no forecast
        return one
    found = expected(one["simulated_s"], kind(one), without, table)
    error = found.seconds / one["measured_s"] - 1 if one["measured_s"] else None
    low, high, note = found.margin if one["low_s"] is not None else (None, None, one["interval"])
    changed = {"predicted_s": found.seconds, "error": error, "low_s": low, "high_s": high, "interval": note}
    return one | changed | {"without": without}
