"""Clusters and workloads as scripts give them: files, names of shipped ones, mappings, or what was loaded before."""

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
    """Return a cluster: of a topology file, the name of a shipped one, or a mapping with the keys of such a file.

    One that is loaded is returned as it is. overrides: keys as the options of `clustersim run`, such as `nodes=64`; dotted ones
    as `**{"fabric.radix": 128}`. Raises ClustersimError, which says where and what is wrong.
    """
    found = cluster_document(cluster)
    if isinstance(found, Topology):
        if overrides:
            raise InputError(
                f"{next(iter(overrides))}: this cluster is built already; give a file, a shipped name or a mapping"
            )
        return found
    return build_topology(overridden(found, by_key(overrides)))


def cluster_document(cluster: ClusterLike) -> Document | Topology:
    """Return the description of a cluster, unchecked, or the loaded one. Raises ClustersimError when it cannot be read."""
    if isinstance(cluster, Topology):
        return cluster
    if isinstance(cluster, Mapping):
        return mapping.document(cluster, "cluster")
    if isinstance(cluster, str | Path):
        return document_of(cluster)
    made = "what cs.load_cluster or a function such as cs.fat_tree returns"
    raise InputError(f"cluster: {shown(cluster)} is none; give a file, a shipped name, a mapping, or {made}")


def load_workload(workload: WorkloadLike, **overrides: object) -> Job:
    """Return a job: of a workload file, the name of a shipped one, or a mapping with the keys of such a file.

    overrides: keys as the options of `clustersim run`, such as `tp=8`; dotted ones as `**{"training.seq": 4096}`. Raises
    ClustersimError, which says where and what is wrong.
    """
    if isinstance(workload, Job) and not overrides:
        return workload
    document = workload_document(workload)
    return build_job(document, by_key(overrides), places(document, overrides))


def workload_document(workload: WorkloadLike) -> Document:
    """Return the description of a workload, unchecked. Raises ClustersimError when it cannot be read."""
    if isinstance(workload, Job):
        return workload.document
    if isinstance(workload, Mapping):
        return mapping.document(workload, "workload")
    if isinstance(workload, str | Path):
        return read(shipped.find("workloads", workload))
    made = "what cs.load_workload returns"
    raise InputError(f"workload: {shown(workload)} is none; give a file, a shipped name, a mapping, or {made}")


_KEYS = KEYS | {option.name: option.key for option in cluster_options.OPTIONS}


def places(document: Document, keywords: Iterable[str]) -> dict[str, SourcePlace]:
    """Return where messages find what keywords set, by dotted key."""
    return {_KEYS.get(name, name): (f"{document.path} (keyword {name})", 0, 0) for name in keywords}


def parted(keywords: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the keywords that set keys of a cluster, and those that set keys of a workload."""
    cluster = {name: value for name, value in keywords.items() if of_topology(_KEYS.get(name, name))}
    return cluster, {name: value for name, value in keywords.items() if name not in cluster}


def by_key(keywords: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of keywords, such as `tp`, as plain data by the dotted key that each sets, such as `parallelism.tp`."""
    return {_KEYS.get(name, name): mapping.plain(value, f"{name}=") for name, value in keywords.items()}


_TEXT = """{what}

    nodes: how many. node: their type, such as "hgx-h100", or a mapping that extends one. name: of the cluster. faults: what is
    slow or dead, a list of mappings. nccl: the communication library, a mapping. keys: those of `fabric` with `kind: {kind}`
    (docs/yaml.md), quantities as text with their unit; fabric: more of them, whose names are taken. Raises ClustersimError.
    """


def of_kind(kind: str) -> Callable[..., Topology]:
    """Return the function that builds clusters with a kind of fabric: a file of `clustersim/topology/kinds`, or a package's."""

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
    build.__doc__ = _TEXT.format(what=_what(kind), kind=kind)
    return build


def _what(kind: str) -> str:
    """Return the first line of the file of a kind, or the package that offers it."""
    module = plugins.names(ROOM).get(kind)
    if module is None:
        return f"`kind: {kind}`, of the package {plugins.installed(ROOM)[kind]}."
    return (import_module(module).__doc__ or kind).partition("\n")[0]
