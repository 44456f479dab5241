"""Assigns nodes of the cluster to jobs, and a GPU to each rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.config.node_ranges import written
from clustersim.errors import InputError
from clustersim.jobs.request import PlacementRequest, placement_named
from clustersim.parallel.job import Job
from clustersim.topology.model import Topology


class PlacedJob(NamedTuple):
    """A job with resolved degrees, its nodes in ascending order, the GPU of each rank, and its start in seconds.

    Ranks fill the nodes in ascending order, as a scheduler's block distribution does. GPUs of the last node that no rank needs
    stay idle, and are not in `gpus`.
    """

    name: str
    job: Job
    nodes: Ints
    gpus: Ints
    start: float


def place_jobs(cluster: Topology, requests: Sequence[PlacementRequest], placement: str) -> list[PlacedJob]:
    """Return the placed jobs, in the order of `requests`.

    `placement` is a file of `placements/`, optionally with a seed after a colon (`random:7`), or package.module:function. A job
    gets the nodes that it names, the number that it states, or the number that its degrees need. Jobs with `dp: auto` that state
    nothing share the remaining nodes equally, rounded down. Raises InputError if the jobs do not fit or two name the same node.
    """
    taken = _named(cluster, requests)
    counts = _counts(cluster, requests)
    resolved = [_resolved(cluster, request, count) for request, count in zip(requests, counts, strict=True)]
    node_counts = [  # nodes of each job: the requested number, else the fewest with a GPU for every rank
        -(-job.mesh.size // cluster.gpus_per_node) if request.nodes is None else count
        for request, job, count in zip(requests, resolved, counts, strict=True)
    ]
    free = [node for node in range(cluster.nodes) if node not in taken]
    open_jobs = [i for i, request in enumerate(requests) if not isinstance(request.nodes, tuple)]
    assigned = dict(zip(open_jobs, placement_named(placement)([node_counts[i] for i in open_jobs], free), strict=True))
    result = []
    for i, (request, job) in enumerate(zip(requests, resolved, strict=True)):
        nodes = np.array(assigned.get(i, request.nodes), np.int64)
        gpus = cluster.numbering.gpus_of(nodes)
        if len(gpus) > len(nodes) * cluster.gpus_per_node:  # exceeds all nodes, as is known only now
            job = _resolved(cluster, replace(request, nodes=tuple(nodes.tolist())), len(nodes))  # noqa: PLW2901
        result.append(PlacedJob(request.name, job, nodes, gpus[: job.mesh.size], request.start))
    return result


def _named(cluster: Topology, requests: Sequence[PlacementRequest]) -> dict[int, PlacementRequest]:
    """Return {node: job} of all nodes that jobs name. Raises InputError for a node that is unknown or named twice."""
    taken: dict[int, PlacementRequest] = {}
    for request in requests:
        for node in request.nodes if isinstance(request.nodes, tuple) else ():
            if node >= cluster.nodes:
                raise request.error(
                    "nodes", f"{request.name} wants node {node}; {cluster.name} has 0 to {cluster.nodes - 1}"
                )
            if node in taken:
                raise _overlap(request, taken, taken[node])
            taken[node] = request
    return taken


def _overlap(request: PlacementRequest, taken: dict[int, PlacementRequest], earlier: PlacementRequest) -> InputError:
    """Return the error for a job that names nodes of the job `earlier`. taken: {node: job that named it first}."""
    named = request.nodes if isinstance(request.nodes, tuple) else ()
    shared = [node for node in named if taken.get(node) is earlier]
    names = f"{request.name} and {earlier.name} both want node{'s' if len(shared) > 1 else ''} {written(shared, 4)}"
    return request.error("nodes", f"{names}; jobs share no node")


def _counts(cluster: Topology, requests: Sequence[PlacementRequest]) -> list[int]:
    """Return the largest number of nodes that each job may use. Raises InputError if the cluster has too few."""
    stated = [_explicit(cluster, request) for request in requests]
    equal = [request for request, count in zip(requests, stated, strict=True) if count is None]
    unassigned = cluster.nodes - sum(count or 0 for count in stated)
    if unassigned < 0:
        each_job = ", ".join(f"{r.name} {n}" for r, n in zip(requests, stated, strict=True) if n)
        raise InputError(
            f"the jobs want {cluster.nodes - unassigned} nodes ({each_job}) and {cluster.name} has {cluster.nodes}; "
            "lower parallelism.dp, leave a job out or take a larger cluster"
        )
    if len(equal) > unassigned:
        raise equal[0].error(
            "nodes",
            f"no node is left for {equal[0].name}: {cluster.name} has {cluster.nodes}, other jobs take "
            f"{cluster.nodes - unassigned}, and jobs with dp auto ({len(equal)}) share the rest; "
            "lower parallelism.dp of the others",
        )
    return [unassigned // len(equal) if count is None else count for count in stated]


def _explicit(cluster: Topology, request: PlacementRequest) -> int | None:
    """Return the number of nodes that a job states or needs; None: a share of the rest. Raises InputError for part of a node."""
    if request.nodes is not None:
        return request.nodes if isinstance(request.nodes, int) else len(request.nodes)
    split, width = request.job.parallelism, cluster.gpus_per_node
    if split.dp == "auto":
        return None
    lanes = split.lanes
    nodes, rest = divmod(lanes * split.dp, width)
    if rest:
        step = width // math.gcd(width, lanes)
        fitting = -(-split.dp // step) * step
        raise request.job.error(
            "parallelism.dp",
            f"tp {split.tp} × pp {split.pp} × dp {split.dp} needs {lanes * split.dp} GPUs, part of a node of {width}, and jobs "
            f"share no node; use dp {fitting} or auto, or say in a file of jobs how many `nodes` it gets",
        )
    return nodes


def _resolved(cluster: Topology, request: PlacementRequest, nodes: int) -> Job:
    """Return the job with its degrees resolved for `nodes` nodes. Raises InputError if it needs more GPUs than these have."""
    split, (gpus, width) = request.job.parallelism, _room(cluster, request, nodes)
    dp = 1 if split.dp == "auto" else split.dp
    if split.lanes * dp > gpus:
        cp = f" × cp {split.cp}" if split.cp > 1 else ""
        degrees = f"tp {split.tp}{cp} × pp {split.pp}" + (f" × dp {dp}" if dp > 1 else "")
        whose = f"its {nodes} of the {cluster.nodes} nodes have" if nodes > 1 else "its one node has"
        raise request.error(
            "nodes",
            f"{request.name} needs {split.lanes * dp} GPUs ({degrees}) and {whose} {gpus}; "
            "lower a degree, or give it more nodes",
        )
    return request.job.place(gpus, width)


def _room(cluster: Topology, request: PlacementRequest, nodes: int) -> tuple[int, int]:
    """Return (GPUs of a job's nodes, GPUs per node). Nodes that the job does not name count as `cluster.gpus_per_node` GPUs."""
    if isinstance(request.nodes, tuple):
        named = cluster.numbering.only(np.array(request.nodes, np.int64))
        return named.gpus, named.common_width()
    return nodes * cluster.gpus_per_node, cluster.gpus_per_node
