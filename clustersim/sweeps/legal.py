"""`auto` as the value of a key: all values that are legal with the other values of a point.

The rules invert those of `parallel/check.py` and `Job.place`: those refuse a value, these list what passes. Degrees use all GPUs.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any

from clustersim import plugins
from clustersim.config.fields import Spec
from clustersim.config.overrides import of_topology, parted
from clustersim.config.workload import Workload
from clustersim.config.yaml import WORDS, Document
from clustersim.convert.override import nodes_by_gpu, presets
from clustersim.errors import InputError
from clustersim.frameworks.table import offers
from clustersim.parallel.check import (
    context_parallel,
    encoder_decoder,
    expert_overlap,
    expert_parallel,
    pipeline_parallel,
    recomputed,
    tensor_parallel,
)
from clustersim.parallel.job import Job, divisors, least_dp
from clustersim.parallel.nearby import adjacent_multiples
from clustersim.parallel.options import KEYS, NAMES, RUN_OPTIONS
from clustersim.preparation import lacking
from clustersim.schedules import check as schedules
from clustersim.sweeps.evaluate import COLUMNS, SweepInputs
from clustersim.sweeps.space import SCHEDULE, VPP, Point, SweepSpace, bounded, takes
from clustersim.topology.model import Topology

CUTS = ("layout", "first_layers", "last_layers", "partition")
"""Keys of `parallelism` that divide the layers among stages."""
AUTO, FRAMEWORK = "auto", "training.framework"
GRAD_REDUCE, PARAM_GATHER, P2P, TP_OVERLAP, EP_OVERLAP = OVERLAPS = tuple(
    f"parallelism.overlap.{name}" for name in ("grad_reduce", "param_gather", "p2p", "tp", "ep")
)
"""Keys of communication that overlaps computation."""
_PLACES = {key: place for place, key in enumerate([*list(COLUMNS)[len(NAMES) :], *NAMES])}


def legal(case: SweepInputs, sweep: SweepSpace) -> list[Point]:
    """Return the points for all legal values of `auto` keys, plus those of `without`. Raises InputError for none or too many."""
    if not sweep.auto:
        return sweep.space()
    check_values(case, sweep)
    values = LegalValues(case, sweep.auto)
    points: Iterator[Point] = iter(sweep.space())
    for key in in_order(sweep.auto):
        points = values.filled(points, key)
    chosen: list[Point] = []
    for point in points:
        chosen.append(arranged(point))
        bounded(len(chosen), total=False)
    return chosen + without(sweep, chosen)


def check_values(case: SweepInputs, sweep: SweepSpace) -> None:
    """Raise InputError for a value that its key can never have, before rules compute with it."""
    fixed = parted(sweep.fixed)[1]
    case.workload.unchecked(fixed, case.places)
    for key, values in sweep.axes.items():
        for value in values if not of_topology(key) else ():
            case.workload.unchecked({**fixed, key: value}, case.places)


def arranged(point: Point) -> Point:
    """Return a point with its options in the standard order: those of the cluster first, then those of the workload."""
    return {key: point[key] for key in sorted(point, key=lambda key: _PLACES.get(key, len(_PLACES)))}


def without(sweep: SweepSpace, legal_points: Sequence[Point]) -> list[Point]:
    """Return a point for each given value that no legal point has, to report why. Raises InputError without any points."""
    has = {(key, str(point[key])) for point in legal_points for key in sweep.axes}
    more = [point for point in sweep.space() if any((key, str(point[key])) not in has for key in sweep.axes)]
    if not legal_points and not more:
        named = " and ".join(f"{key}=auto" for key in sweep.auto)
        raise InputError(f"{named}: no value is legal with the others; write some, and the points say why")
    return more


def in_order(keys: Collection[str]) -> list[str]:
    """Return `auto` keys in the order in which they get values: rules read those before. Raises InputError without a rule."""
    for key in keys:
        if key not in _RULES and not _alternatives(key):
            option = next((known for known in RUN_OPTIONS if known.key == key), None)
            such = f", such as {option.flag} {option.values}" if option else ""
            raise InputError(f"{key}=auto: nothing says which values are legal; write a list with commas between{such}")
    return sorted(keys, key=lambda key: _ORDER.index(key if key in _ORDER else SCHEDULE))


class LegalValues:
    """Legal values of `auto` keys. Results of a rule are cached by the values of the keys that it read."""

    def __init__(self, case: SweepInputs, auto: Collection[str]) -> None:
        self.case, self.base, self.auto = case, case.base, frozenset(auto)
        self._known: dict[str, dict[tuple[str, ...], dict[tuple[str, ...], Sequence[object]]]] = {}

    def filled(self, points: Iterable[Point], key: str) -> Iterator[Point]:
        """Yield points with each legal value of a key; a point without a possible cluster is unchanged, to report the reason."""
        for point in points:
            try:
                values = self.at(point, key)
            except InputError:
                yield point
                continue
            yield from ({**point, key: value} for value in values)

    def at(self, point: Point, key: str) -> Sequence[object]:
        """Return the legal values of a key at a point that has values for the keys before it."""
        known = self._known.setdefault(key, {})
        for keys, answers in known.items():
            if (legal := answers.get(_values(point, keys))) is not None:
                return legal
        values = PointValues(self.case, self.base, point, self.auto - point.keys())
        legal = _offered(values, key, _RULES[key](values) if key in _RULES else _alternatives(key))
        known.setdefault(tuple(values.keys), {})[_values(point, tuple(values.keys))] = legal
        return legal


def _offered(values: PointValues, key: str, legal: Sequence[object]) -> Sequence[object]:
    """Return the legal values that the framework of a point supports; the first legal value if it supports none."""
    if len(legal) < 2 or (choice := offers(values(FRAMEWORK)).get(key)) is None:
        return legal
    chunks = values.integer(VPP) if VPP in values else 1
    return [value for value in legal if choice.has(value, chunks)] or legal[:1]


def _values(point: Point, keys: Iterable[str]) -> tuple[str, ...]:
    """Return the values of keys at a point as text, for use as a cache key, because values may be mappings or lists."""
    return tuple(repr(point.get(key)) for key in keys)


@dataclass(frozen=True, slots=True)
class PointValues:
    """A partial point: its values so far, and the workload's values for other keys."""

    case: SweepInputs
    base: Job
    point: Point
    open: frozenset[str]
    """`auto` keys without a value so far."""
    keys: dict[str, None] = field(default_factory=dict)
    """Keys that a rule has read."""

    def __contains__(self, key: str) -> bool:
        """Return whether the point sets a key."""
        self.keys[key] = None
        return key in self.point

    def __call__(self, key: str) -> Any:
        """Return the value of a dotted key: numbers, booleans and null that are written as text are converted."""
        if key in self:
            value = self.point[key]
            if not isinstance(value, str):
                return value
            return int(value) if value.isdecimal() else WORDS.get(value, value)
        node: Any = self.base.spec
        for part in key.split("."):
            node = getattr(node, part)
        return node

    def integer(self, key: str) -> int:
        """Return the value of a dotted key that must be an integer. Raises InputError otherwise."""
        value = self(key)
        if not isinstance(value, int):
            raise InputError(f"{key}: {value} must be a whole number")
        return value

    def having(self, key: str, value: object) -> PointValues:
        """Return the partial point with a value for one more key."""
        return replace(self, point={**self.point, key: value}, open=self.open - {key})

    def job(self, **values: object) -> Job:
        """Return the unchecked workload with the degrees of the point, replaced by `values`."""
        keys = ("tp", "cp", "pp", "ep", "sequence_parallel", "expert_tp", *CUTS)
        changes = {key: self(f"parallelism.{key}") for key in keys}
        changes |= values
        if changes["tp"] == 1:
            changes["sequence_parallel"] = False  # as for a workload with one rank
        split = self.base.parallelism.model_copy(update=changes)
        training = self.base.training.model_copy(update={"seq": self.integer("training.seq")})
        spec = self.base.spec.model_copy(update={"parallelism": split, "training": training})
        return replace(self.base, spec=spec)

    @property
    def cluster(self) -> Topology:
        """The cluster of the point."""
        self.keys.update(dict.fromkeys(parted(self.point)[0]))
        return self.case.cluster(self.point).simulator.cluster

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""
        return self.integer("parallelism.tp")

    @property
    def lanes(self) -> int:
        """GPUs per replica; open degrees count as 1."""
        return prod(self.degree(f"parallelism.{name}") for name in ("tp", "cp", "pp"))

    def degree(self, key: str) -> int:
        """Return the value of a key, 1 if it is open."""
        return 1 if key in self.open else self.integer(key)

    @property
    def layers(self) -> int:
        """Number of items that stages divide: layers, plus embedding and loss if they count, or if the loss may be alone."""
        more = bool(self("parallelism.account_for_embedding")) + bool(self("parallelism.account_for_loss"))
        more += bool(self("parallelism.partition") == "compute")
        return self.integer("model.layers") + self.integer("model.encoder_layers") + more

    def clusters(self, key: str, values: Iterable[object]) -> list[object]:
        """Return the values of a cluster key for which a cluster is possible."""
        possible = []
        for value in values:
            with suppress(InputError):
                self.case.cluster({**self.point, key: value})
                possible.append(value)
        return possible

    @property
    def least(self) -> int:
        """Smallest dp that holds whole experts, of which all others are multiples."""
        split = self.base.parallelism
        changed = {"tp": self.tp, "cp": self.integer("parallelism.cp"), "expert_tp": self("parallelism.expert_tp")}
        return least_dp(split.model_copy(update=changed), self.degree("parallelism.ep"))

    def replicas(self, micro_batch: int) -> int:
        """Return the dp of the point with `micro_batch` sequences per microbatch, 0 if impossible."""
        share, uneven = divmod(self.integer("training.global_batch"), micro_batch)
        most = self.cluster.gpus // self.lanes
        dp = self("parallelism.dp")
        if uneven:
            return 0
        least = self.least
        if isinstance(dp, int):
            return dp if share % dp == 0 and dp <= most and dp % least == 0 else 0
        return max((d for d in divisors(share) if d <= most and d % least == 0), default=0)

    @property
    def microbatches(self) -> int:
        """Microbatches per replica, 0 if impossible."""
        size = self.integer("training.micro_batch")
        dp = self.replicas(size)
        return self.integer("training.global_batch") // (dp * size) if dp else 0


