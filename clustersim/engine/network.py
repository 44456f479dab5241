"""The shared network of folded jobs: flows of representative groups on representative links."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, starmap
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Floats, Ints, distinct_rows
from clustersim.cache import fingerprint
from clustersim.collectives.model import AllPairs, Group, Phase
from clustersim.collectives.nccl.shape import CommunicatorShape, different, ordered, pair_shapes, shapes, types_of
from clustersim.collectives.plan import MESSAGES, NCCL, CollectivePlan, plan
from clustersim.engine.flows import Flow
from clustersim.engine.refinement import Cells, Partition, partition
from clustersim.engine.traffic import Family, Traffic, Variant, scarce, traffic
from clustersim.model.operator import Collective
from clustersim.topology.model import Topology

GroupKind = tuple[int, ...] | CommunicatorShape
"""Node types of a group, as indices into `Topology.kinds`, () in a cluster of one type; for a message, the shape of its
communicator."""
GroupPlans = Mapping[GroupKind, CollectivePlan]
"""{kind of group: plan of the collective}"""


class LinkLoads(NamedTuple):
    """Bytes over links per byte of a collective. Rows of group cell c are start[c] to start[c + 1]."""

    start: Ints
    link: Ints
    """Link of each row, distinct within a group cell."""
    weight: Floats


@dataclass(frozen=True, slots=True)
class Network:
    """Collectives and messages of a job on the folded cluster: plans, flows and loads by group cell."""

    topology: Topology
    plans: Mapping[Collective, GroupPlans]
    """Plan of each collective, by kind of group."""
    traffic: Mapping[Variant, tuple[Traffic, ...]]
    """Traffic of each variant by phase; the method `phases` gives its loads on all links."""
    cells: Partition
    """Equivalence of ranks and groups of the job, and of links; link cells are shared by all jobs on the cluster."""
    capacity: Floats
    """Bytes/s of each link cell that can be a bottleneck."""
    loads: Mapping[Variant, tuple[LinkLoads, ...]]
    """Loads, by phase, of all groups of a group cell on one link of each link cell."""
    kinds: Mapping[str, Sequence[GroupKind]] = field(default_factory=dict)
    """{family: kind of each group cell}, for families with several kinds."""
    known: dict[Collective, Sequence[tuple[Flow, ...]]] = field(default_factory=dict)
    cell_rows: dict[Variant, list[tuple[list[float], list[float], list[int], LinkLoads]]] = field(default_factory=dict)
    like: dict[str, Sequence[tuple[int, int]]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the loads of its traffic: an exchange of all pairs has some for each of them."""
        arrays = (a for parts in self.traffic.values() for one in parts for a in (one.group, one.link, one.weight))
        return sum(a.nbytes for a in arrays if 0 not in a.strides)

    def phases(self, variant: Variant) -> tuple[Traffic, ...]:
        """Return the traffic of a variant on all links."""

        def found() -> tuple[Traffic, ...]:
            return tuple(t.everywhere(self.topology) for t in self.traffic[variant])

        return self.topology.cache.once(("phases", self.cells.key, variant), found)

    def plan(self, call: Collective, cell: int) -> CollectivePlan:
        """Return the plan of a call in groups of a cell."""
        own = self.plans[call]
        if len(own) > 1:
            return own[self.kinds[call.group][cell]]
        [carried] = own.values()
        return carried

    def variant(self, call: Collective, cell: int) -> Variant:
        """Return the variant of a call in groups of a cell."""
        return _variant(call, self.plan(call, cell))

    def flows(self, call: Collective) -> Sequence[tuple[Flow, ...]]:
        """Return the flows of a call in a group of each cell; the first pays the launch. Those of like cells are one object."""
        if (known := self.known.get(call)) is None:
            own, made = self.plans[call], dict[int, tuple[Flow, ...]]()
            first = [cell for cell, _ in self.alike(call.group)]
            phases = {kind: self.by_cell(_variant(call, one)) for kind, one in own.items()}
            kinds = self.kinds[call.group] if len(own) > 1 else [*own] * len(first)
            for cell in dict.fromkeys(first):
                one, found = own[kinds[cell]], list[Flow]()
                start = one.latency if one.latency is not None else self.topology.launch if one.phases else 0.0
                for latency, bound, begin, loads in phases[kinds[cell]]:
                    hops = latency[cell] if one.latency is None else 0.0
                    a, b, rate = begin[cell], begin[cell + 1], one.rate if one.rate < bound[cell] else bound[cell]
                    found += (Flow(call.group, start + hops, call.size, rate, loads.link[a:b], loads.weight[a:b]),)
                    start = 0.0
                made[cell] = tuple(found)
            known = self.known[call] = [made[cell] for cell in first]
        return known

    def alike(self, family: str) -> Sequence[tuple[int, int]]:
        """Return, for each group cell of a family, the first one whose flows take as long and load the same links, and the first
        one whose flows take as long, on any links."""
        if family not in self.like:
            plans = ((call, one) for call, own in self.plans.items() if call.group == family for one in own.values())
            count = len(self.cells.groups[family].first)
            alone = [-1] * count
            columns: list[Sequence[object]] = [self.kinds.get(family) or alone]
            for latency, bound, start, _ in chain.from_iterable(
                map(self.by_cell, dict.fromkeys(starmap(_variant, plans)))
            ):
                # a cell with links of its own is like no other
                alone = [cell if start[cell] < start[cell + 1] else known for cell, known in enumerate(alone)]
                columns += latency, bound
            long = _firsts([*zip(*columns, strict=True)])
            self.like[family] = list(zip(_firsts([*zip(long, alone, strict=True)]), long, strict=True))
        return self.like[family]

    def by_cell(self, variant: Variant) -> Sequence[tuple[list[float], list[float], list[int], LinkLoads]]:
        """Return, for each phase of a variant, latency, bound and first load by group cell, and the loads."""
        if variant not in self.cell_rows:
            first = self.cells.groups[variant[0]].first
            both = zip(self.traffic[variant], self.loads[variant], strict=True)
            self.cell_rows[variant] = [
                (one.latency[first].tolist(), one.bound[first].tolist(), own.start.tolist(), own) for one, own in both
            ]
        return self.cell_rows[variant]

    def bytes_by_link(self, sizes: Mapping[tuple[Variant, int], float]) -> Floats:
        """Return the bytes over every link (links,), given {(variant, group cell): bytes} of each group's collectives."""

        def found() -> Floats:
            total = np.zeros(len(self.topology.capacity))
            for variant in dict.fromkeys(variant for variant, _ in sizes):
                of = self.cells.groups[variant[0]].of
                size = np.array([sizes.get((variant, cell), 0.0) for cell in range(of.max() + 1)])[of]
                for t in self.traffic[variant]:
                    total += t.bytes_on_links(self.topology, size)
            return total

        return self.topology.cache.once(("bytes", self.cells.key, tuple(sizes.items())), found)


