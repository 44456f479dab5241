"""A user's measurements on one cluster, paired with forecasts: steps, logs of nccl-tests, traces of a profiler."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import combinations
from math import exp, fsum, log, prod
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

import numpy as np

from clustersim.calibration.constants import LEVEL, SOFTWARE, Constant, constants_of, software_constants
from clustersim.calibration.fit import SLOWEST, ChangedKeys, MachineEstimate, Measurement, fitted
from clustersim.calibration.sensitivity import changed_step
from clustersim.collectives.nccl import nccl_tests_log, request
from clustersim.collectives.nccl.table import line
from clustersim.config.yaml import Document, parse
from clustersim.errors import InputError, suggest
from clustersim.explain.gpu_trace import MeasuredStep, measured
from clustersim.explain.trace_comparison import comparison
from clustersim.files import read_text
from clustersim.parallel.job import Job
from clustersim.parallel.load import build as build_job
from clustersim.report.calibration import Kind, shipped_table, software_level
from clustersim.simulation import Progress, Simulator, silent
from clustersim.topology.build import build, node_types, overridden
from clustersim.validate.adapt import Setup, adapt
from clustersim.validate.run import load
from clustersim.validate.runs import Refusal, Run
from clustersim.validate.strangers import EVERYTHING, Knowledge, publisher_group
from clustersim.validate.workload import framework_of

REMAINDER = 0.10
"""Standard deviation of the log error of a step on a known machine: the median over 30 publishers."""
KERNELS = 0.10
"""Standard deviation of the log error of a class of kernels in a trace."""
LARGE, SMALL = 0.05, 0.20
"""Standard deviations of the log error of a collective with at least MANY bytes, and with at most FEW."""
MANY, FEW = 64 * 2**20, 64 * 2**10
"""Bytes from which a collective's time shows its rate, and up to which it shows its latency."""
UNITS = 20.0
"""Ratio between measured and forecast step, either way, that indicates another unit."""
FAR = 3.0
"""Ratio of steps above which the unit or configuration must be wrong; a smaller ratio can be the software level."""
SAME = 1.5
"""Ratio of two times of the same job above which the rows contradict each other."""
CLASSES = {
    "products": ("products",),
    "attention": ("attention",),
    "vector kernels": ("norm and softmax", "element-wise and memory"),
}
"""{class of the forecast: classes of kernels in a trace}"""
ON_LINKS = ("NVLink", "network between nodes", "latency of collectives")
"""Families of constants that only collectives depend on."""


