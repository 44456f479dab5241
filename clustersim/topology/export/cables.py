"""The same cluster with every cable a link of its own, for pictures and exports: adaptive routing bundles them."""

from __future__ import annotations

from clustersim.config.yaml import Document
from clustersim.convert.astra_sim import is_astra
from clustersim.errors import ConfigError
from clustersim.topology.build import build, deep_merge
from clustersim.topology.model import Topology

BUNDLES = "adaptive"
"""The routing that spreads packets over cables evenly, so that these are one link; with `dmodk` each is a link of its own."""


def cabled(document: Document) -> Topology:
    """Return the topology of a file with one link a cable; faults of bundles are left out, as their numbers mean other links.

    Raises ConfigError as `build` does.
    """
    if is_astra(document) or ((document.data.get("fabric") or {}).get("routing") or {}).get("mode", BUNDLES) != BUNDLES:
        return build(document)
    data = deep_merge(document.data, {"fabric": {"routing": {"mode": "dmodk"}}})
    data["faults"] = [f for f in data.get("faults") or [] if not _bundle(f.get("link"))]
    try:
        return build(Document(document.path, data, document.positions))
    except ConfigError:
        return build(document)  # of a kind that has no such routing and bundles nothing, or wrong anyway


def _bundle(link: str | None) -> bool:
    return link is not None and not link.startswith(("nic", "nvlink", "pcie", "port", "mesh", "ring"))
