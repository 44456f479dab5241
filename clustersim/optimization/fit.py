"""What makes a job fit that does not: the shortest lists of changes, found by its memory and each verified by simulating it.

A change is what a practitioner would try: more recomputation, a higher stage of ZeRO, a smaller microbatch, more ranks of a
kind, a loss in place, narrower gradients, more nodes. One change alone comes first, then pairs, then three together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple

from clustersim.config.overrides import as_text, parted
from clustersim.errors import ClustersimError, ConfigError
from clustersim.hardware.formats import FORMATS
from clustersim.parallel.check import check
from clustersim.parallel.job import Job, divisors
from clustersim.parallel.options import change_words
from clustersim.report.verdicts import verdict
from clustersim.simulation import Simulator
from clustersim.topology.model import Topology
from clustersim.units import duration, gibibytes

LONGEST = 3
"""Changes of a list at most."""
TOGETHER = 4
"""Values of one kind that take part in lists of several changes, from the mildest to the strongest."""

FINEST = 128
"""Numbers of recomputed layers that are tried at most."""
BEYOND = 1000
"""No change is sought for a job that needs this many times the memory of a GPU: it is taken for a typing error."""

Values = Mapping[str, object]
"""By dotted key."""
Grow = Callable[[int], Topology]
"""Returns the cluster with the given number of nodes. Raises ClustersimError for a number it cannot have."""


class Remedy(NamedTuple):
    """One list of changes that makes a job fit, as its simulation found it."""

    changes: Values
    """What to set, by dotted key."""
    length: int
    """Of how many changes it is: one may set several keys."""
    step: float
    """Seconds of a step with them."""
    memory: float
    """Bytes of the fullest GPU."""

    @property
    def options(self) -> str:
        """The changes as options of a command."""
        return " ".join(change_words(self.changes))

    @property
    def keys(self) -> str:
        """The changes as keys of the files."""
        return ", ".join(f"{key}: {as_text(value)}" for key, value in self.changes.items())


class _Trial(NamedTuple):
    """A list of changes, the job with them and the bytes of its fullest GPU."""

    changes: Values
    length: int
    job: Job
    memory: float


def remedies(simulator: Simulator, job: Job, grow: Grow | None = None, most: int = 3) -> list[Remedy]:
    """Return the shortest lists of changes that make a loaded job fit on a cluster, the fastest of them first; none without any.

    grow: makes the cluster of more nodes, if they may be asked for. Each list has been simulated.
    """
    search = _Search(simulator, job, grow)
    if search.need > BEYOND * simulator.cluster.gpu.memory:
        return []
    for fitting in search.lists():
        found = sorted(filter(None, map(search.verified, fitting)), key=lambda one: one.step)
        if found:
            return found[:most]
    return []


def advice(found: Sequence[Remedy]) -> str:
    """Return these lists of changes for a reader, as options and as keys, a line each; nothing without any."""
    if not found:
        return ""
    words = "one change" if found[0].length == 1 else f"{found[0].length} changes"
    lines = (f"  {one.options}  ({one.keys}): {duration(one.step)} a step, {gibibytes(one.memory)}" for one in found)
    return "\n".join((f"what fits by {words}, each simulated, the fastest first:", *lines))


class _Search:
    """Lists of changes of one job on one cluster."""

    def __init__(self, simulator: Simulator, job: Job, grow: Grow | None) -> None:
        self.simulator, self.job, self.grow = simulator, job, grow
        self.nodes = simulator.cluster.nodes
        self.need = self._memory(job, self.nodes) or float("inf")

    def lists(self) -> Iterator[list[_Trial]]:
        """Yield what fits, by number of changes: of the values of each kind, or of kinds together, the mildest."""
        kinds = changes(self.job, self.simulator.cluster.gpus_per_node, self.nodes if self.grow else 0)
        yield self._mildest([(one,) for one in kind] for kind in kinds)
        helping = [_spread([one for one in kind if self._helps(one)]) for kind in kinds]
        for several in range(2, LONGEST + 1):
            yield self._mildest(list(product(*chosen)) for chosen in combinations(helping, several))

    def verified(self, trial: _Trial) -> Remedy | None:
        """Return a list with what its simulation says, None where that fails."""
        try:
            found = self._simulator(trial).outline(trial.job, "auto")
        except ClustersimError:
            return None
        return Remedy(trial.changes, trial.length, found["step_time_s"], found["memory"]["peak_bytes"])

    def _simulator(self, trial: _Trial) -> Simulator:
        nodes = trial.changes.get("cluster.nodes")
        return Simulator(self.grow(nodes)) if self.grow and isinstance(nodes, int) else self.simulator

    def _mildest(self, groups: Iterator[list[tuple[Values, ...]]]) -> list[_Trial]:
        """Return of each group of lists the first that fits."""
        have = self.simulator.cluster.gpu.memory
        fits = (
            (one for one in map(self._trial, group) if one and verdict(one.memory, have) == "likely")
            for group in groups
        )
        return [first for group in fits if (first := next(group, None))]

    def _helps(self, one: Values) -> bool:
        trial = self._trial((one,))
        return trial is not None and trial.memory < self.need

    def _trial(self, several: Sequence[Values]) -> _Trial | None:
        together = {key: value for one in several for key, value in one.items()}
        job, nodes = changed(self.job, together), together.get("cluster.nodes", self.nodes)
        memory = self._memory(job, nodes) if job and isinstance(nodes, int) else None
        return _Trial(together, len(several), job, memory) if job and memory else None

    def _memory(self, job: Job, nodes: int) -> float | None:
        """Return the peak bytes of the fullest GPU of a job on `nodes` nodes, None where it cannot be placed there."""
        cluster = self.simulator.cluster
        try:
            placed = job.place(nodes * cluster.gpus // cluster.nodes, cluster.gpus_per_node)
            return max(one.total for one in self.simulator.preparation.peaks(placed))
        except ClustersimError:
            return None


def _spread(values: list[Values]) -> list[Values]:
    """Return a few of many values, evenly from the mildest to the strongest."""
    last = len(values) - 1
    return values if last < TOGETHER else [values[round(i * last / (TOGETHER - 1))] for i in range(TOGETHER)]


def changed(job: Job, values: Values) -> Job | None:
    """Return a job with other values of its training and its split, None where they are illegal."""
    try:
        return check(job.changed(parted(values)[1]))
    except ConfigError:
        return None


def changes(job: Job, gpus_per_node: int, nodes: int) -> list[list[Values]]:
    """Return what may be changed to need less memory, by kind and each from the mildest to the strongest value.

    nodes: of the cluster, where it may get more; else 0.
    """
    training, split = job.training, job.parallelism
    recompute: list[Values] = []
    if training.recompute == "none":
        recompute.append({"training.recompute": "selective"})
    if training.recompute != "full":
        block = {"training.recompute": "full", "training.recompute_method": "block"}
        layers = -(-job.model.layers // (split.pp * split.vpp))
        step = -(-layers // FINEST)
        recompute += [block | {"training.recompute_layers": n} for n in range(step, layers, step)]
        recompute.append({"training.recompute": "full"})
    zero: list[Values] = [{"parallelism.zero": 1}, {"parallelism.zero": 2, "parallelism.overlap.grad_reduce": True}]
    zero.append({"parallelism.zero": 3})
    batches = [n for n in reversed(divisors(training.micro_batch)) if n < training.micro_batch]
    return [
        recompute,
        zero[split.zero :],
        [{"training.micro_batch": n} for n in batches],
        [{"parallelism.sequence_parallel": True}] if split.tp > 1 and not split.sequence_parallel else [],
        *(_more(job, name, limit) for name, limit in (("tp", gpus_per_node), ("pp", job.model.layers), ("cp", 64))),
        _more(job, "ep", job.model.experts or 1),
        [{"training.cross_entropy": "fused"}] if training.cross_entropy not in ("fused", "metered") else [],
        [{"training.gradients": "bf16"}]
        if training.gradients == "fp32" and training.precision in ("bf16", *FORMATS)
        else [],
        [{"training.precision": "fp8"}] if training.precision == "bf16" else [],
        [{"cluster.nodes": nodes * n} for n in (2, 4, 8)] if nodes else [],
    ]


def _more(job: Job, degree: str, limit: int) -> list[Values]:
    """Return higher values of a degree up to a limit, with as many fewer replicas where their number is given."""
    now, dp = getattr(job.parallelism, degree), job.parallelism.dp
    found: list[Values] = []
    for times in (2, 4, 8, 16, 32):
        if now * times > limit:
            break
        fewer = {} if dp == "auto" or degree == "ep" or dp % times else {"parallelism.dp": dp // times}
        found.append({f"parallelism.{degree}": now * times} | fewer)
    return found
