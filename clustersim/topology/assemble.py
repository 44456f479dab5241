"""Nodes plus a network between their NICs → a Topology.

Links: those inside nodes (`nvlink-up[g]`, `nvlink-down[g]` of GPU g, `pcie-…` in nodes without NVLink, `mesh-…`, `ring-…`),
`nic-up[e]`, `nic-down[e]` of endpoint e, then those of the network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clustersim.arrays import Floats
from clustersim.topology.lattice import Lattice
from clustersim.topology.limits import limited, limits
from clustersim.topology.model import NcclFacts, NodeFacts, Tier, Topology
from clustersim.topology.node import inside
from clustersim.topology.routing import router
from clustersim.topology.specs import Network, Run, Site

_PLAIN = "the switches of this fabric do not add up; write fabric.reduction: sharp, which fat trees and switch have, or drop it"


def assemble(site: Site, kind: str, network: Network | None) -> Topology:
    """Return the topology of `site` whose NICs `network` joins (none: a single node)."""
    inner = inside(site)
    runs = [*inner.runs(), *(_nics(site, network) if network else ()), *(network.runs if network else ())]
    firsts = np.cumsum([0, *(len(run.capacity) for run in runs)])
    latency = np.concatenate([run.latency for run in runs])
    return Topology(
        name=site.name,
        kind=kind,
        gpu=site.gpu,
        nodes=site.nodes,
        gpus_per_node=site.node.gpus.count,
        capacity=np.concatenate([run.capacity for run in runs]),
        latency=latency,
        cables=np.concatenate([run.cables for run in runs]),
        tiers=tuple(Tier(r.name, int(f), len(r.capacity)) for r, f in zip(runs, firsts[:-1], strict=True)),
        counts=_counts(site, network, int(firsts[-1])),
        fanouts=(network.fanouts if network else ()) or (1,),
        launch=site.nccl.launch,
        slowdown=np.ones(site.nodes * site.node.gpus.count),
        node=_facts(site, network),
        router=router(site, inner, network, latency),
        ends=_Ends(site, inner, network),
        reduction=network.reduction if network else "none",
        warnings=tuple(limits(site, network)) if network else (),
    )


def _facts(site: Site, network: Network | None) -> NodeFacts:
    scale_up, nics, host = site.node.scale_up, site.node.nics, site.node.host
    link, joined = scale_up.link or 0.0, scale_up.kind != "none"
    meshed = scale_up.links_per_peer * (site.node.gpus.count - 1)
    links = (meshed if scale_up.kind == "mesh" else scale_up.links_per_gpu) if joined else 0
    return NodeFacts(
        architecture=site.gpu.architecture,
        scale_up=scale_up.kind,
        links=links,
        link=link if joined else 0.0,
        nvlink=links * link * scale_up.payload_efficiency,
        multicast=scale_up.multicast,
        cpu=host.cpu,
        pcie=host.usable,
        nics=site.nics,
        nic_line=nics.rate if nics else 0.0,
        nic=float(np.min(np.minimum(site.nic_rate, network.rate))) if network else 0.0,
        nic_of=tuple(site.nic_of.tolist()),
        net_latency=nics.latency if nics else 0.0,
        rails=network.rails if network else 1,
        nccl=_nccl(site, network),
        wire=float(np.mean(np.minimum(site.nic_line, network.rate))) if network else 0.0,
    )


def _nccl(site: Site, network: Network | None) -> NcclFacts:
    spec, sharp = site.nccl, network is not None and network.reduction == "sharp"
    if network and not sharp and spec.collnet and "collnet" in spec.model_fields_set:
        raise site.error(("nccl", "collnet"), f"nccl.collnet: {_PLAIN}")
    launch = spec.launch if "launch" in spec.model_fields_set else None
    return NcclFacts(spec.version, spec.algo, spec.proto, spec.collnet and sharp, launch, spec.nvls)


def _nics(site: Site, network: Network) -> tuple[Run, Run]:
    nics = site.node.nics
    delay = (nics.latency if nics else 0.0) / 2 + network.delay
    return _pair("nic", site.endpoints, np.minimum(site.nic_rate, network.rate), delay, 1)


def _pair(name: str, n: int, rate: Floats | float, delay: Floats | float, cables: int) -> tuple[Run, Run]:
    arrays = [np.array(np.broadcast_to(np.asarray(x, np.float64), n)) for x in (rate, delay, cables)]
    return Run(f"{name}-up", *arrays), Run(f"{name}-down", *(a.copy() for a in arrays))


def _counts(site: Site, network: Network | None, links: int) -> dict[str, float]:
    gpus = site.nodes * site.node.gpus.count
    head = {"nodes": site.nodes, "gpus": gpus, "nics": site.endpoints}
    power = {"power": site.nodes * site.node.power.max} if site.node.power else {}
    return {**head, **(limited(site, network) if network else {}), "links": links, **power}


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """The two ends of a link by name."""

    site: Site
    inner: Lattice
    network: Network | None

    def __call__(self, link: int) -> tuple[str, str]:
        first = self.inner.firsts[-1]
        if link < first:
            return self.inner.ends(link)
        if self.network is None:
            raise IndexError(f"link {link} of {first}")
        link -= first
        if link < 2 * self.site.endpoints:
            nic = link % self.site.endpoints
            pair = f"nic[{nic}]", self.network.port(nic)
            return pair if link < self.site.endpoints else pair[::-1]
        return self.network.ends(link - 2 * self.site.endpoints)
