"""The splits of a model on one kind of cluster, on all numbers of nodes that they fill, and what bounds their steps from below.

Most are far from any answer, and their passes alone say so. The whole bound, with what replicas exchange, the update and the
memory, is worked out where the passes leave a doubt (`optimization/bound.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from clustersim.errors import InputError
from clustersim.optimization.bound import LowerBounds, SplitBounds
from clustersim.optimization.candidates import may_fit
from clustersim.parallel.job import Job, divisors
from clustersim.parallel.options import KEYS
from clustersim.sweeps.evaluate import SweepCluster, SweepInputs
from clustersim.sweeps.legal import legal
from clustersim.sweeps.space import NODES, SCHEDULE, VPP, Point, SweepSpace

TP, PP, DP, MICRO_BATCH, RECOMPUTE = (KEYS[name] for name in ("tp", "pp", "dp", "micro_batch", "recompute"))
MICRO_BATCHES = (1, 2, 4)
"""Sequences of a microbatch that are tried."""
STAGES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Pipeline stages that are tried, beside those that share the layers evenly: they fill round numbers of nodes of 8 GPUs."""
RECOMPUTED = ("none", "selective", "full")
MOST_GPUS = 200_000
"""Of a plan."""


class DegreeSplit(NamedTuple):
    """A split of the model, whatever dp is."""

    point: Point
    job: Job
    bounds: SplitBounds

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.job.training.global_batch * self.job.training.seq


@dataclass(slots=True, eq=False)
class SizedSplit:
    """A split on the number of nodes that it fills."""

    split: DegreeSplit
    dp: int
    nodes: int
    step: float
    """Seconds that no step is shorter than: those of its passes, until it is `bounded`; infinite where it cannot be."""
    job: Job | None = None
    """The placed job, once that is so."""

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.split.job.parallelism.lanes * self.dp

    @property
    def point(self) -> Point:
        """Keys of its cluster and its workload."""
        return {**self.split.point, NODES: self.nodes}


@dataclass(frozen=True, slots=True)
class KindOfCluster:
    """Clusters that differ in their number of nodes alone."""

    case: SweepInputs
    node: SweepCluster
    """One of them, of one node."""
    bounds: LowerBounds

    @classmethod
    def of(cls, case: SweepInputs, kind: Point) -> KindOfCluster:
        """Return the clusters of keys. Raises InputError where there can be none."""
        node = case.cluster({**kind, NODES: 1})
        return cls(case, node, LowerBounds(node.simulator.preparation))

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return self.node.simulator.cluster.gpus

    @property
    def most_gpus(self) -> int:
        """GPUs of the largest: those of one node where no NICs join several."""
        return MOST_GPUS if self.node.simulator.cluster.node.wire else self.gpus

    def sized(self, kind: Point) -> list[SizedSplit]:
        """Return the legal splits, each on all numbers of nodes that it fills."""
        splits = [(split, sizes) for split in self._splits(kind) if (sizes := self._sizes(split.job))]
        least = [split.job.changed({DP: sizes[0][0]}) for split, sizes in splits]
        self.bounds.learn((split.bounds, job) for (split, _), job in zip(splits, least, strict=True))
        return [one for (split, sizes), job in zip(splits, least, strict=True) for one in _bounded(split, sizes, job)]

    def bound(self, one: SizedSplit) -> None:
        """Bound the whole step of a split; it is infinite where the split cannot be placed, or is proved not to fit."""
        one.step = math.inf
        with suppress(InputError):
            job = one.job = one.split.job.place(one.gpus, self.gpus)
            if job.dp == one.dp and may_fit(one.split.bounds, job, self.node):
                one.step = one.split.bounds.step(job)

    def fits(self, one: SizedSplit) -> bool:
        """Return whether a bounded split fits, as its simulation would say, and sooner: what the stages hold is known here."""
        preparation = self.node.simulator.preparation
        most = preparation.fullest * self.node.simulator.cluster.memory
        return one.job is not None and all(rank.total <= most for rank in preparation.peaks(one.job))

    def _sizes(self, job: Job) -> list[tuple[int, int]]:
        """Return the values of dp whose replicas share the batch and fill nodes, with these nodes."""
        share, uneven = divmod(job.training.global_batch, job.training.micro_batch)
        given, lanes = job.parallelism.dp, job.parallelism.lanes
        found = [dp for dp in (divisors(share) if given == "auto" else [job.dp]) if not uneven and share % dp == 0]
        return [
            (dp, lanes * dp // self.gpus)
            for dp in found
            if lanes * dp % self.gpus == 0 and lanes * dp <= self.most_gpus
        ]

    def _splits(self, kind: Point) -> Iterator[DegreeSplit]:
        base = self.case.base
        layers = base.model.layers + base.model.encoder_layers
        layers += base.parallelism.account_for_embedding + base.parallelism.account_for_loss
        stages = sorted({*divisors(layers), *(pp for pp in STAGES if pp <= layers)})
        for start in self._given(kind, TP):
            for pp in _values(kind, PP, stages):
                for vpp in _values(kind, VPP, _chunks(base, layers, pp)):
                    schedule = kind.get(SCHEDULE, "interleaved" if vpp > 1 else "1f1b")
                    with suppress(InputError):
                        whole = {**start, PP: pp, DP: kind.get(DP, "auto"), SCHEDULE: schedule, VPP: vpp}
                        yield from self._variants(kind, whole)

    def _given(self, kind: Point, key: str) -> Iterator[Point]:
        """Yield the point with the value of a key that is given, or else with each legal one."""
        whole = {**kind, NODES: 1}
        yield from [whole] if key in kind else legal(self.case, SweepSpace({}, whole, frozenset(), (key,)))

    def _variants(self, kind: Point, point: Point) -> Iterator[DegreeSplit]:
        """Yield a split with all microbatches and kinds of recomputation. Raises InputError where it is illegal."""
        sizes, recomputed = _values(kind, MICRO_BATCH, MICRO_BATCHES), kind.get(RECOMPUTE)
        first = self.case.job({**point, MICRO_BATCH: sizes[0]})
        for size in sizes:
            for recompute in [str(recomputed)] if recomputed else RECOMPUTED:
                changes = {MICRO_BATCH: size, RECOMPUTE: recompute}
                job = first.changed(changes)
                yield DegreeSplit({**point, **changes}, job, self.bounds.of(job))


def _chunks(base: Job, layers: int, pp: int) -> Sequence[int]:
    """Return the chunks of layers a rank that are tried: those that are equal, and what a layout in the workload has."""
    own = base.parallelism
    if own.layout is not None and pp == own.pp:
        return [own.vpp]
    return divisors(layers // pp) if pp > 1 else [1]


def _values(kind: Point, key: str, otherwise: Sequence[int]) -> Sequence[int]:
    """Return the value of a key that is given, or else those that are tried."""
    return [int(str(kind[key]))] if key in kind else otherwise


def _bounded(split: DegreeSplit, sizes: Sequence[tuple[int, int]], least: Job) -> Iterator[SizedSplit]:
    """Yield a split on numbers of nodes, by dp and nodes, with what its passes take; least: its job on the smallest."""
    share = split.job.training.global_batch // split.job.training.micro_batch
    passes = split.bounds.passes(least, [share // dp for dp, _ in sizes]).tolist()
    return (SizedSplit(split, *size, seconds) for size, seconds in zip(sizes, passes, strict=True))