def _let_through(
    values: PointValues, rule: Callable[[Job], Iterator[object]], candidates: Sequence[int], key: str, **others: object
) -> list[int]:
    """Return the candidates for a key of `parallelism` for which `rule` reports nothing. others: further keys that are set."""
    return [value for value in candidates if not any(rule(values.job(**{key: value}, **others)))]


def _legal_tp(values: PointValues) -> list[int]:
    """Return the degrees that divide heads, GPUs and, unless tp may cross nodes, those of a node, and pass tp's checks."""
    cluster, across = values.cluster, bool(values("parallelism.tp_across_nodes"))
    fitting = [d for d in divisors(values.base.model.heads) if cluster.gpus % d == 0]
    fitting = [d for d in fitting if across or cluster.gpus_per_node % d == 0]
    return _let_through(values, tensor_parallel, fitting, "tp")


def _legal_gpu(values: PointValues) -> list[object]:
    return values.clusters("cluster.gpu", sorted(nodes_by_gpu()))


def _legal_node(values: PointValues) -> list[object]:
    """Return the node types, of the file and shipped, with which the cluster can be built."""
    nodes = values.case.topology.data.get("nodes", {}) if isinstance(values.case.topology, Document) else {}
    return values.clusters("cluster.node", [*nodes, *presets()])


