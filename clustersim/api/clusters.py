"""Clusters from Python: a function for each kind of fabric, with the keys of the YAML file as keywords."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from clustersim import plugins
from clustersim.api.inputs import load_cluster
from clustersim.errors import InputError
from clustersim.topology.build import ROOM
from clustersim.topology.model import Topology

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
    """Return the first line of the file of a kind, or who offers it."""
    module = plugins.names(ROOM).get(kind)
    if module is None:
        return f"`kind: {kind}`, of the package {plugins.installed(ROOM)[kind]}."
    return (import_module(module).__doc__ or kind).partition("\n")[0]
