"""ASTRA-sim's network.yml → a topology file.

Dimension 0 becomes the links inside a node, the others a grid between nodes in which every NPU has its own ports, so a path goes
dimension by dimension as in ASTRA-sim (Won et al. 2023). Its GB/s is 2^30 B/s (Common.cc, bw_GBps_to_Bpns).
"""

from __future__ import annotations

import math
from math import prod
from typing import Annotated, Literal

from pydantic import Field

from clustersim.config.fabric import Extent
from clustersim.config.fields import Name, Spec, between, validate
from clustersim.config.yaml import Document, Loc, Position

_INSIDE = {"Ring": "ring", "FullyConnected": "mesh", "Switch": "nvswitch"}
_BETWEEN = {"Ring": "ring", "FullyConnected": "mesh", "Switch": "switch"}
_Rate = Annotated[float, Field(strict=False, gt=0, le=1e6)]
_Delay = Annotated[float, Field(strict=False, ge=0, le=1e12)]


class AstraNetwork(Spec):
    """The network file of ASTRA-sim's analytical model: one entry per dimension, from the inside outwards."""

    topology: Annotated[tuple[Literal["Ring", "FullyConnected", "Switch"], ...], Field(strict=False), between(1, 6)]
    """Kind of network of each dimension."""
    npus_count: Annotated[tuple[Extent, ...], Field(strict=False), between(1, 6)]
    """Number of positions per dimension."""
    bandwidth: Annotated[tuple[_Rate, ...], Field(strict=False), between(1, 6)]
    """GiB/s of each link and direction (ASTRA-sim's GB is 2^30)."""
    latency: Annotated[tuple[_Delay, ...], Field(strict=False), between(1, 6)]
    """Latency of each link in ns."""
    gpu: Name = "h100-sxm"
    """GPU model, which ASTRA-sim leaves out."""


def is_astra(document: Document) -> bool:
    """Return whether a YAML file is ASTRA-sim's."""
    return "npus_count" in document.data or ("topology" in document.data and "cluster" not in document.data)


def translated(document: Document) -> Document:
    """Return the equivalent topology file. Raises ConfigError for errors in the given one."""
    spec = validate(AstraNetwork, document)
    for key, values in (("npus_count", spec.npus_count), ("bandwidth", spec.bandwidth), ("latency", spec.latency)):
        if len(values) != len(spec.topology):
            few = f"{len(values)} values for the {len(spec.topology)} dimensions of `topology`"
            raise document.error((key,), f"{key}: {few}; write one a dimension")
    cluster = {"nodes": prod(spec.npus_count[1:]), "node": _node(spec)}
    data: dict[str, object] = {"cluster": cluster, "nccl": {"launch": "0s"}}
    positions: dict[Loc, Position] = {(): Position(1, 1)}
    if len(spec.topology) > 1:
        columns = zip(spec.topology, spec.npus_count, spec.bandwidth, spec.latency, strict=True)
        dims = [{"kind": _BETWEEN[t], "size": n, "rate": f"{b!r}GiB/s", "latency": f"{d}ns"} for t, n, b, d in columns]
        data["fabric"] = {"kind": "grid", "rails": True, "dims": dims[1:]}
    for loc, key in ((("cluster",), "npus_count"), (("cluster", "node"), "npus_count"), (("fabric",), "topology")):
        positions[loc] = document.positions.get((key,), document.positions[()])
    return Document(document.path, data, positions)


def _node(spec: AstraNetwork) -> dict[str, object]:
    """Return {`gpus`, `scale_up`: links of dimension 0, `nics`: one per GPU with the rates of all other dimensions, if any}."""
    gpus = spec.npus_count[0]
    scale_up: dict[str, object] = {"kind": "none"}
    if gpus > 1:
        kind = _INSIDE[spec.topology[0]]
        delay = spec.latency[0] * (2 if kind == "nvswitch" else 1)  # a crossbar is two links
        scale_up = {"kind": kind, "link": f"{spec.bandwidth[0]!r}GiB/s", "latency": f"{delay}ns"}
    node: dict[str, object] = {"gpus": {"model": spec.gpu, "count": gpus}, "scale_up": scale_up}
    if len(spec.topology) > 1:
        most = math.fsum(_egress(spec, i) for i in range(1, len(spec.topology))) or spec.bandwidth[1]  # one node: any
        node["nics"] = {
            "count": gpus,
            "rate": f"{most!r}GiB/s",
            "attach": "integrated",
            "efficiency": 1.0,
            "latency": "0s",
        }
    return node


def _egress(spec: AstraNetwork, i: int) -> float:
    """Return the GiB/s that an NPU can send into dimension `i` over all its links there."""
    others = spec.npus_count[i] - 1
    links = {"Ring": min(2, others), "FullyConnected": others, "Switch": min(1, others)}
    return spec.bandwidth[i] * links[spec.topology[i]]
