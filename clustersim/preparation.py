"""Prepare a job independently of its links: its schedule, stages, memory, scripts and kernel times.

Parts that the jobs of one cluster share are computed once: stages by the shapes that determine them, schedules by their size.
They are cached as long as their `Preparation` exists, each kind up to a bound in bytes. Forecasts by kernel outlive it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from clustersim import plugins
from clustersim.arrays import Ints, distinct
from clustersim.cache import Cache
from clustersim.collectives.plan import NCCL
from clustersim.config.gpu import Gpu
from clustersim.engine.compile import Work
from clustersim.engine.memory import Moments, moments, peaks
from clustersim.engine.microbatch_overlap import memory_order
from clustersim.engine.program import Layout, Program
from clustersim.engine.script import RowEnds, WrittenPasses, kernels, layouts, row_ends, scripts
from clustersim.errors import ClustersimError, ConfigError, DataError, InputError, OutOfMemoryError, option
from clustersim.hardware.formats import multiplies
from clustersim.hardware.gpus import load as load_gpu
from clustersim.model.kernel import Kernel
from clustersim.parallel.host import Launcher, host
from clustersim.parallel.job import Job
from clustersim.parallel.kernel_table import distinct_kernels
from clustersim.parallel.memory import Memory
from clustersim.parallel.offload import host_peaks, must_fit_hosts, offloads
from clustersim.parallel.stages import Layers, Stage, stages
from clustersim.predictors import attention_generations, base, clocks
from clustersim.predictors.forecasts import Forecasts
from clustersim.predictors.load import get
from clustersim.predictors.uncertainty import Bounds
from clustersim.report.summary import Forecast, fullest
from clustersim.report.verdicts import band, largest_share, verdict
from clustersim.schedules import check as schedules
from clustersim.schedules.action import WEIGHTS
from clustersim.topology.model import Topology

StagesByPosition = tuple[tuple[Stage, ...], ...]
"""Stages of a job, for each position in the ep group."""
ROOM = 48 << 20
"""Largest number of bytes that each cache keeps. Sizes were measured on sweeps of GPT-3 over thousands of splits."""
ACTION, TASK = 12, 290
"""Bytes of an action of a schedule, and of a task of a script with its share of kernels (measured with FSDP)."""
FORECASTS = threading.local()
"""Its `cache` has the forecasts of built-in predictors by GPU, which all clusters share, for each thread: `Forecasts` are not
thread-safe."""


class Written(NamedTuple):
    """Scripts of all roles of a job, and their distinct kernels in order of appearance."""

    scripts: tuple[Program, ...]
    kernels: tuple[Kernel, ...]


TIMES = ("name", "predictor", "clocks")
"""Keys of a job that change at most how long kernels take."""


class Structure:
    """Key of a placed job without its predictor and clocks. The hash is stored, because specs are long and often looked up."""

    __slots__ = ("_hash", "specs")

    def __init__(self, job: Job) -> None:
        self.specs = tuple(value for name, value in job.spec if name not in TIMES)
        self._hash = hash(self.specs)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Structure) and self.specs == other.specs)


def _script_bytes(layouts: Iterable[Layout]) -> float:
    """Return the bytes of the tasks of some layouts."""
    return TASK * sum(len(layout.tasks) for layout in layouts)


SIZES: Mapping[str, float | Callable[[Any], float]] = {
    "distinct": 6_000,
    "layers": 30_000,
    "moments": 50_000,
    "parts": 10_000,
    "passes": lambda parts: _script_bytes(chain.from_iterable(part.layouts.values() for part in parts)),
    "peaks": 4_000,
    "schedules": lambda rows: ACTION * sum(len(rank.row) for rank in rows),
    "splits": 2_000,
    "structure": 15_000,
    "structures": 2_000,
    "written": lambda written: _script_bytes(layouts(written.scripts)),
}
"""{cache that does not depend on the cluster: bytes of an entry}"""


class Preparation:
    """Prepares jobs for one cluster. `fullest`: greatest share of a GPU's memory a job may need; `gpus`: its types as JSON."""

    __slots__ = ("_bounds", "_jobs", "_outside", "cluster", "fullest", "gpus")

    def __init__(self, cluster: Topology, unlikely: bool = True) -> None:
        """Prepare jobs for `cluster`; with `unlikely`, also jobs that are unlikely to fit into memory."""
        self.cluster, self.fullest = cluster, largest_share(unlikely)
        self._jobs = {name: Cache(ROOM, weight) for name, weight in SIZES.items()}
        self._bounds = Cache(ROOM, 10_000)
        self._outside = Cache(16, 1)  # forecasts of plug-ins, which may depend on more than the GPU
        self.gpus = tuple(kind.gpu.model_dump_json() for kind in cluster.kinds)

    def for_cluster(self, cluster: Topology) -> Preparation:
        """Return a preparation for a cluster whose nodes have the same sizes, which shares this one's stages, schedules and
        scripts."""
        prepared = Preparation(cluster)
        prepared.fullest = self.fullest
        prepared._jobs, prepared._outside = self._jobs, self._outside
        return prepared

    def structure(self, job: Job) -> Structure:
        """Return the key of a placed job without its predictor and clocks, which change only times."""

        def compute() -> tuple[Job, Structure]:
            new = Structure(job)
            return job, self._jobs["structures"].once(new, lambda: new)

        return self._jobs["structure"].once(id(job), compute)[1]

    def parts(self, job: Job) -> StagesByPosition:
        """Return the stages of a placed job, by position in the ep group; jobs with equal shapes share the objects."""
        return self._jobs["splits"].once(self.structure(job), lambda: self._parts_of_shape(job))

    def _parts_of_shape(self, job: Job) -> StagesByPosition:
        """Return the stages of a placed job, from the cache of jobs with equal shapes."""
        # keys that determine neither layers nor their stages; of dp, only whether a rank has peers matters
        training = job.training.model_copy(update={"global_batch": 1})
        split = job.parallelism.model_copy(update={"dp": min(job.dp, 2), "schedule": job.order_of_stages})

        def compute() -> StagesByPosition:
            uncut = split.uncut
            each = range(job.positions)
            layers = [
                self._jobs["layers"].once((job.model, training, uncut, place), partial(Layers, job.shard_at(place)))
                for place in each
            ]
            return tuple(stages(job, place, layers[place]) for place in each)

        return self._jobs["parts"].once((job.model, training, split), compute)

    def schedule(self, job: Job, microbatches: int) -> tuple[RowEnds, ...]:
        """Return the actions of each pipeline rank in a job's schedule for a number of microbatches. Raises ConfigError if the
        schedule does not support it."""
        split = job.parallelism

        def load() -> tuple[RowEnds, ...]:
            with blaming(job, "parallelism.schedule", schedules.ROOM, split.schedule):
                return row_ends(schedules.load(split.schedule, split.pp, microbatches, split.vpp), job.pipeline)

        loaded = self._jobs["schedules"].once(rows(job, microbatches), load)
        if job.sharded and not split.no_sync and WEIGHTS in loaded[0].row.letter:
            what = f"false reduces behind each whole backward pass, which {split.schedule} cuts in two; write true or zero: 1"
            raise job.error("parallelism.fsdp.no_sync", what)
        return loaded

    def peaks(self, job: Job) -> list[Memory]:
        """Return the peak memory of the fullest GPU of each pipeline rank of a placed job. Raises ConfigError."""

        def compute() -> list[Memory]:
            order = self._moments_of(job)
            return peaks(job, self.parts(job), order)

        return self._jobs["peaks"].once(self.structure(job), compute)

    def _moments_of(self, job: Job) -> Moments:
        """Return the moments of a placed job's schedule at which its memory may peak. Raises ConfigError."""
        split, paired = job.parallelism, job.pipeline.paired
        enough = schedules.peak_microbatches(split.schedule, split.pp, job.microbatches, split.vpp)
        question = rows(job, enough), paired

        def compute() -> Moments:
            return moments(memory_order(tuple(rank.row for rank in self.schedule(job, enough)), paired))

        return self._jobs["moments"].once(question, compute)

    def must_fit(self, job: Job, gpus: Ints | None = None, *, ignorable: bool = True) -> None:
        """Raise OutOfMemoryError if a placed job needs more memory than allowed on `gpus`, one per rank (default: the first).

        ignorable: whether the caller has an option to continue, which the message then names.
        """
        memory = self.peaks(job)
        gpus = np.arange(job.mesh.size) if gpus is None else gpus
        if offloads(job):
            moments = self._moments_of(job)
            must_fit_hosts(job, host_peaks(job, self.parts(job)[0], moments.start, moments.kept), self.cluster, gpus)
        worst, need, have = fullest(self.cluster, gpus, memory)
        if need > self.fullest * have:
            degrees = ["tp", "pp", *(["ep"] if (job.model.experts or 1) > job.parallelism.ep else [])]
            degrees += ["cp"] if memory[worst].activations == max(memory[worst]) else []  # it divides nothing else
            raised = f"raise {', '.join(degrees[:-1])} or {degrees[-1]}"
            remedies = [raised, "lower micro_batch", "recompute activations"]
            if verdict(need, have) == "unlikely":
                remedies.append(f"pass {option('--unlikely', 'unlikely=True')}")
            elif ignorable:
                remedies.append(f"pass {option('--ignore-memory', 'ignore_memory=True')}")
            name = self.cluster.smallest_gpus(gpus, len(memory))[worst].name
            kinds = sorted(memory[worst]._asdict().items(), key=lambda pair: -pair[1])[:3]
            largest = [f"{kind} {size / 2**30:.1f} GiB" for kind, size in kinds]
            what = (
                f"pipeline rank {worst} needs {need / 2**30:.1f} GiB and {name} has {have / 2**30:.1f} GiB "
                f"({', '.join(largest)}): {band(need, have).text}; {', '.join(remedies[:-1])}, or {remedies[-1]}"
            )
            raise OutOfMemoryError(str(job.error("parallelism", what)))

    def written(self, job: Job) -> Written:
        """Return the scripts of a placed job. Raises ConfigError."""
        loaded = self.schedule(job, job.microbatches)

        def write() -> Written:
            # one object for all jobs that differ at most in dp, global batch and order of passes
            parts = self.parts(job)
            question = id(parts[0]), job.dp
            passes = self._jobs["passes"].once(question, lambda: [WrittenPasses(part) for part in parts])
            lanes = zip(*(scripts(job, of_position, loaded) for of_position in passes), strict=True)
            self._jobs["passes"].keep(question, passes)  # their size has grown
            programs = tuple(script for lane in lanes for script in lane)
            return Written(programs, tuple(kernels(programs)))

        return self._jobs["written"].once(self.structure(job), write)

    def work(self, job: Job, gpus: Ints) -> Work:
        """Return the work of a placed job with its ranks on `gpus`. Raises ConfigError."""
        written = self.written(job)
        used, none = self.kinds(gpus), dict[Kernel, float]()
        taken = job.communication_sms or 0
        gpu = min((self.cluster.kinds[kind].gpu for kind in used), key=lambda gpu: gpu.sms)
        if taken >= gpu.sms:
            what = f"{taken} leave none of the {gpu.sms} SMs of {gpu.name} to passes; write fewer, or nccl"
            raise job.error("parallelism.overlap.sms", what)
        with blaming(job, "predictor", base.ROOM, job.spec.predictor):
            seconds = tuple(
                self._forecasts(job, kind).seconds(written.kernels, job.spec.clocks) if kind in used else none
                for kind in range(len(self.cluster.kinds))
            )
        return Work(job, written.scripts, written.kernels, seconds, gpus, self.hosts(job))

    def kinds(self, gpus: Ints) -> list[int]:
        """Return the node types of `gpus`, as indices into `Topology.kinds`; all types if `gpus` is empty."""
        kinds: list[int] = distinct(self.cluster.kind_of(gpus)).tolist()
        return kinds or list(range(len(self.cluster.kinds)))

    def hosts(self, job: Job) -> tuple[Launcher, ...]:
        """Return the launcher of a job's kernels for each node type; () if the host never delays a kernel. Raises ConfigError."""
        try:
            launchers = [host(job, kind.host_slowdown) for kind in self.cluster.kinds]
        except InputError as error:
            raise job.error("training.framework", str(error)) from error
        return tuple(launcher for launcher in launchers if launcher is not None)

    def runs_on(self, job: Job) -> bool:
        """Return whether the host launches pass after pass without waiting for the GPU, so that kernel times decide where GPUs
        wait."""
        return any(host.late and not host.synchronised(job) for host in self.hosts(job))

    def seconds(self, job: Job, kernels: Sequence[Kernel]) -> Mapping[Kernel, float]:
        """Return {kernel: seconds} at the job's predictor and clocks, with at least these kernels, each on the fastest GPU type.

        Raises ConfigError for a predictor that fails.
        """
        kinds = range(len(self.cluster.kinds))
        with blaming(job, "predictor", base.ROOM, job.spec.predictor):
            by_kind = [self._forecasts(job, kind).seconds(kernels, job.spec.clocks) for kind in kinds]
        return by_kind[0] if len(by_kind) == 1 else {k: min(of_kind[k] for of_kind in by_kind) for k in kernels}

    def bounds(self, work: Work, kind: int | None = None) -> Bounds:
        """Return the 80 % intervals of a placed job's kernel times on a node type (default: the job's first). Raises
        ConfigError."""
        job, place = work.job, self.kinds(work.gpus)[0] if kind is None else kind

        def compute() -> Bounds:
            with blaming(job, "predictor", base.ROOM, job.spec.predictor):
                return self._forecasts(job, place).bounds(work.kernels)

        return self._bounds.once((self.structure(job), job.spec.predictor, place), compute)

    def forecast(self, work: Work) -> Forecast:
        """Return the uncertainty of a placed job's kernel times, as intervals and in words. Raises ConfigError."""
        used = self.kinds(work.gpus)
        each = [self._forecast(work, kind) for kind in used]
        if len(each) == 1:
            return each[0]
        names = [self.cluster.kinds[kind].gpu.name for kind in used]
        clocks_text = "; ".join(f"{name}: {forecast.clocks}" for name, forecast in zip(names, each, strict=True))
        errors = [f"{name}: {text}" for name, forecast in zip(names, each, strict=True) for text in forecast.statement]
        shares = {
            f"{name} {dtype}": share
            for name, forecast in zip(names, each, strict=True)
            for dtype, share in forecast.shares.items()
        }
        return Forecast(errors, clocks_text, shares, each[0].bounds)

    def _forecast(self, work: Work, kind: int) -> Forecast:
        """Return the uncertainty of a job's kernel times on nodes of one type."""
        job, kernels, gpu = work.job, work.kernels, self.cluster.kinds[kind].gpu
        with blaming(job, "predictor", base.ROOM, job.spec.predictor):
            predictor = self._forecasts(job, kind).predictor
            applied = clocks.applied(predictor, job.spec.clocks)
            errors = [str(scope) for scope in predictor.statement(kernels, gpu)]
        text, shares = clocks.statement(kernels, gpu, applied), clocks.shares_of(kernels, gpu, applied)
        return Forecast(errors, text, shares, self.bounds(work, kind))

    def learn(self, jobs: Iterable[Job]) -> None:
        """Forecast the kernels of placed jobs in one call per predictor. Errors are ignored here, and raised when the job is
        used."""
        by_predictor: dict[tuple[str, clocks.Clocks], tuple[Job, dict[Kernel, None]]] = {}
        for job in jobs:
            _, known = by_predictor.setdefault((job.spec.predictor, job.spec.clocks), (job, {}))
            known |= self._jobs["distinct"].once(self.structure(job), partial(distinct_kernels, job, self.parts(job)))
        for job, known in by_predictor.values():
            for kind in range(len(self.cluster.kinds)):
                with suppress(ClustersimError):
                    self._forecasts(job, kind).seconds(list(known), job.spec.clocks)

    def _forecasts(self, job: Job, kind: int) -> Forecasts:
        """Return the forecasts for a job on a node type. Raises ConfigError for attention that its GPU does not support."""
        try:
            attention_generations.check(job.training.attention, self.cluster.kinds[kind].gpu)
        except InputError as error:
            raise job.error("training.attention", str(error)) from error
        name, gpu = job.spec.predictor, self.cluster.kinds[kind].gpu
        shared: Cache = FORECASTS.__dict__.setdefault("cache", Cache(16, 1))
        cache = self._outside if plugins.outside(base.ROOM, name) else shared
        return cache.once((name, self.gpus[kind]), lambda: Forecasts(get(name), gpu))