def _firsts(keys: Sequence[Hashable]) -> list[int]:
    """Return, for each key, the index of the first equal key."""
    first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
    return [first[key] for key in keys]


class Tenant(NamedTuple):
    """A placed job as input of the network."""

    families: Sequence[tuple[Family, Sequence[Collective]]]
    """Families, each with its collectives; their `ranks` are ranks of the job."""
    gpus: Ints
    """GPU of every rank (ranks,)."""
    seeds: Ints
    """Integer of 0 or more per rank; ranks of different seeds are never folded (ranks,)."""
    key: Hashable = None
    """Key in the cluster's cache for everything but the sizes of collectives; None: results are not shared with equal jobs."""


class Demand(NamedTuple):
    """Loads of jobs on links before folding."""

    topology: Topology
    tenants: tuple[Tenant, ...]
    plans: Sequence[Mapping[Collective, GroupPlans]]
    """Plans of the collectives of each job."""
    phases: Sequence[Mapping[Variant, tuple[Traffic, ...]]]
    """Traffic of each variant of each job, with latency and bound."""
    links: Ints
    """Links that could be bottlenecks, sorted."""
    loads: tuple[Traffic, ...]
    """Loads of all phases, one after the other, on those links."""
    key: Hashable
    """Key for everything but the sizes of collectives, and for what depends only on that."""


