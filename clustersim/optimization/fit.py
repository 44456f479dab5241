"""Changes that make a job fit: the shortest lists, found by its memory and each verified by a simulation.

Changes are those of `neighbours.smaller`. Single changes come first, then pairs, then three together.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import combinations, product
from typing import NamedTuple

from clustersim.config.overrides import as_text, parted
from clustersim.errors import ClustersimError
from clustersim.optimization.neighbours import Values, smaller
from clustersim.parallel.check import check
from clustersim.parallel.job import Job
from clustersim.parallel.options import change_words
from clustersim.report.verdicts import verdict
from clustersim.simulation import Simulator
from clustersim.topology.model import Topology
from clustersim.units import duration, gibibytes

LONGEST = 3
"""Largest number of changes in a list."""
TOGETHER = 4
"""Number of values of one kind used in lists of several changes, from the mildest to the strongest."""
BEYOND = 1000
"""Ratio of needed memory to a GPU's above which no change is searched: it is probably a typing error."""

Grow = Callable[[int], Topology]
"""Function from a number of nodes to the cluster. Raises ClustersimError for an impossible number."""


class Remedy(NamedTuple):
    """A list of changes that makes a job fit, with the result of its simulation."""

    changes: Values
    """Values to set, by dotted key."""
    length: int
    """Number of changes; one may set several keys."""
    step: float
    """Expected seconds of a step with the changes."""
    memory: float
    """Peak bytes of the GPU that needs most."""

    @property
    def options(self) -> str:
        """The changes as options of a command."""
        return " ".join(change_words(self.changes))


class _Trial(NamedTuple):
    """A list of changes, the changed job and the peak bytes of the GPU that needs most."""

    changes: Values
    job: Job
    memory: float


def remedies(simulator: Simulator, job: Job, grow: Grow | None = None, most: int = 3) -> list[Remedy]:
    """Return the `most` shortest lists of changes that make a loaded job fit on a cluster, the fastest first; [] if none.

    grow: creates a cluster with more nodes, if these are allowed. Each list has been simulated.
    """
    search = _Search(simulator, job, grow)
    if search.need > BEYOND * simulator.cluster.gpu.memory:
        return []
    for length, fitting in enumerate(search.lists(), 1):
        if found := [*filter(None, (search.verified(trial, length) for trial in fitting))]:
            return sorted(found, key=lambda remedy: remedy.step)[:most]
    return []


def advice(fitting: Sequence[Remedy]) -> str:
    """Return lists of changes as text, as options and as keys, one list per line; "" without any."""
    if not fitting:
        return ""
    words = "one change" if fitting[0].length == 1 else f"{fitting[0].length} changes"
    lines = [f"what fits by {words}, each simulated, the fastest first:"]
    for remedy in fitting:
        keys = ", ".join(f"{key}: {as_text(value)}" for key, value in remedy.changes.items())
        lines.append(f"  {remedy.options}  ({keys}): {duration(remedy.step)} a step, {gibibytes(remedy.memory)}")
    return "\n".join(lines)


class _Search:
    """Lists of changes of one job on one cluster."""

    def __init__(self, simulator: Simulator, job: Job, grow: Grow | None) -> None:
        self.simulator, self.job, self.grow = simulator, job, grow
        self.nodes = simulator.cluster.nodes
        self.known: dict[str, _Trial | None] = {}
        self.need = self._peak_bytes({})

    def lists(self) -> Iterator[list[_Trial]]:
        """Yield the lists that fit, by number of changes: the mildest values of each kind, or of kinds together."""
        kinds = smaller(self.job, self.simulator.cluster.gpus_per_node, self.nodes if self.grow else 0)
        kinds = [[values for values in kind if self._placed(values)] for kind in kinds]
        fitting = [_passing(kind, lambda values: self._fits(self._trial(values))) for kind in kinds]
        yield list(filter(None, (self._trial(kind[0]) for kind in fitting if kind)))
        helping = [_spread(_passing(kind, lambda values: self._peak_bytes(values) < self.need)) for kind in kinds]
        for several in range(2, LONGEST + 1):
            groups = (self._mildest(chosen) for chosen in combinations(filter(None, helping), several))
            yield list(filter(None, groups))

    def verified(self, trial: _Trial, length: int) -> Remedy | None:
        """Simulate a list of `length` changes. Return it with its step and memory, or None if the simulation fails."""
        nodes = trial.changes.get("cluster.nodes")
        with suppress(ClustersimError):
            simulator = Simulator(self.grow(nodes)) if self.grow and isinstance(nodes, int) else self.simulator
            outline = simulator.outline(trial.job, "auto")
            return Remedy(trial.changes, length, outline["expected_step_time_s"], outline["memory"]["peak_bytes"])
        return None

    def _fits(self, trial: _Trial | None) -> bool:
        """Return whether a job exists and likely fits the GPU."""
        return trial is not None and verdict(trial.memory, self.simulator.cluster.gpu.memory) == "likely"

    def _mildest(self, kinds: Sequence[list[Values]]) -> _Trial | None:
        """Return the first list with one change of each kind that fits; None if none does."""
        trials = (self._trial({k: v for change in several for k, v in change.items()}) for several in product(*kinds))
        return next(filter(self._fits, trials), None)

    def _peak_bytes(self, values: Values) -> float:
        """Return the peak bytes of the GPU that needs most with some changes; infinity if the job cannot run."""
        trial = self._trial(values)
        return trial.memory if trial else math.inf

    def _trial(self, values: Values) -> _Trial | None:
        """Return the changed job and the peak bytes of the GPU that needs most; None if it cannot run."""
        if (key := repr(values)) not in self.known:
            self.known[key] = None
            with suppress(ClustersimError):
                if jobs := self._placed(values):
                    memory = max(peak.total for peak in self.simulator.preparation.peaks(jobs[1]))
                    self.known[key] = _Trial(values, jobs[0], memory)
        return self.known[key]

    def _placed(self, values: Values) -> tuple[Job, Job] | None:
        """Return (changed job, the same job placed on its number of nodes); None if that is illegal."""
        cluster, nodes = self.simulator.cluster, int(str(values.get("cluster.nodes", self.nodes)))
        with suppress(ClustersimError):
            job = check(self.job.changed(parted(values)[1]))
            return job, job.place(nodes * cluster.gpus // cluster.nodes, cluster.gpus_per_node)
        return None


def _passing(values: list[Values], test: Callable[[Values], bool]) -> list[Values]:
    """Return the values that pass a test. Numbers of recomputed layers all pass from the first on: more need no more memory."""
    layers = [value for value in values if "training.recompute_layers" in value]
    few = [value for value in values if value not in layers and test(value)]
    passing = (*few, *layers[bisect_left(layers, True, key=test) :])
    return [value for value in values if value in passing]


def _spread(values: list[Values]) -> list[Values]:
    """Return a few of many values, evenly spaced from the mildest to the strongest."""
    last = len(values) - 1
    return values if last < TOGETHER else [values[round(i * last / (TOGETHER - 1))] for i in range(TOGETHER)]
