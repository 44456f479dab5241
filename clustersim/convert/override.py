"""A topology's file with values replaced by dotted key: `cluster.nodes`, `fabric.tiers.0.radix`, `cluster.node.nics.rate`.

Two keys are shortcuts. `cluster.gpu` means the shipped node type with this GPU. `cluster.nic` means the line rate of every NIC,
and of the fabric's cables if it has a rate. In a cluster of several node types, `cluster.pools.0.node` is the type of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

from clustersim.config.fields import Section, validate
from clustersim.config.overrides import Overridden, Overrides, SourcePlace, copied, of_topology, scalar
from clustersim.config.topology import Node
from clustersim.config.yaml import Document, Loc, read_packaged
from clustersim.convert.topology_shape import TopologyShape
from clustersim.errors import InputError, UnknownNameError, suggest
from clustersim.hardware import gpus

NODE: Loc = ("cluster", "node")
"""Position of the type of all nodes."""
SectionOrList = Section | list[object]
"""A section of a file, or a list in it."""
_PLACE = re.compile(r"[0-9]{1,9}")
_GPU_ALONE = "cluster.gpu: only the GPU changes; the file's links, host and NICs stay; cluster.node replaces them too"
PRESETS = Path(__file__).parents[1] / "hardware" / "nodes"
"""Folder of the shipped node types."""


def override(document: Document, overrides: Overrides, from_: Mapping[str, SourcePlace] | None = None) -> Document:
    """Return the document with values replaced by dotted key; validating the result finds unknown keys.

    from_: sources of values by dotted key; all others are from a command line. Raises InputError for keys of a workload.
    """
    if not overrides:
        return document
    has_fabric = "fabric" in document.data or {"fabric", "fabric.kind"} & overrides.keys()
    for key in overrides:
        if not of_topology(key):
            raise InputError(f"{key}: not a key of a topology; write one such as cluster.nodes")
        if key.startswith("fabric.") and not has_fabric:
            why = f"{document.path} has no fabric; give a topology of several nodes, such as rail_optimized"
            raise InputError(f"{key}: {why}")
    changed = Overridden(document.path, copied(document.data), document.positions, {}, notes=document.notes)
    sections = {key for key in overrides if "." not in key}
    whole_sections = {key: overrides[key] for key in overrides if key in sections}
    changed = _with(changed, whole_sections, from_ or {}, TopologyShape())
    shape = validate(TopologyShape, changed)
    return _with(changed, {key: overrides[key] for key in overrides if key not in sections}, from_ or {}, shape)


def _with(
    document: Overridden, overrides: Overrides, from_: Mapping[str, SourcePlace], shape: TopologyShape
) -> Overridden:
    """Return a document of a known shape with values replaced, and their sources recorded."""
    places: dict[Loc, SourcePlace] = {}
    replacements = [(*entry, key) for key, raw in overrides.items() for entry in _targets(shape, key, scalar(key, raw))]
    for target, value, key in sorted(replacements, key=lambda entry: len(entry[0])):  # a whole node before what it has
        _put(document.data, target, value, key)
        places[target] = from_.get(key, (f"{document.path} (command line)", 0, 0))
    alone = (_GPU_ALONE,) if "cluster.gpu" in overrides and (*NODE, "gpus", "model") in places else ()
    return replace(document, overrides={**document.overrides, **places}, notes=(*document.notes, *alone))


def _targets(shape: TopologyShape, key: str, value: object) -> list[tuple[Loc, object]]:
    """Return the (position, value) pairs that a key and its value replace in a document of that shape."""
    if key == "cluster.gpu":
        return _with_gpu(shape, str(value))
    if key == "cluster.nic":
        link = (shape.fabric or {}).get("link")
        cables = [(("fabric", "link", "rate"), value)] if isinstance(link, Mapping) and "rate" in link else []
        pools = shape.cluster.pools
        nodes = [NODE] if pools is None else [("cluster", "pools", i, "node") for i in range(len(pools))]
        return [*(((*node, "nics", "rate"), value) for node in nodes), *cables]
    return [(tuple(int(part) if _PLACE.fullmatch(part) else part for part in key.split(".")), value)]


def _with_gpu(shape: TopologyShape, gpu: str) -> list[tuple[Loc, object]]:
    """Return the shipped node of a GPU instead of the file's; or below it, if the file leaves the GPU open.

    Only the GPU changes where links are listed, as they name GPUs and NICs of the node, here or in another tool's file.
    """
    node = shape.cluster.node
    written = (shape.nodes or {}).get(node) if isinstance(node, str) else node
    node_keys = written if isinstance(written, dict) else {}
    named, inner = node_keys.get("gpus"), node_keys.get("scale_up")
    foreign = str(node_keys.get("extends", "")).endswith((".xml", ".txt"))
    cables = isinstance(named, dict) and (shape.fabric or {}).get("kind") == "explicit"
    if not foreign and not cables and not (isinstance(inner, dict) and "pairs" in inner):
        if "extends" in node_keys or not isinstance(named, dict) or "model" in named:
            return [(NODE, node_with(gpu))]
        with suppress(UnknownNameError):
            return [((*NODE, "extends"), node_with(gpu))]
    return [((*NODE, "gpus", "model"), gpus.load(gpu).name)]


def _put(data: Section, target: Loc, value: object, key: str) -> None:
    """Set the value at a position. A number is an index of a list; a named node type becomes a section that extends it."""
    here: SectionOrList = data
    for depth, part in enumerate(target[:-1], 1):
        if isinstance(here, list):
            at = _index(here, part, key)
            inner = here[at] = _section(here[at], target[:depth], key)
        else:
            inner = here[str(part)] = _section(here.get(str(part)), target[:depth], key)
        here = inner
    last = target[-1]
    if isinstance(here, list):
        here[_index(here, last, key)] = value
    else:
        here[str(last)] = value


def _section(current: object, place: Loc, key: str) -> SectionOrList:
    """Return a copy of the section or list `current`; a node's name becomes a section. Raises InputError for another value."""
    if isinstance(current, str) and place[0] == "cluster" and place[-1] == "node":
        return {"extends": current}
    if isinstance(current, dict | list | None):
        return copy(current) if current is not None else {}
    raise InputError(f"{key}: {place[-1]} is a single value and has no keys; write a dotted key like cluster.nodes")


