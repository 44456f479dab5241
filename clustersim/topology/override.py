"""A topology's file with values replaced by dotted key: `cluster.nodes`, `fabric.tiers.0.radix`, `cluster.node.nics.rate`.

Two keys are short for others. `cluster.gpu` is the shipped type of node that has this GPU. `cluster.nic` is the line rate of
every NIC, and of the cables of a fabric that says one. Of a cluster of several types of nodes, `cluster.pools.0.node` is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from clustersim.config.fields import validate
from clustersim.config.overrides import Overridden, Overrides, SourcePlace, copied, of_topology, scalar
from clustersim.config.topology import Node
from clustersim.config.yaml import Document, Loc, own
from clustersim.errors import InputError, UnknownNameError, suggest
from clustersim.hardware import gpus
from clustersim.units import parse

PRESETS = Path(__file__).parents[1] / "hardware" / "nodes"


def override(document: Document, overrides: Overrides, from_: Mapping[str, SourcePlace] | None = None) -> Document:
    """Return the document with values replaced; unknown keys fail in validation like those of the file. Raises InputError.

    from_: where values are from, by dotted key; those that are not there are from a command line.
    """
    if not overrides:
        return document
    data = copied(document.data)
    places: dict[Loc, SourcePlace] = {}
    asked: list[tuple[Loc, object, str]] = []
    for key, raw in overrides.items():
        if not of_topology(key):
            raise InputError(f"{key}: is no key of a topology; write one such as cluster.nodes")
        if key.startswith("fabric.") and "fabric" not in data and not overrides.keys() & {"fabric", "fabric.kind"}:
            raise InputError(
                f"{key}: {document.path} has no fabric; give a topology of several nodes, such as rail_optimized"
            )
        asked += [(*one, key) for one in _targets(data, key, scalar(key, raw))]
    for target, value, key in sorted(asked, key=lambda one: len(one[0])):  # a whole node before what it has
        _put(data, target, value, key)
        places[target] = (from_ or {}).get(key, (f"{document.path} (command line)", 0, 0))
    return Overridden(document.path, data, document.positions, places)


def _targets(data: Mapping[str, Any], key: str, value: object) -> list[tuple[Loc, object]]:
    if key == "cluster.gpu":
        return [(("cluster", "node"), node_with(str(value)))]
    if key == "cluster.nic":
        link = (data.get("fabric") or {}).get("link")
        cables = [(("fabric", "link", "rate"), value)] if isinstance(link, Mapping) and "rate" in link else []
        return [*(((*node, "nics", "rate"), value) for node in _nodes(data)), *cables]
    return [(tuple(int(part) if part.isdecimal() else part for part in key.split(".")), value)]


def _nodes(data: Mapping[str, Any]) -> list[Loc]:
    """Return where types of nodes stand: one, or one a pool."""
    pools = (data.get("cluster") or {}).get("pools")
    return (
        [("cluster", "pools", i, "node") for i in range(len(pools))]
        if isinstance(pools, list)
        else [("cluster", "node")]
    )


def _put(data: Any, target: Loc, value: object, key: str) -> None:
    """Put a value in its place: into lists by number, and into a type of node, called by its name, as one that extends it."""
    here, nodes = data, _nodes(data)
    for depth, part in enumerate(target[:-1]):
        if isinstance(here, list):
            here[_index(here, part, key)] = copied(here[_index(here, part, key)])
            here = here[_index(here, part, key)]
            continue
        inner = here.get(part)
        if target[: depth + 1] in nodes and isinstance(inner, str):
            here[part] = {"extends": inner}
        elif isinstance(inner, list):
            here[part] = list(inner)
        elif inner is None:
            here[part] = {}
        elif not isinstance(inner, dict):
            raise InputError(f"{key}: {part} is a single value and has no keys; write a dotted key like cluster.nodes")
        here = here[part]
    last = target[-1]
    here[_index(here, last, key) if isinstance(here, list) else last] = value


def _index(items: list[Any], part: str | int, key: str) -> int:
    if isinstance(part, int) and part < len(items):
        return part
    raise InputError(f"{key}: {part} is no place in a list of {len(items)}; write a number from 0 to {len(items) - 1}")


def presets() -> dict[str, Path]:
    """Return the shipped node types by name."""
    return {path.stem: path for path in sorted(PRESETS.glob("*.yaml"))}


@cache
def preset(name: str) -> dict[str, Any]:
    """Return a shipped node type as it is written."""
    return own(PRESETS / f"{name}.yaml").data


@cache
def preset_node(name: str) -> Node:
    """Return a shipped node type as it is checked."""
    return validate(Node, own(PRESETS / f"{name}.yaml"))


@cache
def nodes_by_gpu() -> dict[str, str]:
    """Return the shipped type of node of each GPU that one has, of several that with the fastest NICs in all."""
    order = sorted(presets(), key=lambda name: (_wire(preset(name)), name))
    return {str(preset(name)["gpus"]["model"]): name for name in order}


def _wire(node: Mapping[str, Any]) -> float:
    nics = node["nics"]
    return float(nics["count"] * parse(nics["rate"], "bandwidth") * nics["efficiency"])


@cache
def node_with(gpu: str) -> str:
    """Return the shipped type of node that has a GPU, or that is called so. Raises UnknownNameError when there is none."""
    if gpu in presets():
        return gpu
    wanted, has = gpus.load(gpu).name, nodes_by_gpu()
    if wanted in has:
        return has[wanted]
    own_file = "or write nodes of your own in a topology's file"
    raise UnknownNameError(f"cluster.gpu: no shipped type of node has {wanted}; {suggest(wanted, has)}, {own_file}")
