"""The Python API behind `import clustersim`, imported on first use by `clustersim/__init__.py`."""

from clustersim.api.forecast import simulate, sweep
from clustersim.api.inputs import load_cluster, load_workload
from clustersim.api.planning import optimize, plan
from clustersim.api.result import CompareResult, ExplainResult, OptimizeResult, PlanResult, Result, SweepResult

__all__ = [
    "CompareResult",
    "ExplainResult",
    "OptimizeResult",
    "PlanResult",
    "Result",
    "SweepResult",
    "load_cluster",
    "load_workload",
    "optimize",
    "plan",
    "simulate",
    "sweep",
]
