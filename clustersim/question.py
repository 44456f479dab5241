"""The question of a run: two files, the values that replace theirs, and how the step is simulated.

A command line asks it, a script, and the manifest of a result again: the same files and options have the same answer to the last
bit. So dependencies and kernels need not be kept in a result folder, and cost a run nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from clustersim.config.overrides import Overrides, parted
from clustersim.config.results import Manifest
from clustersim.config.shipped import called, find
from clustersim.config.yaml import Document, read
from clustersim.engine.player import Engine
from clustersim.errors import InputError
from clustersim.files import Inputs, digest, holding
from clustersim.parallel.job import Job
from clustersim.parallel.load import build as build_job
from clustersim.parallel.options import change_words
from clustersim.plugins import permits
from clustersim.report import store
from clustersim.simulation import Progress, Simulator, StepOptions, StepResult, silent
from clustersim.topology.build import build, document_of, overridden
from clustersim.topology.model import Topology


@dataclass(frozen=True, slots=True)
class StepQuestion:
    """All that decides the numbers of a run."""

    topology: Path | Document
    """The file of the cluster, or its description as a script gives it."""
    workload: Path | Document
    """The file of the job, or its description."""
    overrides: Overrides = field(default_factory=dict)
    """Values in the place of the files' by dotted key, those of `machine` among them."""
    fold: bool = True
    """Whether equal ranks are simulated once."""
    ignore_memory: bool = False
    """Whether to go on where the job does not fit."""
    full_attention: bool = False
    """Whether the model FLOP have all of causal attention, instead of half."""
    engine: Engine = "simpy"
    """The engine of the step."""
    machine: Path | None = None
    """A file of `clustersim calibrate`."""
    plugins: tuple[str, ...] = field(default_factory=permits)
    """Code from outside that is permitted, such as `mine:build`."""

    @property
    def document(self) -> Document:
        """The topology with its keys replaced. Raises InputError."""
        given = document_of(self.topology) if isinstance(self.topology, Path) else self.topology
        return overridden(given, parted(self.overrides)[0])

    @property
    def cluster(self) -> Topology:
        """The cluster with its keys replaced. Raises InputError."""
        return build(self.document)

    @property
    def job(self) -> Job:
        """The job with its keys replaced. Raises InputError."""
        given = read(find("workloads", self.workload)) if isinstance(self.workload, Path) else self.workload
        return build_job(given, parted(self.overrides)[1])

    @property
    def parts(self) -> dict[str, Path]:
        """The files by their part in the question; a script's description by what messages call it."""
        given = {"topology": _path(self.topology), "workload": _path(self.workload)}
        return given | ({"machine": self.machine} if self.machine else {})

    def options(self, progress: Progress = silent) -> StepOptions:
        """Return the options of `Simulator.run`. progress: told the name of each part of the work."""
        return {
            "fold": self.fold,
            "ignore_memory": self.ignore_memory,
            "full_attention": self.full_attention,
            "engine": self.engine,
            "progress": progress,
        }

    @property
    def stored(self) -> dict[str, object]:
        """The options as a manifest has them."""
        said: dict[str, object] = {"overrides": self.overrides, "fold": self.fold, "ignore_memory": self.ignore_memory}
        said["flops"] = "full" if self.full_attention else "causal"
        return said | ({"engine": self.engine} if self.engine != "simpy" else {})

    @property
    def words(self) -> list[str]:
        """The words of the command that asks it."""
        return self.commands()(self.overrides)

    def commands(self, by_set: Collection[str] = ()) -> Callable[[Overrides], list[str]]:
        """Return a function from overrides to the words of the command that asks this question with them alone.

        by_set: keys that are given by `--set`, also those with an option of their own.
        """
        files = called("topologies", _path(self.topology)), called("workloads", _path(self.workload))
        words = ["clustersim", "run", *files, *(["--engine", self.engine] if self.engine != "simpy" else [])]
        last = ["--no-fold"] * (not self.fold) + ["--ignore-memory"] * self.ignore_memory
        last += ["--flops", "full"] * self.full_attention
        last += [word for permit in self.plugins for word in ("--plugins", permit)]
        if self.machine is None:
            return lambda point: [*words, *change_words(point, by_set), *last]
        from clustersim.calibration.machine import Machine

        words += ["--machine", str(self.machine)]
        machine = Machine.read(self.machine)
        return lambda point: [*words, *change_words(machine.besides(point), by_set), *last]

    def changed(self, changes: Mapping[str, object]) -> StepQuestion:
        """Return the question with more keys replaced."""
        return replace(self, overrides={**self.overrides, **changes})

    @property
    def of_what_ifs(self) -> StepQuestion:
        """The question that what-ifs change: of the longest path where that is proved exact, which SimPy agrees with."""
        return replace(self, engine="auto") if self.engine == "simpy" else self

    def answer(self, simulator: Simulator, job: Job, progress: Progress = silent) -> StepResult:
        """Simulate the step. simulator, job: of this cluster and this job. Raises ClustersimError."""
        result = simulator.run(job, **self.options(progress))
        if self.machine:
            from clustersim.calibration.machine import narrow

            progress("what it rests on")
            narrow(result, self.document, self.machine)
        return result


