"""One point of a sweep: the same simulation as `clustersim run`, as one flat row."""

from __future__ import annotations

from typing import Any

from clustersim.errors import ClustersimError, InputError, OutOfMemoryError
from clustersim.sweep.space import Point
from clustersim.topology.model import Topology
from clustersim.workload.options import NAMES

Row = dict[str, Any]
_SPEED = (
    *("step_time_s", "step_time_low_s", "step_time_high_s"),
    *("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_owned_gpu", "model_tflops_per_gpu", "mfu"),
)


def evaluate(cluster: Topology, workload: str, point: Point) -> Row:
    """Simulate one point. `status` is ok, illegal or does not fit; `reason` says why a point has no result."""
    from clustersim.pipeline import run
    from clustersim.workload.load import load

    row: Row = {NAMES.get(key, key): value for key, value in point.items()}
    try:
        summary = run(cluster, load(workload, point)).summary
    except OutOfMemoryError as error:
        return {**row, "status": "does not fit", "reason": str(error)}
    except InputError as error:
        return {**row, "status": "illegal", "reason": str(error)}
    except ClustersimError as error:
        return {**row, "status": "failed", "reason": str(error)}
    return {**row, "status": "ok", "reason": "", **flat(summary)}


def flat(summary: dict[str, Any]) -> Row:
    """Return the figures of a summary that a table of points shows."""
    split = {k: v for k, v in summary["parallelism"].items() if k != "expert_tp"}
    speed = {k: summary[k] for k in _SPEED if summary[k] is not None}
    parts = {f"{k}_s": v for k, v in summary["breakdown_s"].items()}
    counts = {k: summary["simulated"][k] for k in ("gpus", "ranks", "idle_gpus", "rank_cells", "events")}
    return {**split, **speed, **parts, "peak_memory_bytes": summary["memory"]["peak_bytes"], **counts}
