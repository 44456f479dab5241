"""clustersim from Python: load a cluster and a workload, simulate a step, look at the result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clustersim import simulation
from clustersim.parallel.job import Job
from clustersim.parallel.load import load as load_job
from clustersim.parallel.options import KEYS
from clustersim.topology.build import load as load_topology
from clustersim.topology.model import Topology
from clustersim.units import scaled, seconds

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Result:
    """One simulated training step; `found` is all that the simulation knows of it."""

    found: simulation.StepResult

    @property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds, without its top; keys carry their units."""
        return self.found.summary

    @property
    def step_time(self) -> float:
        """Seconds of one training step."""
        return float(self.summary["step_time_s"])

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, of all GPUs that the job uses."""
        return float(self.summary["tokens_per_s"])

    @property
    def mfu(self) -> float:
        """Model FLOP/s over the peak of the GPUs used, from 0 to 1."""
        return float(self.summary["mfu"])

    @property
    def memory(self) -> float:
        """Bytes that the fullest GPU holds at its peak."""
        return float(self.summary["memory"]["peak_bytes"])

    @property
    def fits(self) -> bool:
        """Whether that is no more than the GPU has."""
        return bool(self.summary["memory"]["fits"])

    @property
    def breakdown(self) -> dict[str, float]:
        """Seconds of a step by what they go to, the mean of all ranks."""
        return dict(self.summary["breakdown_s"])

    @property
    def spans(self) -> pl.DataFrame:
        """Who did what when, one row a span, as `spans.parquet`; made when asked for."""
        from clustersim.report.tables import spans_table

        return spans_table(self.found.record, self.found.plan)

    @property
    def links(self) -> pl.DataFrame:
        """What each directed link carried, one row a link that carried something, as `links.parquet`; made when asked for."""
        from clustersim.report.tables import links_table

        return links_table(self.found.plan, self.found.topology, self.found.record.end)

    def _repr_html_(self) -> str:
        """Return the figures as a table, which notebooks show."""
        rows = {
            "step time": seconds(self.step_time),
            "throughput": f"{self.tokens_per_s:,.0f} tokens/s",
            "MFU": f"{self.mfu:.1%}",
            "memory": f"{scaled(self.memory, 'B')} ({self.summary['memory']['verdict']})",
        }
        cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
        title = f"{self.summary['name']} on {self.summary['cluster']['name']}"
        return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def load_cluster(cluster: str | Path) -> Topology:
    """Return the cluster of a topology file, or of the bare name of a shipped one. Raises ClustersimError for bad input."""
    return load_topology(cluster)


def load_workload(workload: str | Path, **overrides: object) -> Job:
    """Return the job of a workload file, or of the bare name of a shipped one. Raises ClustersimError for bad input.

    overrides: keys as the options of `clustersim run`, such as `tp=8`; dotted ones as `**{"training.seq": 4096}`.
    """
    return load_job(workload, {KEYS.get(key, key): value for key, value in overrides.items()})


def simulate(
    cluster: str | Path | Topology,
    workload: str | Path | Job,
    *,
    fold: bool = True,
    ignore_memory: bool = False,
    full_attention: bool = False,
    **overrides: object,
) -> Result:
    """Simulate one training step, as `clustersim run` does, and write nothing.

    cluster, workload: files, names of shipped ones, or what `load_cluster` and `load_workload` return. fold: simulate
    ranks that nothing can tell apart once. ignore_memory: go on when the job does not fit. full_attention: count all of
    causal attention in the model FLOP. overrides: keys of the workload, as in `load_workload`. Raises ClustersimError.
    """
    job = _overridden(workload, overrides) if isinstance(workload, Job) else load_workload(workload, **overrides)
    built = cluster if isinstance(cluster, Topology) else load_cluster(cluster)
    play = partial(simulation.run, fold=fold, ignore_memory=ignore_memory, full_attention=full_attention)
    return Result(play(built, job))


def _overridden(job: Job, overrides: dict[str, object]) -> Job:
    from clustersim.parallel.load import build

    return build(job.document, {KEYS.get(key, key): value for key, value in overrides.items()}) if overrides else job
