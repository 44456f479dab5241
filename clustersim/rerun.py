"""A result on disk, simulated again from its manifest: the same inputs and options have the same answer to the last bit.

So what a result folder does not keep (who waited for whom, every kernel) need not be kept, and costs a run nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clustersim import plugins, simulation
from clustersim.config.overrides import parted
from clustersim.config.shipped import called
from clustersim.errors import InputError
from clustersim.files import Inputs, digest, keeping_inputs
from clustersim.parallel.load import load as load_workload
from clustersim.parallel.options import change_words, engine_words
from clustersim.report import store
from clustersim.simulation import Progress, StepResult, silent
from clustersim.topology.build import load as load_topology


@dataclass(frozen=True, slots=True)
class RunQuestion:
    """What a folder of `clustersim run` answers."""

    folder: Path
    manifest: Mapping[str, Any]
    """Of the result."""

    @classmethod
    def of(cls, folder: Path) -> RunQuestion:
        """Return the question of a folder. Raises InputError when it holds no result of `clustersim run`."""
        return cls(folder, store.manifest_of(folder, "run"))

    @property
    def overrides(self) -> Mapping[str, object]:
        """What was changed on the command line, by dotted key."""
        return dict(self.options.get("overrides", {}))

    @property
    def options(self) -> Mapping[str, Any]:
        """All that changed the numbers."""
        found = self.manifest.get("options")
        return found if isinstance(found, dict) else {}

    @property
    def inputs(self) -> dict[str, tuple[Path, str]]:
        """Path and SHA-256 of each file by its part, such as `topology`. Raises InputError when the manifest is damaged."""
        try:
            found = {part: (Path(one["path"]), str(one["sha256"])) for part, one in self.manifest["inputs"].items()}
            found["topology"], found["workload"]
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{self.folder}/{store.MANIFEST}: names no inputs; run the simulation again") from error
        return found

    @property
    def command(self) -> str:
        """The command that asks it."""
        inputs = self.inputs
        words = [called("topologies", inputs["topology"][0]), called("workloads", inputs["workload"][0])]
        return shlex.join(["clustersim", "run", *words, *self._words()])

    def _words(self) -> Iterator[str]:
        yield from change_words(self.overrides)
        yield from ["--no-fold"] * (not self.options.get("fold", True))
        yield from ["--ignore-memory"] * bool(self.options.get("ignore_memory"))
        yield from ["--flops", "full"] * (self.options.get("flops") == "full")
        yield from engine_words(str(self.options.get("engine", "simpy")))
        for permit in self.options.get("plugins", ()):
            yield from ("--plugins", str(permit))

    def again(self, progress: Progress = silent) -> StepResult:
        """Simulate it once more. Raises InputError when an input has changed since, or a plug-in is not permitted."""
        missing = [str(one) for one in self.options.get("plugins", ()) if one not in plugins.permits()]
        if missing:
            words = " ".join(f"--plugins {shlex.quote(one)}" for one in missing)
            raise InputError(f"{self.folder}: was simulated with plug-ins; add {words}")
        progress("load")
        options = self.options
        with keeping_inputs() as read:
            of_cluster, of_job = parted(self.overrides)
            job = load_workload(self.inputs["workload"][0], of_job)
            cluster = load_topology(self.inputs["topology"][0], of_cluster)
            self._check(read)
        return simulation.run(
            cluster,
            job,
            fold=bool(options.get("fold", True)),
            ignore_memory=bool(options.get("ignore_memory", False)),
            full_attention=options.get("flops") == "full",
            engine=options.get("engine", "simpy"),
            progress=progress,
        )

    def _check(self, read: Inputs) -> None:
        """Raise InputError when a file that was read is not as it was."""
        for path, sha in self.inputs.values():
            if str(path) in read and digest(read[str(path)]) != sha:
                raise InputError(f"{path}: has changed since {self.folder} was written; run it again: {self.command}")
