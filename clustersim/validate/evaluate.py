"""One measured run against its simulation: a flat outcome that JSON and parquet can hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import log
from typing import TYPE_CHECKING, Any

from clustersim.errors import ClustersimError
from clustersim.hardware.constants import CALL
from clustersim.report.calibration import Quantiles, shipped
from clustersim.validate.adapt import adapt, simulate
from clustersim.validate.refusal import Refusal
from clustersim.validate.runs import Run

if TYPE_CHECKING:
    from clustersim.simulation import Engine, StepResult

Outcome = dict[str, Any]
_SHOWN = (
    *("id", "gpu", "num_gpus", "framework", "model", "precision", "tp", "pp", "vpp", "dp", "cp", "ep"),
    *("micro_batch", "global_batch", "seq", "zero_stage", "recompute"),
)


def evaluate(run: Run, ablation: Mapping[str, str] | None = None, engine: Engine = "auto") -> Outcome:
    """Simulate one run. status: ok, refused (the source or the model has what cannot be simulated) or failed.

    predicted_s: None unless ok. error: predicted / measured - 1. low_s, high_s: the interval of `clustersim run`, for a source
    that it was calibrated on that of all the others. reason, reason_kind: why there is no forecast. assumed: what the row
    leaves open and how that was filled. memory_gib: of the fullest GPU; allocated_gib: without CUDA's and NCCL's own, as
    torch.cuda.max_memory_allocated counts. launching: the share of the step that launching its kernels takes at 12 us each.
    """
    outcome: Outcome = {name: getattr(run, name) for name in _SHOWN}
    outcome |= {"source": source_of(run), "measured_s": run.sec_per_iter, "predicted_s": None, "error": None}
    outcome |= {"low_s": None, "high_s": None, "interval": "", "status": "ok"}
    outcome |= {"reason_kind": "", "reason": ""}
    outcome |= {"assumed": [], "memory_gib": None, "allocated_gib": None, "fits": None}
    outcome |= {"ran": run.ran, "measured_memory_gb": run.memory_gb}
    outcome |= {"launching": None, "architecture": None, "breakdown_s": {}, "peers_s": dict(run.peers)}
    try:
        setup = adapt(run, ablation)
        return outcome | {"assumed": list(setup.assumed)} | _found(run, simulate(setup, engine))
    except Refusal as refusal:
        return outcome | {"status": "refused", "reason_kind": refusal.kind, "reason": refusal.why}
    except ClustersimError as error:
        return outcome | {"status": "failed", "reason_kind": "failed", "reason": str(error)}


def source_of(run: Run) -> str:
    """Return the short name of a run's source: its id without a number behind it, or else what the column says."""
    short = re.fullmatch(r"(.+?)[-_]?\d+", run.id)
    return short[1] if short else run.source or run.id


def log_error(outcome: Outcome) -> float:
    """Return ln(measured / predicted) of an outcome that has both."""
    return log(outcome["measured_s"] / outcome["predicted_s"])


def _found(run: Run, result: StepResult) -> Outcome:
    summary = result.summary
    step = summary["step_time_s"]
    stages = summary["memory"]["by_pipeline_rank"]
    launching = CALL * summary["critical_path_kernels"] / step
    low, high, note = summary["step_time_low_s"], summary["step_time_high_s"], summary["step_time_interval"]
    left_out = shipped()["without"].get(source_of(run))
    if left_out and low is not None and high is not None:
        low, high = Quantiles(**left_out).around(step, launching)
        note = "calibrated on all other sources"
    return {
        "predicted_s": step,
        "error": step / run.sec_per_iter - 1 if run.sec_per_iter else None,
        "low_s": low,
        "high_s": high,
        "interval": note,
        "memory_gib": summary["memory"]["peak_bytes"] / 2**30,
        "allocated_gib": max(one["total_bytes"] - one["framework_bytes"] for one in stages) / 2**30,
        "fits": summary["memory"]["fits"],
        "launching": launching,
        "architecture": result.topology.gpu.architecture,
        "breakdown_s": {k: v for k, v in summary["breakdown_s"].items() if k != "rank"},
    }
