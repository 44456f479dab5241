"""A topology's file with values replaced by dotted key: `cluster.nodes`, `fabric.tiers.0.radix`, `cluster.node.nics.rate`.

Two keys are shortcuts. `cluster.gpu` means the shipped node type with this GPU. `cluster.nic` means the line rate of every NIC,
and of the fabric's cables if it has a rate. In a cluster of several node types, `cluster.pools.0.node` is the type of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from pydantic_core import ErrorDetails

from clustersim.config.fields import Section, validate, validate_partly
from clustersim.config.overrides import (
    Overridden,
    Overrides,
    SourcePlace,
    of_topology,
    scalar,
    section_of,
    with_values,
)
from clustersim.config.topology import Node, TopologySpec
from clustersim.config.yaml import Document, Loc, read_packaged
from clustersim.errors import InputError, UnknownNameError, suggest
from clustersim.hardware import gpus

NODE: Loc = ("cluster", "node")
"""Position of the type of all nodes."""
_GPU_ALONE = "cluster.gpu: only the GPU changes; the file's links, host and NICs stay; cluster.node replaces them too"
NO_SECTION = ("dict_type", "list_type", "model_type", "tuple_type")
"""Types of pydantic's errors for values that are not mappings or lists."""
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
    sections = {key for key in overrides if "." not in key}
    whole_sections = {key: overrides[key] for key in overrides if key in sections}
    changed = _with(document, whole_sections, from_ or {})
    validate_partly(TopologySpec, changed, _is_shape_error)
    return _with(changed, {key: overrides[key] for key in overrides if key not in sections}, from_ or {})


def _is_shape_error(detail: ErrorDetails) -> bool:
    """Return whether an error is about a section or list that keys reach into, and not about a value, which may be replaced."""
    kind, loc = detail["type"], detail["loc"]
    if detail["input"] is None:  # keys fill an empty section
        return False
    return loc[0] in ("cluster", "fabric", "nodes") and (
        kind in NO_SECTION or (kind == "value_error" and loc[-1] == "node")
    )


def _with(document: Document, overrides: Overrides, from_: Mapping[str, SourcePlace]) -> Overridden:
    """Return a document with values replaced, and their sources recorded."""
    replacements = [
        (*entry, key) for key, raw in overrides.items() for entry in _targets(document.data, key, scalar(key, raw))
    ]
    changed = with_values(document, replacements, from_)
    alone = (_GPU_ALONE,) if "cluster.gpu" in overrides and (*NODE, "gpus", "model") in changed.overrides else ()
    return replace(changed, notes=(*changed.notes, *alone))


def _targets(data: Section, key: str, value: object) -> list[tuple[Loc, object]]:
    """Return the (position, value) pairs that a key and its value replace in a topology with these sections."""
    if key == "cluster.gpu":
        return _with_gpu(data, str(value))
    if key == "cluster.nic":
        cables = [(("fabric", "link", "rate"), value)] if "rate" in section_of(data, "fabric", "link") else []
        pools = section_of(data, "cluster").get("pools")
        nodes = [("cluster", "pools", i, "node") for i in range(len(pools))] if isinstance(pools, list) else [NODE]
        return [*(((*node, "nics", "rate"), value) for node in nodes), *cables]
    return [(tuple(key.split(".")), value)]


def _with_gpu(data: Section, gpu: str) -> list[tuple[Loc, object]]:
    """Return the shipped node of a GPU instead of the file's; or below it, if the file leaves the GPU open.

    Only the GPU changes where links are listed, as they name GPUs and NICs of the node, here or in another tool's file.
    """
    node = section_of(data, "cluster").get("node")
    node_keys = section_of(data, "nodes", node) if isinstance(node, str) else section_of(data, "cluster", "node")
    named, inner = node_keys.get("gpus"), node_keys.get("scale_up")
    foreign = str(node_keys.get("extends", "")).endswith((".xml", ".txt"))
    cables = isinstance(named, dict) and section_of(data, "fabric").get("kind") == "explicit"
    if not foreign and not cables and not (isinstance(inner, dict) and "pairs" in inner):
        if "extends" in node_keys or not isinstance(named, dict) or "model" in named:
            return [(NODE, node_with(gpu))]
        with suppress(UnknownNameError):
            return [((*NODE, "extends"), node_with(gpu))]
    return [((*NODE, "gpus", "model"), gpus.load(gpu).name)]


def of_fewer_superchips(node: Section, count: object) -> Section:
    """Return a node's keys for another number of GPUs, if any; Grace's memory and cores, and a rack's power, go with the GPUs."""
    host, power, old = section_of(node, "host"), section_of(node, "power"), section_of(node, "gpus").get("count")
    grace = host.get("cpu") == "arm" and "c2c" in host
    if not (grace and isinstance(count, int) and isinstance(old, int) and min(count, old) > 0):
        return node
    host = {k: _times(v, count / old) if k in ("memory", "memory_bandwidth", "cores") else v for k, v in host.items()}
    power = {k: _times(v, count / old) if k == "max" else v for k, v in power.items()}
    return {**node, "host": host, **({"power": power} if power else {})}


def _times(written: object, share: float) -> object:
    """Return a number, or a quantity such as `17.3TB`, times `share`."""
    if isinstance(written, int):
        return round(written * share)
    return re.sub(r"^\d+(\.\d+)?", lambda number: f"{float(number[0]) * share:g}", str(written))


def presets() -> dict[str, Path]:
    """Return {name: file} of the shipped node types."""
    return {path.stem: path for path in sorted(PRESETS.glob("*.yaml"))}


@cache
def preset(name: str) -> dict[str, object]:
    """Return the keys of a shipped node type as in its file. name: one of `presets()`."""
    return read_packaged(PRESETS / f"{name}.yaml").data


@cache
def preset_node(name: str) -> Node:
    """Return a shipped node type, validated. name: one of `presets()`."""
    return validate(Node, read_packaged(PRESETS / f"{name}.yaml"))


@cache
def nodes_by_gpu() -> dict[str, str]:
    """Return {GPU: shipped node type}; among several, the one with the fastest NICs in total, then the most links."""
    shipped = {name: Node.model_validate(preset(name)) for name in presets()}
    rates = {name: n.nics.count * n.nics.rate * n.nics.efficiency if n.nics else 0.0 for name, n in shipped.items()}
    order = sorted(shipped, key=lambda name: (rates[name], shipped[name].scale_up.links_per_gpu, name))
    return {shipped[name].gpus.model: name for name in order}


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
