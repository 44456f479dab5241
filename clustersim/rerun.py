"""A result on disk, simulated again from its manifest: the same inputs and options have the same answer to the last bit.

So dependencies and kernels need not be kept in a result folder, and cost a run nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from clustersim import plugins, simulation
from clustersim.calibration.machine import Machine, narrow
from clustersim.config.overrides import parted
from clustersim.config.results import Manifest, StoredOptions
from clustersim.config.shipped import called
from clustersim.engine.player import Engine
from clustersim.errors import InputError
from clustersim.files import Inputs, digest, keeping_inputs
from clustersim.parallel.load import load as load_workload
from clustersim.parallel.options import change_words, engine_words
from clustersim.report import store
from clustersim.simulation import Progress, StepResult, silent
from clustersim.topology.build import document_of, overridden
from clustersim.topology.build import load as load_topology


@dataclass(frozen=True, slots=True)
class RunQuestion:
    """What a folder of `clustersim run` answers."""

    folder: Path
    manifest: Manifest
    """Of the result."""

    @classmethod
    def of(cls, folder: Path) -> RunQuestion:
        """Return the question of a folder. Raises InputError when it holds no result of `clustersim run`."""
        return cls(folder, store.manifest_of(folder, "run"))

    @property
    def options(self) -> StoredOptions:
        """All that changed the numbers."""
        return self.manifest.options

    @property
    def overrides(self) -> Mapping[str, object]:
        """What was changed on the command line, by dotted key."""
        return self.options.overrides

    @property
    def engine(self) -> Engine:
        """The engine of the step."""
        return self.options.engine or "simpy"

    @property
    def inputs(self) -> dict[str, tuple[Path, str]]:
        """Path and SHA-256 of each file by its part, such as `topology`. Raises InputError when the manifest lacks one."""
        found = {part: (Path(one.path), one.sha256) for part, one in self.manifest.inputs.items()}
        if not {"topology", "workload"} <= found.keys():
            raise InputError(f"{self.folder}/{store.MANIFEST}: names no inputs; run the simulation again")
        return found

    @property
    def machine(self) -> Path | None:
        """The machine file whose values are among the overrides."""
        return self.inputs["machine"][0] if "machine" in self.manifest.inputs else None

    @property
    def command(self) -> str:
        """The command that asks it."""
        inputs = self.inputs
        words = [called("topologies", inputs["topology"][0]), called("workloads", inputs["workload"][0])]
        return shlex.join(["clustersim", "run", *words, *self._words()])

    def _words(self) -> Iterator[str]:
        if self.machine:
            yield from ("--machine", str(self.machine))
        yield from change_words(Machine.read(self.machine).besides(self.overrides) if self.machine else self.overrides)
        yield from ["--no-fold"] * (not self.options.fold)
        yield from ["--ignore-memory"] * self.options.ignore_memory
        yield from ["--flops", "full"] * (self.options.flops == "full")
        yield from engine_words(self.engine)
        for permit in self.options.plugins:
            yield from ("--plugins", permit)

    def again(self, progress: Progress = silent) -> StepResult:
        """Simulate it once more. Raises InputError when an input has changed since, or a plug-in is not permitted."""
        missing = [one for one in self.options.plugins if one not in plugins.permits()]
        if missing:
            words = " ".join(f"--plugins {shlex.quote(one)}" for one in missing)
            raise InputError(f"{self.folder}: was simulated with plug-ins; add {words}")
        progress("load")
        with keeping_inputs() as read:
            of_cluster, of_job = parted(self.overrides)
            job = load_workload(self.inputs["workload"][0], of_job)
            cluster = load_topology(self.inputs["topology"][0], of_cluster)
            self._check(read)
            result = simulation.run(
                cluster,
                job,
                fold=self.options.fold,
                ignore_memory=self.options.ignore_memory,
                full_attention=self.options.flops == "full",
                engine=self.engine,
                progress=progress,
            )
            if self.machine:
                narrow(result, overridden(document_of(self.inputs["topology"][0]), of_cluster), self.machine)
                self._check(read)
        return result

    def _check(self, read: Inputs) -> None:
        """Raise InputError when a file that was read is not as it was."""
        for path, sha in self.inputs.values():
            if str(path) in read and digest(read[str(path)]) != sha:
                raise InputError(f"{path}: has changed since {self.folder} was written; run it again: {self.command}")
