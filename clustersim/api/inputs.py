"""Clusters and workloads as scripts pass them: files, names of shipped ones, mappings, or loaded objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from clustersim import plugins
from clustersim.config import mapping, shipped
from clustersim.config.overrides import SourcePlace, of_topology
from clustersim.config.yaml import Document, read
from clustersim.errors import InputError, shown
from clustersim.parallel.job import Job
from clustersim.parallel.load import build as build_job
from clustersim.parallel.options import KEYS
from clustersim.topology import options as cluster_options
from clustersim.topology.build import ROOM, document_of, overridden
from clustersim.topology.build import build as build_topology
from clustersim.topology.model import Topology

ClusterLike = str | Path | Mapping[str, Any] | Topology
WorkloadLike = str | Path | Mapping[str, Any] | Job


def load_cluster(cluster: ClusterLike, **overrides: object) -> Topology:
    """Return the cluster of a topology file, of a shipped name, or of a mapping with the keys of such a file.

    A built cluster is returned unchanged. `overrides` are named like the options of `clustersim run`, such as `nodes=64`, or by
    dotted keys: `**{"fabric.radix": 128}`. Raises ClustersimError with the place and the problem.

    >>> load_cluster("hgx_h100_8").gpus
    8
    """
    description = cluster_document(cluster)
    if isinstance(description, Topology):
        if overrides:
            raise InputError(
                f"{next(iter(overrides))}: this cluster is built already; give a file, a shipped name or a mapping"
            )
        return description
    return build_topology(overridden(description, by_key(overrides)))


def cluster_document(cluster: ClusterLike) -> Document | Topology:
    """Return the unchecked description of a cluster, or the built cluster itself. Raises ClustersimError if it cannot be read."""
    if isinstance(cluster, Topology):
        return cluster
    if isinstance(cluster, Mapping):
        return mapping.document(cluster, "cluster")
    if isinstance(cluster, str | Path):
        return document_of(cluster)
    objects = "what cs.load_cluster or a function such as cs.fat_tree returns"
    raise InputError(f"cluster: {shown(cluster)} is none; give a file, a shipped name, a mapping, or {objects}")


def load_workload(workload: WorkloadLike, **overrides: object) -> Job:
    """Return the job of a workload file, of a shipped name, or of a mapping with the keys of such a file.

    `overrides` are named like the options of `clustersim run`, such as `tp=8`, or by dotted keys: `**{"training.seq": 4096}`.
    Raises ClustersimError with the place and the problem.

    >>> load_workload("gpt3_xl", tp=2).parallelism.tp
    2
    """
    if isinstance(workload, Job) and not overrides:
        return workload
    document = workload_document(workload)
    return build_job(document, by_key(overrides), places(document, overrides))


def workload_document(workload: WorkloadLike) -> Document:
    """Return the unchecked description of a workload. Raises ClustersimError if it cannot be read."""
    if isinstance(workload, Job):
        return workload.document
    if isinstance(workload, Mapping):
        return mapping.document(workload, "workload")
    if isinstance(workload, str | Path):
        return read(shipped.find("workloads", workload))
    objects = "what cs.load_workload returns"
    raise InputError(f"workload: {shown(workload)} is none; give a file, a shipped name, a mapping, or {objects}")


_KEYS = KEYS | {option.name: option.key for option in cluster_options.OPTIONS}


def places(document: Document, keywords: Iterable[str]) -> dict[str, SourcePlace]:
    """Return {dotted key: place for error messages} of keywords."""
    return {_KEYS.get(name, name): (f"{document.path} (keyword {name})", 0, 0) for name in keywords}


def parted(keywords: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return (keywords that set keys of a cluster, keywords that set keys of a workload)."""
    cluster = {name: value for name, value in keywords.items() if of_topology(_KEYS.get(name, name))}
    return cluster, {name: value for name, value in keywords.items() if name not in cluster}


def by_key(keywords: Mapping[str, object]) -> dict[str, Any]:
    """Return {dotted key: value as plain data} of keywords: `tp=8` becomes {"parallelism.tp": 8}."""
    return {_KEYS.get(name, name): mapping.plain(value, f"{name}=") for name, value in keywords.items()}


def axes_by_key(keywords: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ({dotted key: values to try}, {dotted key: single value}) of keywords. Raises InputError for an empty list."""
    several = {name: value for name, value in keywords.items() if isinstance(value, list | tuple | range)}
    for name, value in several.items():
        if not len(value):
            raise InputError(f"{name}=: no value; give at least one")
    return by_key(several), by_key({name: value for name, value in keywords.items() if name not in several})


_TEXT = """{what}

    `nodes` is the number of nodes, `node` their type, such as "hgx-h100", or a mapping that extends one. `faults` is a list of
    slow or dead parts and `nccl` the communication library, both as mappings. `keys` are those of `fabric` with `kind: {kind}`
    (docs/yaml.md), quantities as text with their unit; `fabric` takes keys whose names are arguments here. Raises
    ClustersimError.
    """


def cluster_function(kind: str) -> Callable[..., Topology]:
    """Return the function that builds clusters with a kind of fabric: a file of `topology/kinds`, or one of a package."""

    def build(
        *,
        nodes: int,
        node: str | Mapping[str, Any],
        name: str = kind,
        faults: Sequence[Mapping[str, Any]] = (),
        nccl: Mapping[str, Any] | None = None,
        fabric: Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> Topology:
        both = sorted({"kind", *keys} & set(fabric or {}))
        if both:
            raise InputError(f"{kind}: {both[0]} is given twice or is the function's name; leave it out of fabric")
        cluster = {"name": name, "nodes": nodes, "node": node}
        parts = {"nccl": nccl, "faults": list(faults) or None}
        written = {"cluster": cluster, "fabric": {"kind": kind, **keys, **(fabric or {})}}
        return load_cluster({**written, **{key: value for key, value in parts.items() if value is not None}})

    build.__name__ = build.__qualname__ = kind
    module = plugins.names(ROOM).get(kind)
    outside = f"`kind: {kind}`, of the package {plugins.installed(ROOM).get(kind)}."
    what = (import_module(module).__doc__ or kind).partition("\n")[0] if module else outside
    build.__doc__ = _TEXT.format(what=what, kind=kind)
    return build
