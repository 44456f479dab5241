"""What a run was asked: two files and what replaces their keys, from a command line or from the manifest of a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from clustersim.config.overrides import parted
from clustersim.config.yaml import Document, read
from clustersim.engine.player import Engine
from clustersim.parallel.job import Job
from clustersim.parallel.load import build as build_job
from clustersim.rerun import RunQuestion
from clustersim.simulation import StepOptions
from clustersim.topology.build import document_of, overridden


@dataclass(frozen=True, slots=True)
class RunInputs:
    """All that decides the numbers of a run."""

    topology: Path
    """The file of the cluster."""
    workload: Path
    """The file of the job."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Values in the place of theirs, by dotted key."""
    fold: bool = True
    """Whether ranks that are alike are simulated once."""
    ignore_memory: bool = False
    """Whether to go on where the job does not fit."""
    full_attention: bool = False
    """Whether model FLOP count all of causal attention."""
    engine: Engine = "simpy"
    """The engine of the step."""
    machine: Path | None = None
    """A machine file, whose values are in `overrides`."""

    @property
    def document(self) -> Document:
        """The topology with its keys replaced. Raises InputError."""
        return overridden(document_of(self.topology), parted(self.overrides)[0])

    @property
    def job(self) -> Job:
        """The job with its keys replaced. Raises InputError."""
        return build_job(read(self.workload), parted(self.overrides)[1])

    @property
    def options(self) -> StepOptions:
        """How the step is simulated."""
        return {
            "fold": self.fold,
            "ignore_memory": self.ignore_memory,
            "full_attention": self.full_attention,
            "engine": self.engine,
        }

    @property
    def engine_of_what_ifs(self) -> Engine:
        """The engine of what-ifs: the longest path where that is proved exact, which SimPy agrees with."""
        return "auto" if self.engine == "simpy" else self.engine

    def changed(self, changes: Mapping[str, object]) -> RunInputs:
        """Return the same with more keys replaced."""
        return replace(self, overrides={**self.overrides, **changes})


def of_result(asked: RunQuestion) -> RunInputs:
    """Return the inputs of a result. Raises InputError where its manifest does not say that."""
    topology, workload = (asked.inputs[part][0] for part in ("topology", "workload"))
    said = asked.options
    full = said.flops == "full"
    return RunInputs(
        topology, workload, asked.overrides, said.fold, said.ignore_memory, full, asked.engine, asked.machine
    )