class _TrafficKey(NamedTuple):
    """Size-independent key of the traffic of a variant."""

    phases: tuple[Phase | AllPairs, ...]
    rate: float
    hops: bool
    messages: tuple[tuple[float, float], ...] = ()
    """(seconds, bytes/s) of the messages of each kind of group, if there are several."""


def demand(topology: Topology, tenants: Sequence[Tenant]) -> Demand:
    """Return the loads that jobs sharing a cluster may put on its links.

    Results for known jobs are cached with the cluster: sizes of collectives change only plans.
    """
    tenants = tuple(one if one.key is not None else one._replace(key=object()) for one in tenants)
    plans = [_plans(topology, one) for one in tenants]
    carried = [_carried(one) for one in plans]
    key = tuple((one.key, *((v, *c[1:]) for v, c in own.items())) for one, own in zip(tenants, carried, strict=True))

    def found() -> tuple[tuple[Mapping[Variant, tuple[Traffic, ...]], ...], Ints, tuple[Traffic, ...], object]:
        """Return the loads of each job by variant, the scarce links, the loads on these, and a new cache key."""
        phases = tuple(_phases(topology, *one) for one in zip(range(len(tenants)), tenants, carried, strict=True))
        links, loads = scarce(topology, _flat(phases))
        bare = tuple({v: tuple(t.bare() for t in parts) for v, parts in own.items()} for own in phases)
        return bare, links, loads, object()  # a key that is quick to hash

    return Demand(topology, tenants, plans, *topology.cache.once(("demand", key), found))


def _flat(of_jobs: Iterable[Mapping[Variant, tuple[Traffic, ...]]]) -> list[Traffic]:
    """Return all phases of all jobs, one after the other."""
    return [t for phases in of_jobs for parts in phases.values() for t in parts]


def folded(demand: Demand, fold: bool = True) -> Partition:
    """Return the equivalence of ranks, groups and links; `fold` off: none."""
    question = ("folded", demand.key, fold)

    def found() -> Partition:
        capacity, flat = demand.topology.capacity[demand.links], _flat(demand.phases)
        return partition(_seeds(demand.tenants), _vertices(demand.tenants), flat, demand.loads, capacity, fold)

    return demand.topology.cache.once(question, found)._replace(key=question)


def networks(demand: Demand, cells: Partition) -> tuple[Network, ...]:
    """Return the network of every job; they share only links: cells of ranks and groups never mix jobs."""

    def found() -> tuple[Floats, tuple[tuple[Partition, Mapping[Variant, tuple[LinkLoads, ...]]], ...]]:
        """Return the bytes/s of each link cell, and for each job its partition and {variant: link loads of each phase}."""
        capacity = demand.topology.capacity[demand.links[cells.links.first]]
        each, jobs = iter(demand.loads), []
        for phases, own in zip(demand.phases, _shares(cells, demand.tenants), strict=True):
            loads = {
                v: tuple(_loads(next(each), own.groups[v[0]], own.links) for _ in parts) for v, parts in phases.items()
            }
            jobs.append((own, loads))
        return capacity, tuple(jobs)

    capacity, jobs = demand.topology.cache.once(("networks", cells.key), found)
    return tuple(
        Network(
            demand.topology,
            plans,
            phases,
            own._replace(key=(cells.key, job)),
            capacity,
            loads,
            _kinds(demand.topology, tenant, own),
        )
        for job, (plans, phases, tenant, (own, loads)) in enumerate(
            zip(demand.plans, demand.phases, demand.tenants, jobs, strict=True)
        )
    )