def _index(items: list[object], part: str | int, key: str) -> int:
    """Return `part` of a key as an index of a list. Raises InputError if the list does not have it."""
    if isinstance(part, int) and part < len(items):
        return part
    raise InputError(f"{key}: {part} must be an index of a list of {len(items)}; write 0 to {len(items) - 1}")


def presets() -> dict[str, Path]:
    """Return {name: file} of the shipped node types."""
    return {path.stem: path for path in sorted(PRESETS.glob("*.yaml"))}


@cache
def preset(name: str) -> dict[str, object]:
    """Return a shipped node type as in its file."""
    return read_packaged(PRESETS / f"{name}.yaml").data


@cache
def preset_node(name: str) -> Node:
    """Return a shipped node type, validated."""
    return validate(Node, read_packaged(PRESETS / f"{name}.yaml"))


@cache
def nodes_by_gpu() -> dict[str, str]:
    """Return {GPU: shipped node type}; among several, the one with the fastest NICs in total, then the most links."""
    shipped = {name: Node.model_validate(preset(name)) for name in presets()}
    order = sorted((_wire(node), node.scale_up.links_per_gpu, name) for name, node in shipped.items())
    return {shipped[name].gpus.model: name for *_, name in order}


def _wire(node: Node) -> float:
    """Return bytes/s of all NICs of a node together, 0 without NICs."""
    return node.nics.count * node.nics.rate * node.nics.efficiency if node.nics else 0.0


@cache
def node_with(gpu: str) -> str:
    """Return the shipped node type with a GPU, or with that name. Raises UnknownNameError if there is none."""
    if gpu in presets():
        return gpu
    wanted, has = gpus.load(gpu).name, nodes_by_gpu()
    if wanted in has:
        return has[wanted]
    own_file = "or write nodes of your own in a topology's file"
    raise UnknownNameError(f"cluster.gpu: no shipped type of node has {wanted}; {suggest(wanted, has)}, {own_file}")
