"""The same cluster with every cable a link of its own, for pictures and exports: adaptive routing bundles them."""

from __future__ import annotations

from clustersim.config.yaml import Document
from clustersim.convert.astra_sim import is_astra
from clustersim.topology.build import build, deep_merge
from clustersim.topology.model import Topology

_TREES = frozenset({"fat_tree", "rail_optimized", "leaf_spine", "rail_only", "dragonfly_plus"})


def cabled(document: Document) -> Topology:
    """Return the topology of a file with one link a cable; faults of bundles are left out, as their numbers mean other links.

    Raises ConfigError as `build` does.
    """
    fabric = {} if is_astra(document) else document.data.get("fabric") or {}
    routing = fabric.get("routing") or {}
    build(document)
    if fabric.get("kind") not in _TREES or routing.get("mode", "adaptive") != "adaptive":
        return build(document)
    data = deep_merge(document.data, {"fabric": {"routing": {"mode": "dmodk"}}})
    data["faults"] = [f for f in data.get("faults") or [] if not _bundle(f.get("link"))]
    return build(Document(document.path, data, document.positions))


def _bundle(link: str | None) -> bool:
    return link is not None and not link.startswith(("nic", "nvlink", "pcie", "port", "mesh", "ring"))