def _legal_nodes(values: PointValues) -> list[object]:
    """Return the numbers of nodes that replicas fill: divisors of the cluster's nodes."""
    cluster = values.cluster
    counts = [n for n in divisors(cluster.nodes) if n * cluster.gpus // cluster.nodes % values.lanes == 0]
    return values.clusters("cluster.nodes", counts)


def _legal_cp(values: PointValues) -> list[int]:
    """Return the degrees that divide the GPUs left by tp and pass the checks of cp, tp and encoders."""

    def rules(job: Job) -> Iterator[object]:
        """Yield the findings of all checks that concern cp."""
        for rule in (context_parallel, tensor_parallel, encoder_decoder):
            yield from rule(job)

    return _let_through(values, rules, divisors(values.cluster.gpus // values.tp), "cp")


def _legal_global_batch(values: PointValues) -> list[int]:
    """Return the workload's batch if all replicas get equally many microbatches, else the nearest batches that do."""
    most = values.cluster.gpus // values.lanes
    unit = most // values.least * values.least * values.degree("training.micro_batch")
    return sorted(adjacent_multiples(values.base.training.global_batch, unit)) if unit else []


def _legal_pp(values: PointValues) -> list[int]:
    """Return the degrees that divide the GPUs left by tp, cp and dp, with a layer for each chunk, and pass pp's checks."""
    chunks = values.integer(VPP) if VPP in values else 1
    dp = values("parallelism.dp")
    inner = values.tp * values.integer("parallelism.cp")
    most = values.cluster.gpus // inner // (int(dp) if isinstance(dp, int) else 1)
    fitting = [d for d in divisors(values.cluster.gpus // inner) if d <= most and d * chunks <= values.layers]
    return _let_through(values, pipeline_parallel, fitting, "pp", vpp=1, schedule="1f1b")


def _legal_expert_tp(values: PointValues) -> list[int]:
    """Return the numbers of slices of an expert that tp ranks can hold; [] without experts."""
    degrees = divisors(values.tp) if values.base.model.experts else []
    return _let_through(values, expert_parallel, degrees, "expert_tp", ep=1, dp="auto")


def _legal_ep(values: PointValues) -> list[int]:
    """Return the divisors of the number of experts that pass ep's checks and leave at least one replica."""

    def rules(job: Job) -> Iterator[object]:
        """Yield the findings of checks that concern ep, and one without replicas."""
        yield from expert_parallel(job)
        if not values.having("parallelism.ep", job.parallelism.ep).microbatches:
            yield "no replicas"

    return _let_through(values, rules, divisors(values.base.model.experts or 1), "ep", dp="auto")


def _legal_micro_batch(values: PointValues) -> list[int]:
    """Return the micro-batches with the most replicas; all divisors of the global batch if the number of replicas is open."""
    if KEYS["dp"] in values.open:
        return divisors(values.integer("training.global_batch"))
    replicas = {size: values.replicas(size) for size in divisors(values.integer("training.global_batch"))}
    most = max(replicas.values(), default=0)
    return [size for size, dp in replicas.items() if dp and dp == most]


def _legal_recompute(values: PointValues) -> list[object]:
    """Return the kinds of recomputation that match the modules and layers of the workload, unless the point names others."""
    kinds = _alternatives(KEYS["recompute"])
    if any(f"training.{key}" in values for key in ("recompute_modules", "recompute_layers", "recompute_method")):
        return kinds
    jobs = {kind: values.base.changed({KEYS["recompute"]: kind}) for kind in kinds}
    return [kind for kind, job in jobs.items() if not any(recomputed(job))]


def _legal_zero(values: PointValues) -> list[int]:
    """Return the stages of ZeRO that the overlap of gradients and parameters allows, from 0 to 2; only 3 for FSDP."""
    if values.base.parallelism.zero == 3:  # FSDP's mode, which a search of other degrees must keep
        return [3]
    low = PARAM_GATHER not in values.open and values(PARAM_GATHER) is True
    high = GRAD_REDUCE in values.open or values(GRAD_REDUCE) is True
    return list(range(low, 2 + high))


def _legal_schedule(values: PointValues) -> list[str]:
    """Return the built-in schedules that support the pipeline and its microbatches with some vpp; only 1f1b without one."""
    if values.integer("parallelism.pp") == 1:
        return ["1f1b"]
    known = sorted(name for name in plugins.names(schedules.ROOM) if not plugins.outside(schedules.ROOM, name))
    chunks = [values.integer(VPP)] if VPP in values.point else [1, 2]
    return [name for name in known if any(_takes(values, name, v) for v in chunks)]


def _takes(values: PointValues, name: str, chunks: int) -> bool:
    """Return whether a schedule supports the ranks and microbatches of a point with `chunks` chunks per rank."""
    pp = values.integer("parallelism.pp")
    if not takes(name, chunks) or schedules.misfit(name, pp, values.microbatches, chunks):
        return False
    return values("parallelism.zero") != 3 or not schedules.pipeline(name, pp, chunks).paired


def _legal_vpp(values: PointValues) -> list[int]:
    """Return the numbers of chunks per rank that the schedule supports and layers fill, 1 first; evenly if pp divides layers."""
    pp, schedule = values.integer("parallelism.pp"), str(values(SCHEDULE))
    single = [1] if takes(schedule, 1) else []
    if pp == 1 or schedule in ("gpipe", "1f1b") or not values.microbatches or _rounds(values, schedule):
        return single
    most = values.layers // pp
    chunks = [v for v in range(2, most + 1) if values.layers % (pp * v) == 0]
    if values.layers % pp:  # no even cut: the smallest vpp for each number of layers per chunk
        chunks = sorted({v for size in range(1, most + 1) if 2 <= (v := -(-values.layers // (pp * size))) <= most})
    fitting = [v for v in chunks if takes(schedule, v)]
    return single + _let_through(values, pipeline_parallel, fitting, "vpp", schedule=schedule)


def _rounds(values: PointValues, schedule: str) -> str | None:
    """Return why a schedule of several chunks does not support the microbatches of a point; None if it does."""
    pp = values.integer("parallelism.pp")
    folded = schedules.pipeline(schedule, pp, 2).folded
    return None if folded else schedules.misfit(schedule, pp, values.microbatches, 2)


def _legal_precision(values: PointValues) -> list[object]:
    """Return the precisions that the GPUs of the cluster have."""
    return [name for name in _alternatives(KEYS["precision"]) if lacking(values.cluster, str(name)) is None]


def _legal_grad_reduce(values: PointValues) -> list[bool]:
    """Return only True if gradients are freed as they are reduced, else both values."""
    every = "parallelism.reduce_every_microbatch"
    freed = KEYS["zero"] not in values.open and values(KEYS["zero"]) == 2
    return [True] if freed and not values(every) else [False, True]


def _legal_param_gather(values: PointValues) -> list[bool]:
    """Return both values with ZeRO, else only False."""
    return [False, True] if values("parallelism.zero") else [False]


def _legal_tp_overlap(values: PointValues) -> list[str]:
    """Return the distinct kinds of overlap: all chunked ones need sequence parallelism."""
    if values.tp == 1:
        return ["none"]
    return ["none", "bulk", *(("ring", "async") if values("parallelism.sequence_parallel") else ())]


def _legal_ep_overlap(values: PointValues) -> list[object]:
    """Return the kinds of overlap that the schedule and the recomputation of a point allow; `none` alone without experts."""
    if not values.base.model.experts:
        return ["none"]
    keys = ("schedule", "vpp", "zero")
    job = values.job(**{key: values(f"parallelism.{key}") for key in keys})
    job = job.changed({"training.recompute": values(KEYS["recompute"])})
    jobs = {kind: job.changed({EP_OVERLAP: kind}) for kind in _alternatives(EP_OVERLAP)}
    return [kind for kind, job in jobs.items() if not any(expert_overlap(job))]


_RULES: dict[str, Callable[[PointValues], Sequence[object]]] = {
    "cluster.gpu": _legal_gpu,
    "cluster.node": _legal_node,
    "cluster.nodes": _legal_nodes,
    "parallelism.cp": _legal_cp,
    "training.global_batch": _legal_global_batch,
    "parallelism.tp": _legal_tp,
    "parallelism.pp": _legal_pp,
    "parallelism.ep": _legal_ep,
    "parallelism.expert_tp": _legal_expert_tp,
    "training.micro_batch": _legal_micro_batch,
    KEYS["recompute"]: _legal_recompute,
    KEYS["precision"]: _legal_precision,
    "parallelism.zero": _legal_zero,
    GRAD_REDUCE: _legal_grad_reduce,
    PARAM_GATHER: _legal_param_gather,
    TP_OVERLAP: _legal_tp_overlap,
    EP_OVERLAP: _legal_ep_overlap,
    SCHEDULE: _legal_schedule,
    VPP: _legal_vpp,
}
_ORDER = (
    *(
        "cluster.gpu",
        "cluster.node",
        "cluster.nodes",
        "parallelism.sequence_parallel",
        "parallelism.tp",
        "parallelism.cp",
    ),
    *("parallelism.pp", "training.global_batch", "parallelism.expert_tp", "parallelism.ep", "training.micro_batch"),
    *(GRAD_REDUCE, "parallelism.zero", PARAM_GATHER, SCHEDULE, VPP, EP_OVERLAP),
)
"""Keys in the order in which they get their values: each rule looks at those before it."""


@cache
def _alternatives(key: str) -> list[object]:
    """Return all values of a workload's key with few: true and false, or the words of its type; [] for other keys."""
    if of_topology(key):
        return []
    kind: Any = Workload
    for part in key.split("."):
        hints = typing.get_type_hints(kind) if isinstance(kind, type) and issubclass(kind, Spec) else {}
        kind = hints.get(part)
    if kind is bool:
        return [False, True]
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    return []
