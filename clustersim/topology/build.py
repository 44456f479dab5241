"""Builds the topology that a file describes, and checks one that outside code has built before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from clustersim import plugins
from clustersim.config import shipped
from clustersim.config.evidence import Declared
from clustersim.config.fields import validate
from clustersim.config.gpu import Gpu
from clustersim.config.overrides import Overrides, SourcePlace
from clustersim.config.topology import KINDS_OF, Node, TopologySpec, wider_slots
from clustersim.config.yaml import KEY, Document, Loc, read
from clustersim.convert.astra_sim import is_astra, translated
from clustersim.convert.override import of_fewer_superchips, override, preset, presets
from clustersim.errors import ConfigError, InputError, UnknownNameError, shown, suggest
from clustersim.hardware import gpus
from clustersim.topology import node
from clustersim.topology.faults import apply
from clustersim.topology.model import Topology
from clustersim.topology.node import check_pools, merge_types
from clustersim.topology.specs import MAX_GPUS, MAX_LINKS, NodeSpecs
from clustersim.units import either

_PROBED = 64
NVLINK: Annotated[Mapping[str, tuple[float, float]], Declared("B/s")] = {
    "pascal": (20e9, 0.9),
    **dict.fromkeys(("volta", "turing", "ampere"), (25e9, 0.8)),
    **dict.fromkeys(("a40", "rtx-3090", "rtx-a6000"), (14.0625e9, 0.853)),
    "hopper": (25e9, 0.824),
    "blackwell": (50e9, 0.802),
    "blackwell-ultra": (50e9, 0.802),
}
"""(bytes/s of one NVLink, share that payload gets) by GPU or generation (NVIDIA/nccl 2.30, src/graph/topo.h)."""
ROOM = "clustersim.topology"
FOREIGN = (".xml", ".txt", ".topo")
"""Suffixes of other tools' files, which leave out what their programs detect at run time."""


def check(built: object, cluster: NodeSpecs) -> None:
    """Raise TypeError unless `built` is a Topology; ValueError if its nodes, links, counts or sampled routes are invalid."""
    if not isinstance(built, Topology):
        raise TypeError(f"build returned {shown(built)}, not a Topology; return assemble(cluster, ...)")
    if not np.array_equal(built.numbering.first, cluster.numbering().first):
        raise ValueError(f"it has {built.nodes} nodes of {built.gpus_per_node} GPUs, not those of the file")
    links = len(built.capacity)
    if links > MAX_LINKS:
        raise ValueError(f"it has {links:,} links; at most {MAX_LINKS:,} can be simulated")
    for name, least in (("capacity", 0.0), ("latency", -1e-300), ("cables", 0.0)):
        values = np.asarray(getattr(built, name), np.float64)
        if values.shape != (links,) or not np.isfinite(values).all() or not (values > least).all():
            raise ValueError(f"{name} is not one finite number for each of the {links} links")
    for name, value in built.counts.items():
        if not isinstance(name, str) or not np.isfinite(float(value)) or value < 0:
            raise ValueError(f"the count {shown(name)} is {shown(value)}; write a number of at least 0")
    _check_routes(built, links)