def _kinds(topology: Topology, tenant: Tenant, cells: Partition) -> dict[str, list[GroupKind]]:
    """Return {family: kind of each group cell}, without families of a single kind."""
    found: dict[str, list[GroupKind]] = {}
    for family, collectives in tenant.families:
        first = cells.groups[family.name].first
        if all(one.op == "send" for one in collectives):
            kinds, which = _message_shapes(topology, tenant, family)
            found[family.name] = [kinds[kind] for kind in which[first].tolist()]
        elif topology.pools:
            found[family.name] = [types_of(topology, row) for row in tenant.gpus[family.ranks[first]]]
    return found


def _message_shapes(topology: Topology, tenant: Tenant, family: Family) -> tuple[tuple[CommunicatorShape, ...], Ints]:
    """Return the distinct communicator shapes of messages between two ranks, and the index of each pair's shape.

    A communicator of more ranks has the latencies of messages, and tells whether they stay in a node.
    """

    def asked() -> tuple[tuple[CommunicatorShape, ...], Ints]:
        # messages back go over the same pairs, and so do those of every job whose pipelines stand there
        pairs, wide = ordered(tenant.gpus[family.ranks]), family.communicators
        joined = pairs if wide is None else ordered(tenant.gpus[wide])
        question = ("shapes of pairs", fingerprint(pairs), wide is None, joined.shape, fingerprint(joined))
        return topology.cache.once(question, lambda: found(pairs, joined))

    def found(pairs: Ints, joined: Ints) -> tuple[tuple[CommunicatorShape, ...], Ints]:
        """Return shapes and indices. pairs: GPUs (pairs, 2). joined: GPUs of communicators, assigned to the pairs in rotation."""
        own, which = pair_shapes(topology, pairs)
        if joined is pairs:
            return own, which
        wide, of = shapes(topology, joined)
        both = np.stack([which, np.resize(of, len(which))], axis=1)
        first, of_both = distinct_rows(both)
        kinds = [(own[a], wide[b]) for a, b in both[first].tolist()]
        return different(
            [b._replace(extra_latency=a.extra_latency, inside_nodes=a.nodes == 1, types=a.types) for a, b in kinds],
            of_both,
        )

    return topology.cache.once(("message shapes", tenant.key, family.name), asked)


def _plans(topology: Topology, tenant: Tenant) -> dict[Collective, GroupPlans]:
    """Return {collective: its plan by kind of group}."""
    cache = topology.cache
    return {
        c: cache.once(("plan", tenant.key, c), partial(_plan, topology, tenant, family, c))
        for family, collectives in tenant.families
        for c in collectives
    }


def _plan(topology: Topology, tenant: Tenant, family: Family, collective: Collective) -> GroupPlans:
    """Return the plan of a collective for each kind of group in a family, by the kind's key."""
    by_kind: Mapping[GroupKind, tuple[CommunicatorShape, ...]] = {(): ()}
    if family.host:
        return {(): CollectivePlan("", "", (), (), None, math.inf, ())}
    if collective.op == "send":
        by_kind = {kind: (kind,) for kind in _message_shapes(topology, tenant, family)[0]}
    elif family.algorithm == NCCL or collective.op in MESSAGES:
        gpus = tenant.gpus[family.ranks]
        question = ("shapes", gpus.shape, fingerprint(gpus), family.shares)
        kinds = topology.cache.once(question, lambda: shapes(topology, gpus, family.shares)[0])
        by_kind = {
            types: tuple(one for one in kinds if one.types == types) for types in {one.types: 0 for one in kinds}
        }
    group = Group(family.ranks.shape[1], family.levels, family.shares, family.router)
    return {kind: plan(topology, family.algorithm, own, group, collective) for kind, own in by_kind.items()}


def _variant(call: Collective, plan: CollectivePlan) -> Variant:
    """Return the key of the traffic of a call: calls with equal keys load links alike."""
    return call.group, call.op, plan.algorithm, plan.levels, plan.sizes


def _carried(plans: Mapping[Collective, GroupPlans]) -> dict[Variant, _TrafficKey]:
    """Return {variant: phases, rate and messages} of the plans."""
    used: dict[Variant, list[Sequence[CollectivePlan]]] = {}
    for c, own in plans.items():
        for one in own.values():
            same = tuple(own.values()) if c.op == "send" else (one,)
            used.setdefault(_variant(c, one), []).append(same)
    return {v: _of_variant(own) for v, own in used.items()}