class MeasuredRun:
    """A row of a table of measured steps, ready for simulation."""

    def __init__(self, run: Run, view: Knowledge = EVERYTHING) -> None:
        """Build cluster and job of a row. view: knowledge of the forecast. Raises Refusal or InputError for a bad row."""
        if run.sec_per_iter is None or not run.ran:
            raise Refusal("no time", f"{run.id} has no sec_per_iter; write the measured seconds of its step")
        self.run, self.seconds = run, run.sec_per_iter
        self.setup: Setup = adapt(run, view=view)
        self.cluster: Document = parse(self.setup.topology, "cluster")
        self.simulator = Simulator(build(self.cluster))
        self.gpu = node_types(self.cluster)[0][1].gpu.name
        self.job: Job = self.simulator.placed(build_job(parse(self.setup.workload, "workload")))
        precision, trainer = self.job.training.precision, framework_of(run, view).trainer
        likely = Kind("", precision, self.job.mesh.size, 0.0, trainer=trainer, year=run.year)
        self.level = software_level(likely, shipped_table(), publisher_group(view.without)).factor
        self.known: dict[str, float] = {}

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """Constants that the step depends on: software levels, those of its cluster and job, and the slowest of several GPUs."""
        step_constants = constants_of(self.cluster, self.job)
        return (*software_constants(self.job), *step_constants, *[SLOWEST] * (self.job.mesh.size > 1))

    def same_job(self, other: MeasuredRun) -> bool:
        """Return whether another row has the same cluster and job, apart from the name."""
        jobs = [{**json.loads(run.setup.workload), "name": ""} for run in (self, other)]
        return self.setup.topology == other.setup.topology and jobs[0] == jobs[1]

    def step(self) -> Measurement:
        """Return the step as a measurement in seconds."""
        return Measurement(self.run.id, self.seconds, self._step, self.constants, REMAINDER)

    def _step(self, changes: ChangedKeys) -> float:
        """Return the expected seconds of the step with changed keys, including the software levels."""
        simulated = {key: value for key, value in changes.items() if not key.startswith(LEVEL)}
        name = json.dumps(simulated, sort_keys=True)
        if name not in self.known:
            self.known[name] = changed_step(self.cluster, self.job, simulated, self.simulator)
        levels = [float(str(value)) for key, value in changes.items() if key.startswith(LEVEL)]
        return self.known[name] * self.level * prod(levels)

    def kernels(self, path: Path, trace: MeasuredStep) -> list[Measurement]:
        """Return a measurement in seconds for each of CLASSES in a trace and the step's forecast. path: file, for messages.

        Raises InputError if the trace has no GPU kernels, or none of a class that the step has.
        """
        if not trace.on_gpu:
            raise InputError(f"{path}: has operators of a CPU and no kernels; profile with ProfilerActivity.CUDA too")
        by_changes: dict[str, dict[str, float]] = {}

        def seconds(parts: Sequence[str], changes: ChangedKeys) -> float:
            """Return the forecast seconds of the classes `parts` of a trace, with changed keys."""
            name = json.dumps(changes, sort_keys=True)
            if name not in by_changes:
                simulator = Simulator(build(overridden(self.cluster, changes))) if changes else self.simulator
                result = simulator.run(self.job, ignore_memory=True, engine="auto")
                by_changes[name] = {row.name: row.forecast for row in comparison(result, trace, None).rows["kernels"]}
            return fsum(by_changes[name].get(part, 0.0) for part in parts)

        excluded = (SOFTWARE, *ON_LINKS, "host", SLOWEST.family)
        constants = tuple(constant for constant in self.constants if constant.family not in excluded)
        measurements = []
        for name, parts in CLASSES.items():
            measured_s, forecast = fsum(trace.by_class.get(part, 0.0) for part in parts), partial(seconds, parts)
            if measured_s and forecast({}):
                measurements.append(Measurement(f"{name} of {path.name}", measured_s, forecast, constants, KERNELS))
        if not measurements:
            problem = f"none of its kernels is of a class that the step of {self.run.id} has"
            raise InputError(f"{path}: {problem}; give a trace of that step")
        return measurements

    def collectives(self, path: Path) -> list[Measurement]:
        """Return measurements from a log of nccl-tests: geometric mean seconds of sizes from 64 MiB, and of those up to 64 KiB.

        Raises InputError if it is not such a log, has none of these sizes, or has several nodes and the steps have one.
        """
        lines = nccl_tests_log.lines_of(read_text(path, "what nccl-tests printed"))
        if not any(map(nccl_tests_log.head, lines)):
            raise InputError(
                f"{path}: not a log of nccl-tests; give the whole output of all_reduce_perf or a similar test"
            )
        test_log = nccl_tests_log.read(path, lines)
        if test_log.op is None or not test_log.ranks:
            raise InputError(f"{path}: does not say its collective and its ranks; give the log from its first line on")
        gpus_per_node = node_types(self.cluster)[0][1].node.gpus.count
        constants = tuple(constant for constant in self.constants if constant.family in ON_LINKS)
        ranks, nodes = test_log.ranks, -(-test_log.ranks // gpus_per_node)
        if nodes > 1 and "network between nodes" not in {constant.family for constant in constants}:
            raise InputError(f"{path}: has {ranks} GPUs and the steps have one node; add a step of several nodes")
        cluster: dict[str, object] = {"cluster.nodes": nodes}
        if nodes > 1 and "fabric" not in self.cluster.data:
            cluster["fabric.kind"] = "switch"
        measurements = []
        for name, (smallest, largest, spread) in {"large": (MANY, 2.0**63, LARGE), "small": (0, FEW, SMALL)}.items():
            times = {size: seconds for size, seconds in test_log.seconds.items() if smallest <= size <= largest}
            if times:
                forecast = partial(self._collective, test_log.op, ranks, list(times), cluster)
                mean = geometric_mean(times.values())
                label = f"{name} {test_log.op} of {path.name}"
                measurements.append(Measurement(label, mean, forecast, constants, spread))
        if not measurements:
            sizes = f"{MANY:,} bytes and more or of {FEW:,} and less"
            raise InputError(f"{path}: has no size of {sizes}; run with -b 8 -e 1G")
        return measurements

    def _collective(
        self, op: str, ranks: int, sizes: Sequence[int], cluster: ChangedKeys, changes: ChangedKeys
    ) -> float:
        """Return the geometric mean of a collective's forecast seconds over sizes in bytes.

        cluster: keys that adapt the cluster to the number of ranks. changes: changed keys.
        """
        topology = build(overridden(self.cluster, {**cluster, **changes}))
        group = request.members(topology, ranks, None)
        return geometric_mean(line(topology, group, op, size).time for size in sizes)


class MeasuredMachine(NamedTuple):
    """Measurements of a machine, and the estimate from them."""

    gpu: str
    """GPU of all steps."""
    gpus: int
    """Number of GPUs of the largest step."""
    fit: MachineEstimate
    steps: int
    """Number of measurements that are steps; these come first."""
    refused: tuple[str, ...]
    """Reasons why rows were excluded, each with the id or the line."""
    evidence: tuple[str, ...]
    """Measurements in words."""


def machine(
    path: Path, traces: Sequence[str] = (), logs: Sequence[Path] = (), progress: Progress = silent
) -> MeasuredMachine:
    """Return the machine from a table of steps, traces `[ID=]FILE` and logs of nccl-tests, all of the same cluster.

    Raises InputError for unreadable input, several kinds of GPU, contradictions, or another unit.
    """
    runs, refused = _runs(path)
    gpus = sorted({run.gpu for run in runs})
    if len(gpus) > 1:
        raise InputError(f"{path}: has steps on {' and '.join(gpus)}; a machine has one kind of GPU, so split the file")
    _check(path, runs)
    measurements = [run.step() for run in runs]
    for text in traces:
        run, place = _traced(text, runs, path)
        measurements += run.kernels(place, measured(place))
    largest = max(runs, key=lambda run: run.job.mesh.size)
    for log_path in logs:
        measurements += largest.collectives(log_path)
    estimate = fitted(measurements, progress)
    if len(runs) > 1:
        _check_fit(path, estimate, len(runs))
    steps = f"{len(runs)} step{'s' * (len(runs) > 1)} of {path.name}"
    evidence = (steps, *(measurement.name for measurement in measurements[len(runs) :]))
    return MeasuredMachine(gpus[0], largest.job.mesh.size, estimate, len(runs), refused, evidence)


def _check_fit(path: Path, fit: MachineEstimate, steps: int) -> None:
    """Raise InputError if the steps agree and differ from their forecasts by more than FAR, or contradict each other.

    Steps contradict each other if half of them differ by more than FAR from forecasts based on the others.
    """
    before = fit.before[:steps]
    usual = float(np.median(before))
    if abs(usual) > log(FAR) and exp(float(np.median(np.abs(before - usual)))) <= SAME:
        problem = f"the steps agree with each other and take {exp(usual):.2g} times their forecasts"
        raise InputError(f"{path}: {problem}; check the unit of sec_per_iter, the GPU and the batch")
    deviation = exp(float(np.median(np.abs(fit.left_out[:steps]))))
    if deviation > FAR:
        problem = f"half of them are {deviation:.1f} times and more from what the others say of the machine"
        raise InputError(f"{path}: the steps contradict each other: {problem}; check their units and configurations")


def _runs(path: Path) -> tuple[list[MeasuredRun], tuple[str, ...]]:
    """Return the rows that can be simulated, and the reasons why others cannot. Raises InputError if none can."""
    runs, refused = [], []
    for run in load([path]):
        try:
            runs.append(MeasuredRun(run))
        except Refusal as refusal:
            refused.append(f"{run.id}: {refusal.why}" if not run.unreadable else refusal.why)
        except InputError as error:
            refused.append(f"{run.id}: {getattr(error, 'message', error)}")
    if not runs:
        raise InputError(f"{path}: no step can be simulated; {refused[0]}")
    return runs, tuple(refused)


def _check(path: Path, runs: Sequence[MeasuredRun]) -> None:
    """Raise InputError for a step that seems to have another unit, and for very different times of the same job."""
    for run in runs:
        ratio = run.seconds / run.step().forecast({})
        if not 1 / UNITS < ratio < UNITS:
            problem = f"{run.seconds:g} s is {ratio:,.3g} times the forecast"
            raise InputError(f"{path}:{run.run.line}: sec_per_iter: {problem}; write seconds of one step")
    for run, other in combinations(sorted(runs, key=lambda run: run.seconds), 2):
        if run.same_job(other) and other.seconds > SAME * run.seconds:
            problem = f"{run.run.id} and {other.run.id} are the same job and contradict each other"
            raise InputError(f"{path}: {problem}: {run.seconds:g} s and {other.seconds:g} s; keep one of them")


def _traced(text: str, runs: Sequence[MeasuredRun], path: Path) -> tuple[MeasuredRun, Path]:
    """Return the step and the file of `[ID=]FILE`. Raises InputError for an unknown id, or a missing one with several steps."""
    name, equals, file = text.partition("=")
    if equals and not Path(text).exists():
        known = {run.run.id: run for run in runs}
        if name not in known:
            raise InputError(f"--trace {text}: {path} has no step {name!r} that is simulated; {suggest(name, known)}")
        return known[name], Path(file)
    if len(runs) > 1:
        raise InputError(f"--trace {text}: which of {len(runs)} steps? write --trace {runs[0].run.id}={text}")
    return runs[0], Path(text)