def _check_routes(built: Topology, links: int) -> None:
    """Raise ValueError if a route is invalid, checking a sample: from every GPU to the next, to the opposite, and to the last."""
    gpus = np.unique(np.linspace(0, built.gpus - 1, _PROBED).astype(np.int64))
    targets = [(gpus + 1) % built.gpus, (gpus + built.gpus // 2) % built.gpus, np.full_like(gpus, built.gpus - 1)]
    for target in targets:
        routes = built.route(gpus, target)
        if routes.start.shape != (len(gpus) + 1,) or (np.diff(routes.start) < 0).any():
            raise ValueError("hops does not return one row for each pair")
        if not ((routes.links >= 0) & (routes.links < links)).all():
            raise ValueError("hops uses links that it does not have; they count from 0, and -1 means no link")
        if not np.isfinite(routes.latency).all() or (routes.latency < 0).any():
            raise ValueError("a path has no finite latency of at least 0")
        for link in {*routes.links.tolist()}:
            built.ends(link)


def load(path: str | Path, overrides: Overrides | None = None) -> Topology:
    """Return the cluster that a topology file, or the bare name of a shipped one, describes.

    `overrides` replaces values by dotted key, such as `cluster.nodes`. Raises InputError for any error in it, before any work.
    The file may also be ASTRA-sim's network.yml, or (suffix .xml) NCCL's description of a node.
    """
    return build(overridden(document_of(path), overrides or {}))


def overridden(document: Document, overrides: Overrides, places: Mapping[str, SourcePlace] | None = None) -> Document:
    """Return a parsed topology with values replaced by dotted key. Raises InputError for an unknown key or an invalid value.

    places: {dotted key: position in a file that sets it}, for error messages.
    """
    return override(translated(document) if overrides and is_astra(document) else document, overrides, places)


def document_of(path: str | Path) -> Document:
    """Return a parsed topology file, or the shipped one of that name. Raises InputError if it cannot be read."""
    path = shipped.find("topologies", path)
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return read(path)
    from clustersim.convert.foreign import read_topology

    return read_topology(path)


def build(document: Document) -> Topology:
    """Return the cluster of a parsed topology file. Raises ConfigError with file:line:column."""
    spec, cluster = described(document)
    document = cluster.document
    kind = "single_node" if spec.fabric is None else spec.fabric.get("kind")
    if not isinstance(kind, str):
        known = ", ".join(sorted(plugins.names(ROOM)))
        raise document.error(("fabric", "kind"), f"fabric.kind is missing; add one of {known}")
    try:
        plugin = plugins.load(ROOM, kind, "build")
        with plugins.blaming(ROOM, kind):
            built = plugin(cluster)
            if plugins.outside(ROOM, kind):
                check(built, cluster)
    except ConfigError:
        raise
    except InputError as error:
        raise document.error(("fabric", "kind"), f"fabric.kind: {error}") from error
    return apply(built, spec.faults, document)


def described(document: Document) -> tuple[TopologySpec, NodeSpecs]:
    """Return the specification of a parsed topology, and that of its nodes. Raises ConfigError with file:line:column."""
    if is_astra(document):
        document = translated(document)
    for key in ("model", "training", "parallelism"):
        if key in document.data:
            what = "this is a workload, not a topology; the topology comes first, then the workload"
            raise document.error((key, KEY), what)
    spec = validate(TopologySpec, document)
    return spec, _cluster(spec, document)


def node_types(document: Document) -> list[tuple[str, NodeSpecs]]:
    """Return (dotted key such as `cluster.node`, nodes) for each node type. Raises ConfigError if a key is invalid."""
    spec, specs = described(document)
    if spec.cluster.pools is None:
        return [("cluster.node", specs)]
    written = _types(spec, document)
    return [(".".join(map(str, at)), _pool(spec, document, specs.name, nodes, node, at)) for nodes, node, at in written]


def _cluster(spec: TopologySpec, document: Document) -> NodeSpecs:
    """Return the checked nodes of a file, of one type or several. Raises ConfigError if they are invalid or too many."""
    for name in spec.nodes:
        _node_spec(name, document, ("nodes", name))
    name = spec.cluster.name or Path(document.path).stem
    cluster = merge_types([_pool(spec, document, name, *node_type) for node_type in _types(spec, document)])
    at = "cluster", "pools" if spec.cluster.pools else "nodes"
    if cluster.gpus > MAX_GPUS:
        gpu_counts = either(sorted({pool.node.gpus.count for pool in cluster.parts}))
        few = f"{cluster.nodes} nodes of {gpu_counts} GPUs are {cluster.gpus} GPUs; at most {MAX_GPUS} can be simulated"
        raise document.error(at, f"{'.'.join(at)}: {few}")
    for pool in cluster.parts:
        node.check(pool)
        _check_nics(pool, cluster.nodes)
    check_pools(cluster)
    return cluster


def _types(spec: TopologySpec, document: Document) -> list[tuple[int, str | dict[str, Any], Loc]]:
    """Return (number of nodes, name or section, position) for each node type. Raises ConfigError for missing or double keys."""
    section = spec.cluster
    if section.pools is not None:
        for key in ("nodes", "node"):
            if key in section.model_fields_set:
                twice = "the pools have their own; change cluster.pools.0 and so on, or drop one of the two"
                raise document.error(("cluster", key), f"cluster.{key}: {twice}")
        return [(pool.nodes, pool.node, ("cluster", "pools", i, "node")) for i, pool in enumerate(section.pools)]
    if section.nodes is None or section.node is None:
        key = "node" if section.node is None else "nodes"
        raise document.error(("cluster",), f"cluster.{key} is missing; add it")
    return [(section.nodes, section.node, ("cluster", "node"))]


def _pool(
    spec: TopologySpec, document: Document, name: str, nodes: int, written: str | dict[str, Any], at: Loc
) -> NodeSpecs:
    """Return `nodes` nodes of one type: `written` is its name or section, `at` its position in the file."""
    at = ("nodes", written) if isinstance(written, str) and written in spec.nodes else at
    node = _node_spec(written, document, at)
    gpu = _gpu(node, document, at)
    return NodeSpecs(document, name, nodes, _with_links(node, gpu), gpu, spec.nccl, at, spec.cluster.jitter)


def _with_links(node: Node, gpu: Gpu) -> Node:
    """Return a node whose links have the rate of the GPU or its generation, unless the file sets one."""
    known = NVLINK.get(gpu.like or gpu.name, NVLINK.get(gpu.architecture))
    if node.scale_up.kind == "none" or node.scale_up.link is not None or known is None or gpu.vendor != "nvidia":
        return node
    rates = dict(zip(("link", "payload_efficiency"), known, strict=True))
    if "payload_efficiency" in node.scale_up.model_fields_set:
        del rates["payload_efficiency"]
    return node.model_copy(update={"scale_up": node.scale_up.model_copy(update=rates)})


def _node_spec(node: str | dict[str, Any], document: Document, at: Loc) -> Node:
    """Return a node type, validated; one from another tool's file is completed first. Raises ConfigError for an invalid key."""
    merged = _merged(node, document, at)
    if document.path.endswith(FOREIGN):
        from clustersim.convert.foreign import filled

        merged = filled(merged, document, at)
    return validate(Node, document, merged, at)


def _merged(node: object, document: Document, at: Loc, extended: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a node's keys, with those of the node type that it extends. `extended`: names already on that chain.

    node: name or section. Raises ConfigError for an unknown name, or for a type that extends itself.
    """
    if isinstance(node, dict):
        if "extends" not in node:
            return node
        inner = _merged(node["extends"], document, (*at, "extends"), extended)
        overrides = {key: value for key, value in node.items() if key != "extends"}
        return deep_merge(_compatible(inner, overrides), overrides)
    types: Mapping[str, Any] = document.data.get("nodes") or {}
    name = node if isinstance(node, str) else repr(node)
    if name in types and name not in extended:
        return _merged(types[name], document, ("nodes", name), (*extended, name))
    if name in presets():
        return preset(name)
    if name.endswith((".xml", ".txt")):
        imported: dict[str, Any] = document_of(Path(document.path).parent / name).data["cluster"]["node"]
        return imported
    if name in extended:
        raise document.error(at, f"{name!r} extends itself; extend one of the presets {', '.join(presets())}")
    hint = suggest(name, {*types, *presets()})
    text = f"unknown node type {name!r}; {hint}, or define it in `nodes:`"
    raise document.error(at, text) from UnknownNameError(text)


def _compatible(inherited: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inherited node without what does not apply to the `scale_up` kind, the slot or the GPUs that `overrides` set."""
    kind = _changed_value(inherited, overrides, "scale_up", "kind")
    slot = _changed_value(inherited, overrides, "host", "pcie")
    if kind is not None:
        kept = {k: value for k, value in inherited["scale_up"].items() if k not in KINDS_OF or str(kind) in KINDS_OF[k]}
        inherited = {**inherited, "scale_up": kept}
    if slot is not None:
        inherited = {**inherited, "host": {k: value for k, value in inherited["host"].items() if k != "effective"}}
    return of_fewer_superchips(inherited, _changed_value(inherited, overrides, "gpus", "count"))


def _changed_value(inherited: Mapping[str, Any], overrides: Mapping[str, Any], part: str, key: str) -> object | None:
    """Return `overrides[part][key]` if it differs from an inherited value; None if they are equal or either is not set."""
    old, new = inherited.get(part), overrides.get(part)
    if not isinstance(old, dict) or not isinstance(new, dict):
        return None
    value = new.get(key)
    return None if value == old.get(key, value) else value


def deep_merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with values replaced by those of `override`, recursively in mappings."""
    merged = dict(base)
    for key, value in override.items():
        old = merged.get(key)
        merged[key] = deep_merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _gpu(node: Node, document: Document, at: Loc) -> Gpu:
    """Return the GPU of a node type, with the clock and speed that the file sets. Raises ConfigError for an unknown GPU."""
    try:
        gpu = gpus.load(node.gpus.model, Path(document.path).parent)
        settings = {
            key: value
            for key in ("sustained", "speed", "power_limit")
            if (value := getattr(node.gpus, key)) is not None
        }
        return gpu.model_copy(update=settings).with_possible_limit()
    except ConfigError:
        raise  # at its position in the GPU's file
    except ValueError as error:
        raise document.error((*at, "gpus"), f"gpus.{error}") from error
    except InputError as error:
        raise document.error((*at, "gpus", "model"), f"gpus.model: {error}") from error


def _check_nics(cluster: NodeSpecs, nodes: int) -> None:
    """Raise ConfigError if several `nodes` have no NICs, or NICs outnumber the GPUs or are faster than their PCIe slots."""
    nics, host, at = cluster.node.nics, cluster.node.host, (*cluster.at, "nics")
    if nics is None:
        if nodes > 1:
            raise cluster.error(at, "nics is missing; several nodes need NICs, add nics: {count, rate}")
        return
    if nics.count > cluster.node.gpus.count:
        few = f"{nics.count} NICs for {cluster.node.gpus.count} GPUs; write fewer, each with the rate of those it stands for"
        raise cluster.error((*at, "count"), f"nics.count: {few}")
    if nics.rate > host.raw and nics.attach != "integrated":
        much = f"{nics.rate / 1e9:.4g} GB/s is more than the {host.raw / 1e9:.4g} GB/s of host.pcie {host.pcie}"
        wider = next((slot for slot in wider_slots(host) if slot.raw >= nics.rate), None)
        remedy = f"write {'.'.join(map(str, cluster.at))}.host.pcie: {wider.pcie} too, or" if wider else "use"
        raise cluster.error((*at, "rate"), f"nics.rate: {much}; {remedy} a slower NIC; rates in bits are Gb/s")
