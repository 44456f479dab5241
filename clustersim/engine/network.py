"""The network that folded jobs share: flows of representative groups on representative links."""

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
"""Kind of a group, which determines the plan of a collective in its family: node types as indices into `Topology.kinds`, () in a
cluster of one type; for a message, the shape of its communicator."""
GroupPlans = Mapping[GroupKind, CollectivePlan]
"""{kind of group: plan of the collective}"""


class LinkLoads(NamedTuple):
    """Loads of a phase on links, by group cell. Rows of group cell c are start[c] to start[c + 1]."""

    start: Ints
    """First row of each group cell, followed by the number of rows (group cells + 1,)."""
    link: Ints
    """Link cell of each row, distinct within a group cell (rows,)."""
    weight: Floats
    """Bytes over one link of the link cell per byte of the collective, of all groups of the group cell (rows,)."""


@dataclass(frozen=True, slots=True)
class Network:
    """Collectives and messages of a job on the folded cluster: plans, flows and loads by group cell."""

    topology: Topology
    plans: Mapping[Collective, GroupPlans]
    """Plan of each collective, by kind of group."""
    traffic: Mapping[Variant, tuple[Traffic, ...]]
    """Traffic of each variant by phase, maybe without loads; the method `phases` returns it with loads on all links."""
    cells: Partition
    """Cells of equivalent ranks and groups of the job, and of links; link cells are shared by all jobs on the cluster."""
    capacity: Floats
    """Bytes/s of each link cell that can be a bottleneck."""
    loads: Mapping[Variant, tuple[LinkLoads, ...]]
    """Loads of each variant on links, by phase."""
    kinds: Mapping[str, Sequence[GroupKind]] = field(default_factory=dict)
    """{family: kind of each group cell}, for families with several kinds."""
    known_flows: dict[Collective, Sequence[tuple[Flow, ...]]] = field(default_factory=dict)
    cell_rows: dict[Variant, list[tuple[list[float], list[float], list[int], LinkLoads]]] = field(default_factory=dict)
    known_cells: dict[str, Sequence[tuple[int, int]]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the loads of `traffic` occupy; an exchange of all pairs has loads for each pair."""
        arrays = (array for phases in self.traffic.values() for t in phases for array in (t.group, t.link, t.weight))
        return sum(array.nbytes for array in arrays if 0 not in array.strides)

    def phases(self, variant: Variant) -> tuple[Traffic, ...]:
        """Return the traffic of a variant with its loads on all links, by phase."""

        def on_all_links() -> tuple[Traffic, ...]:
            """Return the traffic with its loads on all links."""
            return tuple(t.everywhere(self.topology) for t in self.traffic[variant])

        return self.topology.cache.once(("phases", self.cells.key, variant), on_all_links)

    def plan(self, call: Collective, cell: int) -> CollectivePlan:
        """Return the plan of a collective or message in group cell `cell` of its family."""
        plans = self.plans[call]
        if len(plans) > 1:
            return plans[self.kinds[call.group][cell]]
        [common_plan] = plans.values()
        return common_plan

    def variant(self, call: Collective, cell: int) -> Variant:
        """Return the variant of a collective or message in group cell `cell` of its family."""
        return _variant(call, self.plan(call, cell))

    def flows(self, call: Collective) -> Sequence[tuple[Flow, ...]]:
        """Return the flows of a call, one per phase, in a group of each group cell; the first flow's latency has the launch.

        Equivalent cells (`equivalent_cells`) have one object.
        """
        if (known := self.known_flows.get(call)) is None:
            plans, flows_of_cell = self.plans[call], dict[int, tuple[Flow, ...]]()
            first = [cell for cell, _ in self.equivalent_cells(call.group)]
            phases = {kind: self.by_cell(_variant(call, plan)) for kind, plan in plans.items()}
            kinds = self.kinds[call.group] if len(plans) > 1 else [*plans] * len(first)
            for cell in dict.fromkeys(first):
                plan, flows = plans[kinds[cell]], list[Flow]()
                launch = plan.latency if plan.latency is not None else self.topology.launch if plan.phases else 0.0
                for latency, bound, start, loads in phases[kinds[cell]]:
                    hops = latency[cell] if plan.latency is None else 0.0
                    rows = slice(start[cell], start[cell + 1])
                    rate = plan.rate if plan.rate < bound[cell] else bound[cell]
                    flows += (Flow(call.group, launch + hops, call.size, rate, loads.link[rows], loads.weight[rows]),)
                    launch = 0.0
                flows_of_cell[cell] = tuple(flows)
            known = self.known_flows[call] = [flows_of_cell[cell] for cell in first]
        return known

    def equivalent_cells(self, family: str) -> Sequence[tuple[int, int]]:
        """Return two group cells for each group cell of a family: the first with equal flows, and the first with equal times.

        Flows with equal times have the same latency and bound, maybe on other links.
        """
        if family not in self.known_cells:
            plans = (
                (call, p) for call, by_kind in self.plans.items() if call.group == family for p in by_kind.values()
            )
            own_links = [-1] * len(self.cells.groups[family].first)
            columns: list[Sequence[object]] = [self.kinds.get(family) or own_links]
            for latency, bound, start, _ in chain.from_iterable(
                map(self.by_cell, dict.fromkeys(starmap(_variant, plans)))
            ):
                # a cell with links of its own has the flows of no other cell
                own_links = [cell if start[cell] < start[cell + 1] else known for cell, known in enumerate(own_links)]
                columns += latency, bound
            same_times = _firsts([*zip(*columns, strict=True)])
            same_flows = _firsts([*zip(same_times, own_links, strict=True)])
            self.known_cells[family] = list(zip(same_flows, same_times, strict=True))
        return self.known_cells[family]

    def by_cell(self, variant: Variant) -> Sequence[tuple[list[float], list[float], list[int], LinkLoads]]:
        """Return (latency, bound, first load, loads) for each phase of a variant; the first three are lists by group cell."""
        if variant not in self.cell_rows:
            first = self.cells.groups[variant[0]].first
            pairs = zip(self.traffic[variant], self.loads[variant], strict=True)
            self.cell_rows[variant] = [
                (t.latency[first].tolist(), t.bound[first].tolist(), loads.start.tolist(), loads) for t, loads in pairs
            ]
        return self.cell_rows[variant]

    def bytes_by_link(self, sizes: Mapping[tuple[Variant, int], float]) -> Floats:
        """Return the bytes over every link (links,). sizes: bytes of the collectives of each group, by variant and group cell."""

        def compute_bytes() -> Floats:
            """Return the bytes over every link (links,), for the cache."""
            total = np.zeros(len(self.topology.capacity))
            for variant in dict.fromkeys(variant for variant, _ in sizes):
                group_cell = self.cells.groups[variant[0]].of
                size = np.array([sizes.get((variant, cell), 0.0) for cell in range(group_cell.max() + 1)])[group_cell]
                for t in self.traffic[variant]:
                    total += t.bytes_on_links(self.topology, size)
            return total

        return self.topology.cache.once(("bytes", self.cells.key, tuple(sizes.items())), compute_bytes)


def _firsts(keys: Sequence[Hashable]) -> list[int]:
    """Return, for each key, the index of the first equal key."""
    first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
    return [first[key] for key in keys]


class Tenant(NamedTuple):
    """A placed job as input of the network: its ranks, and which of them communicate."""

    families: Sequence[tuple[Family, Sequence[Collective]]]
    """(family, its distinct collectives) for each family; `Family.ranks` are ranks of the job here."""
    gpus: Ints
    """GPU of every rank (ranks,)."""
    seeds: Ints
    """Number of 0 or more for each rank; ranks with different numbers are never folded (ranks,)."""
    key: Hashable = None
    """Key in the cluster's cache for the job without its sizes of collectives; None: results are not shared with equal jobs."""


class Demand(NamedTuple):
    """Loads of jobs on links before folding."""

    topology: Topology
    tenants: tuple[Tenant, ...]
    plans: Sequence[Mapping[Collective, GroupPlans]]
    """Plans of the collectives of each job."""
    phases: Sequence[Mapping[Variant, tuple[Traffic, ...]]]
    """{variant: traffic of its phases} for each job; loads are left out if they can be recomputed (`Traffic.bare`)."""
    links: Ints
    """Links that could be bottlenecks, sorted."""
    loads: tuple[Traffic, ...]
    """Traffic of all phases of all jobs, in the order of `phases`, with loads on `links` only."""
    key: Hashable
    """Key in the cluster's cache for jobs and loads, without the sizes of collectives."""


class _TrafficKey(NamedTuple):
    """Cache key of the traffic of a variant within its family and operation."""

    phases: tuple[Phase | AllPairs, ...]
    rate: float
    """Largest bytes/s of its plans."""
    hops: bool
    """Whether latencies of routes count, because a plan has no latency of its own."""
    messages: tuple[tuple[float, float], ...] = ()
    """(latency in seconds, bytes/s) of messages in each kind of group; () with a single kind."""


def demand(topology: Topology, tenants: Sequence[Tenant]) -> Demand:
    """Return the loads that jobs sharing a cluster may put on its links.

    Results are cached with the cluster by the keys of tenants; sizes of collectives change only plans.
    """
    tenants = tuple(tenant if tenant.key is not None else tenant._replace(key=object()) for tenant in tenants)
    plans = [_plans(topology, tenant) for tenant in tenants]
    traffic_keys = [_traffic_keys(job_plans) for job_plans in plans]
    pairs = list(zip(tenants, traffic_keys, strict=True))
    key = tuple((tenant.key, *((v, *k[1:]) for v, k in keys.items())) for tenant, keys in pairs)

    def compute_demand() -> tuple[tuple[Mapping[Variant, tuple[Traffic, ...]], ...], Ints, tuple[Traffic, ...], object]:
        """Return the last four fields of Demand, with a new object as cache key."""
        phases = tuple(_phases(topology, job, *pair) for job, pair in enumerate(pairs))
        links, loads = scarce(topology, _all_traffic(phases))
        bare = tuple({v: tuple(t.bare() for t in parts) for v, parts in by_variant.items()} for by_variant in phases)
        return bare, links, loads, object()  # a key that is quick to hash

    return Demand(topology, tenants, plans, *topology.cache.once(("demand", key), compute_demand))


def _all_traffic(jobs: Iterable[Mapping[Variant, tuple[Traffic, ...]]]) -> list[Traffic]:
    """Return the traffic of all phases of all jobs, in order."""
    return [t for phases in jobs for parts in phases.values() for t in parts]


def folded(demand: Demand, fold: bool = True) -> Partition:
    """Return the cells of equivalent ranks, groups and links; without `fold` each is a cell of its own."""
    question = ("folded", demand.key, fold)

    def compute_partition() -> Partition:
        """Return the partition of all jobs, for the cache."""
        capacity, all_traffic = demand.topology.capacity[demand.links], _all_traffic(demand.phases)
        families = _families_of_all(demand.tenants)
        return partition(_seeds(demand.tenants), families, all_traffic, demand.loads, capacity, fold)

    return demand.topology.cache.once(question, compute_partition)._replace(key=question)


def networks(demand: Demand, cells: Partition) -> tuple[Network, ...]:
    """Return the network of every job. cells: cells of all jobs, from `folded`; jobs share only cells of links."""

    def compute_loads() -> tuple[Floats, tuple[tuple[Partition, Mapping[Variant, tuple[LinkLoads, ...]]], ...]]:
        """Return the bytes/s of each link cell, and for each job its partition and {variant: link loads of each phase}."""
        capacity = demand.topology.capacity[demand.links[cells.links.first]]
        traffic, jobs = iter(demand.loads), []
        for phases, own in zip(demand.phases, _job_partitions(cells, demand.tenants), strict=True):
            loads = {
                v: tuple(_link_loads(next(traffic), own.groups[v[0]], own.links) for _ in parts)
                for v, parts in phases.items()
            }
            jobs.append((own, loads))
        return capacity, tuple(jobs)

    capacity, jobs = demand.topology.cache.once(("networks", cells.key), compute_loads)
    return tuple(
        Network(
            demand.topology,
            plans,
            phases,
            job_cells._replace(key=(cells.key, job)),
            capacity,
            loads,
            _group_kinds(demand.topology, tenant, job_cells),
        )
        for job, (plans, phases, tenant, (job_cells, loads)) in enumerate(
            zip(demand.plans, demand.phases, demand.tenants, jobs, strict=True)
        )
    )


def _group_kinds(topology: Topology, tenant: Tenant, cells: Partition) -> dict[str, list[GroupKind]]:
    """Return {family: kind of each group cell}, without families of a single kind."""
    result: dict[str, list[GroupKind]] = {}
    for family, collectives in tenant.families:
        first = cells.groups[family.name].first
        if all(collective.op == "send" for collective in collectives):
            shapes_of_family, shape = _message_shapes(topology, tenant, family)
            result[family.name] = [shapes_of_family[index] for index in shape[first].tolist()]
        elif topology.pools:
            result[family.name] = [types_of(topology, row) for row in tenant.gpus[family.ranks[first]]]
    return result


def _message_shapes(topology: Topology, tenant: Tenant, family: Family) -> tuple[tuple[CommunicatorShape, ...], Ints]:
    """Return the distinct communicator shapes of messages between two ranks, and the index of each pair's shape.

    family: a family of messages, whose pairs may use communicators of more ranks. Then the shape is the communicator's, but the
    additional latency, the node types and whether it stays inside a node are the pair's.
    """

    def find_shapes() -> tuple[tuple[CommunicatorShape, ...], Ints]:
        # messages back use the same pairs, and so does every job with its pipelines on these GPUs
        """Return the shapes and indices, from the cluster's cache for equal GPUs."""
        pairs, communicators = ordered(tenant.gpus[family.ranks]), family.communicators
        carriers = pairs if communicators is None else ordered(tenant.gpus[communicators])
        question = ("shapes of pairs", fingerprint(pairs), communicators is None, carriers.shape, fingerprint(carriers))
        return topology.cache.once(question, lambda: combine_shapes(pairs, carriers))

    def combine_shapes(pairs: Ints, carriers: Ints) -> tuple[tuple[CommunicatorShape, ...], Ints]:
        """Return shapes and indices. pairs: GPUs (pairs, 2). carriers: GPUs of communicators, assigned to pairs in rotation."""
        shapes_of_pairs, shape = pair_shapes(topology, pairs)
        if carriers is pairs:
            return shapes_of_pairs, shape
        carrier_shapes, carrier_shape = shapes(topology, carriers)
        indices = np.stack([shape, np.resize(carrier_shape, len(shape))], axis=1)
        first, combination = distinct_rows(indices)
        combined = [(shapes_of_pairs[a], carrier_shapes[b]) for a, b in indices[first].tolist()]
        return different(
            [b._replace(extra_latency=a.extra_latency, inside_nodes=a.nodes == 1, types=a.types) for a, b in combined],
            combination,
        )

    return topology.cache.once(("message shapes", tenant.key, family.name), find_shapes)


def _plans(topology: Topology, tenant: Tenant) -> dict[Collective, GroupPlans]:
    """Return {collective: its plan by kind of group}."""
    cache = topology.cache
    return {
        c: cache.once(("plan", tenant.key, c), partial(_plan, topology, tenant, family, c))
        for family, collectives in tenant.families
        for c in collectives
    }


def _plan(topology: Topology, tenant: Tenant, family: Family, collective: Collective) -> GroupPlans:
    """Return the plan of a collective for each kind of group in its family."""
    shapes_by_kind: Mapping[GroupKind, tuple[CommunicatorShape, ...]] = {(): ()}
    if family.host:
        return {(): CollectivePlan("", "", (), (), None, math.inf, ())}
    if collective.op == "send":
        shapes_by_kind = {kind: (kind,) for kind in _message_shapes(topology, tenant, family)[0]}
    elif family.algorithm == NCCL or collective.op in MESSAGES:
        gpus = tenant.gpus[family.ranks]
        question = ("shapes", gpus.shape, fingerprint(gpus), family.shares)
        kinds = topology.cache.once(question, lambda: shapes(topology, gpus, family.shares)[0])
        shapes_by_kind = {
            types: tuple(shape for shape in kinds if shape.types == types)
            for types in {shape.types: 0 for shape in kinds}
        }
    group = Group(family.ranks.shape[1], family.levels, family.shares, family.router)
    return {
        kind: plan(topology, family.algorithm, shapes_of_kind, group, collective)
        for kind, shapes_of_kind in shapes_by_kind.items()
    }


def _variant(call: Collective, plan: CollectivePlan) -> Variant:
    """Return the key of the traffic of a call: calls with equal keys load links equally per byte."""
    return call.group, call.op, plan.algorithm, plan.levels, plan.sizes


def _traffic_keys(plans: Mapping[Collective, GroupPlans]) -> dict[Variant, _TrafficKey]:
    """Return the traffic key of each variant, from the plans of all sizes that use it."""
    plans_of: dict[Variant, list[Sequence[CollectivePlan]]] = {}
    for c, by_kind in plans.items():
        for p in by_kind.values():
            kinds = tuple(by_kind.values()) if c.op == "send" else (p,)  # messages of all kinds are one traffic
            plans_of.setdefault(_variant(c, p), []).append(kinds)
    keys = {}
    for v, rows in plans_of.items():
        every = [*chain.from_iterable(rows)]
        columns = zip(*rows, strict=True)
        messages = [(min(p.latency or 0.0 for p in kind), max(p.rate for p in kind)) for kind in columns]
        hops = any(p.latency is None for p in every)
        keys[v] = _TrafficKey(
            every[-1].phases, max(p.rate for p in every), hops, tuple(messages) if len(messages) > 1 else ()
        )
    return keys


def _phases(
    topology: Topology, job: int, tenant: Tenant, traffic_keys: Mapping[Variant, _TrafficKey]
) -> Mapping[Variant, tuple[Traffic, ...]]:
    """Return the traffic of each variant of job number `job`, without the latency of hops where its protocol has its own."""
    families = {f.name: (f, _of_job(f._replace(ranks=tenant.gpus[f.ranks]), job)) for f, _ in tenant.families}
    result = {}
    for v, key in traffic_keys.items():
        family, on_gpus = families[v[0]]
        parts = traffic(topology, on_gpus, v[1], key.phases, key.hops)
        rate: Floats | float = key.rate
        if key.messages:
            shape = _message_shapes(topology, tenant, family)[1]
            latency, rate = np.array(key.messages)[shape].T
            parts = tuple(t._replace(latency=latency) for t in parts)  # so that groups of two kinds are not one cell
        # no transfer is faster than its plan, and a rate above it could make a link look scarce
        result[v] = tuple(t._replace(bound=np.minimum(t.bound, rate)) for t in parts)
    return result


def _of_job(family: Family, job: int) -> Family:
    """Return the family with its field `job` set, and `@job` appended to its name, so that jobs have different names."""
    return family._replace(name=f"{family.name}@{job}", job=job)


def _seeds(tenants: Sequence[Tenant]) -> Ints:
    """Return the seeds of all ranks, job after job; no two jobs have equal ones."""
    first_seed = np.cumsum([0, *(int(tenant.seeds.max()) + 1 for tenant in tenants)])
    return np.concatenate([tenant.seeds + start for tenant, start in zip(tenants, first_seed[:-1], strict=True)])


def _families_of_all(tenants: Sequence[Tenant]) -> list[Family]:
    """Return the families of all jobs, with ranks numbered job after job."""
    starts = np.cumsum([0, *(len(tenant.gpus) for tenant in tenants)])
    return [
        _of_job(family, job)._replace(ranks=family.ranks + starts[job])
        for job, tenant in enumerate(tenants)
        for family, _ in tenant.families
    ]


def _job_partitions(cells: Partition, tenants: Sequence[Tenant]) -> Iterator[Partition]:
    """Yield the partition of each job. Its rank cells are consecutive: cells are numbered by their first member."""
    rank = cell = 0
    for job, tenant in enumerate(tenants):
        cell_of_rank = cells.ranks.of[rank : rank + len(tenant.gpus)] - cell
        own_cells = slice(cell, cell + int(cell_of_rank.max()) + 1)
        groups = {f.name: cells.groups[_of_job(f, job).name] for f, _ in tenant.families}
        yield Partition(
            Cells(cell_of_rank, cells.ranks.first[own_cells] - rank, cells.ranks.size[own_cells]), groups, cells.links
        )
        rank, cell = rank + len(cell_of_rank), own_cells.stop


def _link_loads(loads: Traffic, groups: Cells, links: Cells) -> LinkLoads:
    """Return the loads of each group cell on one link of each link cell, summed over its groups."""
    count = len(links.first)
    rows = np.flatnonzero(links.first[links.of[loads.link]] == loads.link)
    cell_link = groups.of[loads.group[rows]] * count + links.of[loads.link[rows]]
    cell_link, inverse = np.unique(cell_link, return_inverse=True)
    weight = np.bincount(inverse, loads.weight[rows], len(cell_link)).astype(float, copy=False)
    cell, link = np.divmod(cell_link, max(count, 1))
    return LinkLoads(cell.searchsorted(np.arange(len(groups.first) + 1)), link, weight)