def rows(job: Job, microbatches: int) -> tuple[Hashable, ...]:
    """Return the cache key of a job's schedule with `microbatches`."""
    split = job.parallelism
    return split.schedule, split.pp, microbatches, split.vpp


def check_names(job: Job) -> None:
    """Raise ConfigError, with the position in the workload, for the first unknown name of a plug-in."""
    _ = job.keeps
    split = job.parallelism
    wanted = [("parallelism.schedule", schedules.ROOM, split.schedule, "build")]
    wanted += [
        (f"parallelism.algorithms.{g}", "clustersim.collectives", a, "phases") for g, a in split.algorithms if a != NCCL
    ]
    for key, room, name, attribute in (*wanted, ("predictor", base.ROOM, job.spec.predictor, "load")):
        with blaming(job, key, room, name):
            plugins.load(room, name, attribute)


def check_precision(job: Job, cluster: Topology, gpus: Ints) -> None:
    """Raise ConfigError if one of a job's GPUs has no GEMMs in the job's data type: frameworks refuse to run it."""
    gpu = lacking(cluster, job.training.precision, gpus)
    if gpu:
        precision = job.training.precision
        what = f"{gpu.name} multiplies no {precision}, its datasheet has {', '.join(gpu.matrix)}"
        others = " or ".join(
            name for name in ("h100", "b200", "mi300x", "mi355x") if multiplies(load_gpu(name), precision)
        )
        raise job.error("training.precision", f"{what}; write bf16, or take a GPU that has it, such as {others}")


def lacking(cluster: Topology, precision: str, gpus: Ints | None = None) -> Gpu | None:
    """Return a GPU without GEMMs in a data type that no wider type can replace; None if all GPUs have them.

    gpus: indices of the cluster's GPUs (default: all).
    """
    return next((gpu for gpu, _ in cluster.gpu_counts(gpus) if not multiplies(gpu, precision)), None)


@contextmanager
def blaming(job: Job, key: str, room: str, name: str) -> Iterator[None]:
    """Add the position of `key` in the workload to errors in the context, including failures of an outside plug-in."""
    try:
        with plugins.blaming(room, name):
            yield
    except (ConfigError, DataError):
        raise
    except InputError as error:
        raise job.error(key, str(error)) from error
