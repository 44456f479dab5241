"""A user's measurements on one cluster, paired with forecasts: steps, logs of nccl-tests, traces of a profiler."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import combinations
from math import exp, fsum, log
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

import numpy as np

from clustersim.calibration.constants import LEVEL, SOFTWARE, Constant, constants_of, software_constant
from clustersim.calibration.fit import SLOWEST, ChangedKeys, MachineEstimate, Measurement, fitted
from clustersim.calibration.sensitivity import changed_step
from clustersim.collectives.nccl import nccl_tests_log, request
from clustersim.collectives.nccl.table import line
from clustersim.config.yaml import Document, parse
from clustersim.errors import InputError, suggest
from clustersim.explain.beside_trace import beside
from clustersim.explain.gpu_trace import MeasuredStep, measured
from clustersim.files import read_text
from clustersim.parallel.job import Job
from clustersim.parallel.load import build as build_job
from clustersim.report.calibration import Kind, shipped, software_level
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
"""Standard deviation of the log error of a class of kernels, which a trace identifies by name."""
LARGE, SMALL = 0.05, 0.20
"""Standard deviations of the log error of a collective with many bytes and with few."""
MANY, FEW = 64 * 2**20, 64 * 2**10
"""Bytes from which a collective's rate is used, and up to which its latency is."""
UNITS = 20.0
"""Ratio of measured to forecast steps that indicates another unit."""
FAR = 3.0
"""Ratio of steps above which unit or configuration must be wrong; below, it is the software level."""
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
        """Build cluster and job of a row. view: knowledge of the forecast. Raises Refusal or InputError for an invalid row."""
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
        self.level = software_level(likely, shipped(), publisher_group(view.without)).factor
        self.known: dict[str, float] = {}

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """Constants that its step depends on."""
        own = constants_of(self.cluster, self.job)
        return (software_constant(), *own, *[SLOWEST] * (self.job.mesh.size > 1))

    def same_job(self, other: MeasuredRun) -> bool:
        """Return whether another row has the same simulation."""
        jobs = [{**json.loads(one.setup.workload), "name": ""} for one in (self, other)]
        return self.setup.topology == other.setup.topology and jobs[0] == jobs[1]

    def step(self) -> Measurement:
        """Return the step as a measurement."""
        return Measurement(self.run.id, self.seconds, self._step, self.constants, REMAINDER)

    def _step(self, changes: ChangedKeys) -> float:
        """Return the expected seconds of the step with changed keys, including the software level."""
        simulated = {key: value for key, value in changes.items() if key != LEVEL}
        name = json.dumps(simulated, sort_keys=True)
        if name not in self.known:
            self.known[name] = changed_step(self.cluster, self.job, simulated, self.simulator)
        return self.known[name] * self.level * float(str(changes.get(LEVEL, 1.0)))

    def kernels(self, path: Path, trace: MeasuredStep) -> list[Measurement]:
        """Return the kernel classes in a trace of this step as measurements. Raises InputError without GPU kernels."""
        if not trace.on_gpu:
            raise InputError(f"{path}: has operators of a CPU and no kernels; profile with ProfilerActivity.CUDA too")
        known: dict[str, dict[str, float]] = {}

        def seconds(parts: Sequence[str], changes: ChangedKeys) -> float:
            """Return the forecast seconds of some classes of kernels with changed keys."""
            name = json.dumps(changes, sort_keys=True)
            if name not in known:
                simulator = Simulator(build(overridden(self.cluster, changes))) if changes else self.simulator
                result = simulator.run(self.job, ignore_memory=True, engine="auto")
                known[name] = {row.name: row.forecast for row in beside(result, trace, None).rows["kernels"]}
            return fsum(known[name].get(part, 0.0) for part in parts)

        own = tuple(one for one in self.constants if one.family not in (SOFTWARE, *ON_LINKS, "host", SLOWEST.family))
        found = []
        for name, parts in CLASSES.items():
            took, forecast = fsum(trace.by_class.get(part, 0.0) for part in parts), partial(seconds, parts)
            if took and forecast({}):
                found.append(Measurement(f"{name} of {path.name}", took, forecast, own, KERNELS))
        if not found:
            what = f"none of its kernels is of a class that the step of {self.run.id} has"
            raise InputError(f"{path}: {what}; give a trace of that step")
        return found

    def collectives(self, path: Path) -> list[Measurement]:
        """Return a log of nccl-tests as measurements of large and small sizes. Raises InputError if it does not apply."""
        lines = nccl_tests_log.lines_of(read_text(path, "what nccl-tests printed"))
        if not any(map(nccl_tests_log.head, lines)):
            raise InputError(
                f"{path}: not a log of nccl-tests; give the whole output of all_reduce_perf or a similar test"
            )
        found = nccl_tests_log.read(path, lines)
        if found.op is None or not found.ranks:
            raise InputError(f"{path}: does not say its collective and its ranks; give the log from its first line on")
        each = node_types(self.cluster)[0][1].node.gpus.count
        own = tuple(one for one in self.constants if one.family in ON_LINKS)
        if found.ranks > each and not any(one.family == "network between nodes" for one in own):
            raise InputError(f"{path}: has {found.ranks} GPUs and the steps have one node; add a step of several nodes")
        nodes = -(-found.ranks // each)
        cluster: dict[str, object] = {"cluster.nodes": nodes}
        if nodes > 1 and "fabric" not in self.cluster.data:
            cluster["fabric.kind"] = "switch"
        result = []
        for name, (least, most, spread) in {"large": (MANY, 2.0**63, LARGE), "small": (0, FEW, SMALL)}.items():
            times = {size: seconds for size, seconds in found.seconds.items() if least <= size <= most}
            if times:
                forecast = partial(self._collective, found.op, found.ranks, list(times), cluster)
                mean = geometric_mean(times.values())
                result.append(Measurement(f"{name} {found.op} of {path.name}", mean, forecast, own, spread))
        if not result:
            sizes = f"{MANY:,} bytes and more or of {FEW:,} and less"
            raise InputError(f"{path}: has no size of {sizes}; run with -b 8 -e 1G")
        return result

    def _collective(
        self, op: str, ranks: int, sizes: Sequence[int], cluster: ChangedKeys, changes: ChangedKeys
    ) -> float:
        """Return the geometric mean of a collective's forecast seconds over sizes in bytes, with changed keys."""
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
    """Reasons of excluded rows."""
    evidence: tuple[str, ...]
    """Measurements in words."""


def machine(
    path: Path, traces: Sequence[str] = (), logs: Sequence[Path] = (), progress: Progress = silent
) -> MeasuredMachine:
    """Return the machine of a table of steps, traces `[ID=]FILE` and logs of nccl-tests, all of one cluster.

    Raises InputError for unreadable input, several kinds of GPU, contradictions, or another unit.
    """
    runs, refused = _runs(path)
    gpus = sorted({one.gpu for one in runs})
    if len(gpus) > 1:
        raise InputError(f"{path}: has steps on {' and '.join(gpus)}; a machine has one kind of GPU, so split the file")
    _check(path, runs)
    measurements = [one.step() for one in runs]
    for text in traces:
        run, place = _traced(text, runs, path)
        measurements += run.kernels(place, measured(place))
    largest = max(runs, key=lambda one: one.job.mesh.size)
    for log_path in logs:
        measurements += largest.collectives(log_path)
    found = fitted(measurements, progress)
    if len(runs) > 1:
        _check_fit(path, found, len(runs))
    said = [f"{len(runs)} step{'s' * (len(runs) > 1)} of {path.name}", *(one.name for one in measurements[len(runs) :])]
    return MeasuredMachine(gpus[0], largest.job.mesh.size, found, len(runs), refused, tuple(said))


def _check_fit(path: Path, fit: MachineEstimate, steps: int) -> None:
    """Raise InputError for steps that all differ from their forecasts, or from each other, by a ratio above FAR."""
    before = fit.before[:steps]
    usual = float(np.median(before))
    if abs(usual) > log(FAR) and exp(float(np.median(np.abs(before - usual)))) <= SAME:
        times = f"the steps agree with each other and take {exp(usual):.2g} times their forecasts"
        raise InputError(f"{path}: {times}; check the unit of sec_per_iter, the GPU and the batch")
    off = exp(float(np.median(np.abs(fit.left_out[:steps]))))
    if off > FAR:
        times = f"half of them are {off:.1f} times and more from what the others say of the machine"
        raise InputError(f"{path}: the steps contradict each other: {times}; check their units and configurations")


def _runs(path: Path) -> tuple[list[MeasuredRun], tuple[str, ...]]:
    """Return the rows that can be simulated, and the reasons of the others. Raises InputError if there are none."""
    found, refused = [], []
    for run in load([path]):
        try:
            found.append(MeasuredRun(run))
        except Refusal as refusal:
            refused.append(f"{run.id}: {refusal.why}" if not run.unreadable else refusal.why)
        except InputError as error:
            refused.append(f"{run.id}: {getattr(error, 'message', error)}")
    if not found:
        raise InputError(f"{path}: no step can be simulated; {refused[0]}")
    return found, tuple(refused)


def _check(path: Path, runs: Sequence[MeasuredRun]) -> None:
    """Raise InputError for a step in another unit, and for one job that took very different times."""
    for one in runs:
        times = one.seconds / one.step().forecast({})
        if not 1 / UNITS < times < UNITS:
            much = f"{one.seconds:g} s is {times:,.3g} times the forecast"
            raise InputError(f"{path}:{one.run.line}: sec_per_iter: {much}; write seconds of one step")
    for one, other in combinations(sorted(runs, key=lambda one: one.seconds), 2):
        if one.same_job(other) and other.seconds > SAME * one.seconds:
            what = f"{one.run.id} and {other.run.id} are the same job and contradict each other"
            raise InputError(f"{path}: {what}: {one.seconds:g} s and {other.seconds:g} s; keep one of them")


def _traced(text: str, runs: Sequence[MeasuredRun], path: Path) -> tuple[MeasuredRun, Path]:
    """Return the step and the file of `[ID=]FILE`. Raises InputError if the traced step is ambiguous."""
    name, equals, file = text.partition("=")
    if equals and not Path(text).exists():
        known = {one.run.id: one for one in runs}
        if name not in known:
            raise InputError(f"--trace {text}: {path} has no step {name!r} that is simulated; {suggest(name, known)}")
        return known[name], Path(file)
    if len(runs) > 1:
        raise InputError(f"--trace {text}: which of {len(runs)} steps? write --trace {runs[0].run.id}={text}")
    return runs[0], Path(text)
