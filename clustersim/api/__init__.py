"""What `import clustersim` offers to scripts and notebooks; `clustersim/__init__.py` imports it when it is used."""

from clustersim.api.forecast import simulate, sweep
from clustersim.api.inputs import load_cluster, load_workload
from clustersim.api.result import Result, SweepResult

__all__ = ["Result", "SweepResult", "load_cluster", "load_workload", "simulate", "sweep"]