def _path(given: Path | Document) -> Path:
    return given if isinstance(given, Path) else Path(given.path)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A folder of `clustersim run`."""

    folder: Path
    manifest: Manifest

    @classmethod
    def of(cls, folder: Path) -> StoredRun:
        """Return the run of a folder. Raises InputError where it has no result of `clustersim run`, or names no inputs."""
        found = cls(folder, store.manifest_of(folder, "run"))
        if not {"topology", "workload"} <= found.manifest.inputs.keys():
            raise InputError(f"{folder}/{store.MANIFEST}: names no inputs; run the simulation again")
        return found

    @property
    def inputs(self) -> dict[str, tuple[Path, str]]:
        """Path and SHA-256 of each file by its part, such as `topology`."""
        return {part: (Path(one.path), one.sha256) for part, one in self.manifest.inputs.items()}

    def holding(self) -> AbstractContextManager[Inputs]:
        """Take files of the question that are gone from the result, as where it was copied elsewhere."""
        texts = {one.path: one.text for one in self.manifest.inputs.values() if one.text is not None}
        return holding({path: text.encode("utf-8", "surrogatepass") for path, text in texts.items()})

    @property
    def question(self) -> StepQuestion:
        """The question that the result answers."""
        options, paths = self.manifest.options, {part: path for part, (path, _) in self.inputs.items()}
        return StepQuestion(
            paths["topology"],
            paths["workload"],
            options.overrides,
            options.fold,
            options.ignore_memory,
            options.flops == "full",
            options.engine or "simpy",
            paths.get("machine"),
            tuple(options.plugins),
        )

    @property
    def command(self) -> str:
        """The command that asks its question."""
        with self.holding():
            return shlex.join(self.question.words)

    def again(self, progress: Progress = silent) -> StepResult:
        """Simulate it once more, of files that are gone with what the result keeps of them.

        Raises InputError when an input has changed since, or a plug-in is not permitted.
        """
        if missing := [permit for permit in self.manifest.options.plugins if permit not in permits()]:
            words = " ".join(f"--plugins {shlex.quote(permit)}" for permit in missing)
            raise InputError(f"{self.folder}: was simulated with plug-ins; add {words}")
        question = self.question
        progress("load")
        with self.holding() as files:
            job, cluster = question.job, question.cluster
            self._check(files)
            result = question.answer(Simulator(cluster), job, progress)
            self._check(files)
        return result

    def _check(self, files: Inputs) -> None:
        """Raise InputError when a file that was read is not as it was."""
        for path, sha in self.inputs.values():
            if str(path) in files and digest(files[str(path)]) != sha:
                raise InputError(f"{path}: has changed since {self.folder} was written; run it again: {self.command}")