def _of_variant(plans: Sequence[Sequence[CollectivePlan]]) -> _TrafficKey:
    """Return the traffic key of one variant from the plans of all sizes that use it."""
    flat = [one for own in plans for one in own]
    of_kinds = [
        (min(one.latency or 0.0 for one in kind), max(one.rate for one in kind)) for kind in zip(*plans, strict=True)
    ]
    messages = tuple(of_kinds) if len(of_kinds) > 1 else ()
    return _TrafficKey(
        flat[-1].phases, max(one.rate for one in flat), any(one.latency is None for one in flat), messages
    )


def _phases(
    topology: Topology, job: int, tenant: Tenant, carried: Mapping[Variant, _TrafficKey]
) -> Mapping[Variant, tuple[Traffic, ...]]:
    """Return the traffic of each variant, without the latency of hops where its protocol has its own."""
    families = {f.name: _of_job(f._replace(ranks=tenant.gpus[f.ranks]), job) for f, _ in tenant.families}
    own = {f.name: f for f, _ in tenant.families}
    found = {}
    for v, one in carried.items():
        parts = traffic(topology, families[v[0]], v[1], one.phases, one.hops)
        rate: Floats | float = one.rate
        if one.messages:
            which = _message_shapes(topology, tenant, own[v[0]])[1]
            latency, rate = np.array(one.messages)[which].T
            parts = tuple(t._replace(latency=latency) for t in parts)  # so that groups of two kinds are not one cell
        # faster it is never, nor must it make a link look short
        found[v] = tuple(t._replace(bound=np.minimum(t.bound, rate)) for t in parts)
    return found


def _of_job(family: Family, job: int) -> Family:
    """Return the family as one of job number `job`, with `@job` appended to its name."""
    return family._replace(name=f"{family.name}@{job}", job=job)


def _seeds(tenants: Sequence[Tenant]) -> Ints:
    """Return the seeds of all ranks, job after job, those of each job above those of the jobs before it."""
    above = np.cumsum([0, *(int(tenant.seeds.max()) + 1 for tenant in tenants)])
    return np.concatenate([tenant.seeds + start for tenant, start in zip(tenants, above[:-1], strict=True)])


def _vertices(tenants: Sequence[Tenant]) -> list[Family]:
    """Return the families of all jobs on ranks that are counted job after job."""
    starts = np.cumsum([0, *(len(tenant.gpus) for tenant in tenants)])
    return [
        _of_job(family, job)._replace(ranks=family.ranks + starts[job])
        for job, tenant in enumerate(tenants)
        for family, _ in tenant.families
    ]


def _shares(cells: Partition, tenants: Sequence[Tenant]) -> Iterator[Partition]:
    """Yield the cells of each job: a run of the ranks' cells, as these are numbered by their first member."""
    rank = cell = 0
    for job, tenant in enumerate(tenants):
        of = cells.ranks.of[rank : rank + len(tenant.gpus)] - cell
        mine = slice(cell, cell + int(of.max()) + 1)
        groups = {f.name: cells.groups[_of_job(f, job).name] for f, _ in tenant.families}
        yield Partition(Cells(of, cells.ranks.first[mine] - rank, cells.ranks.size[mine]), groups, cells.links)
        rank, cell = rank + len(of), mine.stop


def _loads(loads: Traffic, groups: Cells, links: Cells) -> LinkLoads:
    """Return the loads of each group cell on one link of each link cell, summed over its groups."""
    count = len(links.first)
    kept = np.flatnonzero(links.first[links.of[loads.link]] == loads.link)
    key = groups.of[loads.group[kept]] * count + links.of[loads.link[kept]]
    key, inverse = np.unique(key, return_inverse=True)
    weight = np.bincount(inverse, loads.weight[kept], len(key)).astype(float, copy=False)
    cell, link = np.divmod(key, max(count, 1))
    return LinkLoads(cell.searchsorted(np.arange(len(groups.first) + 1)), link, weight)
