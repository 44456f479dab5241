"""The question of a run: two files, values that override theirs, and options of the simulation.

A command line, a script, and the manifest of a stored result can ask it. The same files and options give the same answer to the
last bit, so a result folder need not contain dependencies and kernels.
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
    """All inputs that determine the numbers of a run."""

    topology: Path | Document
    """File of the cluster, or its description from a script."""
    workload: Path | Document
    """File of the job, or its description from a script."""
    overrides: Overrides = field(default_factory=dict)
    """Values that override those of the files, by dotted key, including those of `machine`."""
    fold: bool = True
    """Whether identical ranks are simulated once."""
    ignore_memory: bool = False
    """Whether to continue if the job does not fit into memory."""
    full_attention: bool = False
    """Whether model FLOP count causal attention in full, instead of half."""
    engine: Engine = "simpy"
    """Engine of the step."""
    machine: Path | None = None
    """File written by `clustersim calibrate`."""
    plugins: tuple[str, ...] = field(default_factory=permits)
    """Permitted outside code, such as `mine:build`."""

    @property
    def document(self) -> Document:
        """The topology with overrides applied. Raises InputError for an invalid file or key."""
        document = document_of(self.topology) if isinstance(self.topology, Path) else self.topology
        return overridden(document, parted(self.overrides)[0])

    @property
    def cluster(self) -> Topology:
        """The cluster with overrides applied. Raises InputError for an invalid file or key."""
        return build(self.document)

    @property
    def job(self) -> Job:
        """The job with overrides applied. Raises InputError for an invalid file or key."""
        document = read(find("workloads", self.workload)) if isinstance(self.workload, Path) else self.workload
        return build_job(document, parted(self.overrides)[1])

    @property
    def parts(self) -> dict[str, Path]:
        """{part of the question, such as `topology`: its file}; a script's description is named as in messages."""
        files = {"topology": _path(self.topology), "workload": _path(self.workload)}
        return files | ({"machine": self.machine} if self.machine else {})

    def options(self, progress: Progress = silent) -> StepOptions:
        """Return the options of `Simulator.run`. progress: callback that receives the name of each phase when it starts."""
        return {
            "fold": self.fold,
            "ignore_memory": self.ignore_memory,
            "full_attention": self.full_attention,
            "engine": self.engine,
            "progress": progress,
        }

    @property
    def stored(self) -> dict[str, object]:
        """{name: value} of the options, as stored in a manifest."""
        flops = "full" if self.full_attention else "causal"
        options = {"overrides": self.overrides, "fold": self.fold, "ignore_memory": self.ignore_memory, "flops": flops}
        return options | ({"engine": self.engine} if self.engine != "simpy" else {})

    @property
    def words(self) -> list[str]:
        """Words of the command that asks this question."""
        return self.commands()(self.overrides)

    def commands(self, by_set: Collection[str] = ()) -> Callable[[Overrides], list[str]]:
        """Return a function from overrides to the words of the command that asks this question with exactly those overrides.

        by_set: keys that are written with `--set` even if they have their own option.
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
        """Return the question with more values overridden."""
        return replace(self, overrides={**self.overrides, **changes})

    @property
    def of_what_ifs(self) -> StepQuestion:
        """The question that what-ifs change, with the engine of the longest path if that is proved exact and equal to SimPy."""
        return replace(self, engine="auto") if self.engine == "simpy" else self

    def answer(self, simulator: Simulator, job: Job, progress: Progress = silent) -> StepResult:
        """Simulate the step of `job` on the `simulator` of this question's cluster. Raises ClustersimError if that fails."""
        result = simulator.run(job, **self.options(progress))
        if self.machine:
            from clustersim.calibration.machine import narrow

            progress("what it rests on")
            narrow(result, self.document, self.machine)
        return result


def _path(file: Path | Document) -> Path:
    """Return the path of an input file, or the name that messages use for inputs from Python."""
    return file if isinstance(file, Path) else Path(file.path)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A result folder of `clustersim run`."""

    folder: Path
    manifest: Manifest

    @classmethod
    def of(cls, folder: Path) -> StoredRun:
        """Return the run stored in a folder. Raises InputError if it has no result of `clustersim run`, or lacks its inputs."""
        run = cls(folder, store.manifest_of(folder, "run"))
        if not {"topology", "workload"} <= run.manifest.inputs.keys():
            raise InputError(f"{folder}/{store.MANIFEST}: names no inputs; run the simulation again")
        return run

    @property
    def inputs(self) -> dict[str, tuple[Path, str]]:
        """{part, such as `topology`: (path, SHA-256 of the file)}."""
        return {part: (Path(file.path), file.sha256) for part, file in self.manifest.inputs.items()}

    def holding(self) -> AbstractContextManager[Inputs]:
        """Read files of the question that no longer exist from the result folder, for example after it was copied elsewhere."""
        texts = {file.path: file.text for file in self.manifest.inputs.values() if file.text is not None}
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
        """Command line that asks the question."""
        with self.holding():
            return shlex.join(self.question.words)

    def again(self, progress: Progress = silent) -> StepResult:
        """Simulate the question again; files that no longer exist are read from the result folder.

        Raises InputError if an input has changed since, or a plug-in is not permitted.
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
        """Raise InputError if the content of a file has changed."""
        for path, sha in self.inputs.values():
            if str(path) in files and digest(files[str(path)]) != sha:
                raise InputError(f"{path}: has changed since {self.folder} was written; run it again: {self.command}")
