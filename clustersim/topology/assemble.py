"""Nodes plus a network between their NICs → a Topology.

Links: `nvlink-up[g]`, `nvlink-down[g]` of GPU g (`pcie-…` in nodes without NVLink), `nic-up[e]`, `nic-down[e]` of endpoint e,
then those of the network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clustersim.config.topology import Nccl
from clustersim.topology.model import Floats, NcclFacts, NodeFacts, Tier, Topology
from clustersim.topology.router import router
from clustersim.topology.site import Network, Run, Site

NVLINK_LATENCY = 3.4e-6  # NCCL 2.30 tuning.cc, hwLat of ring/Simple
PCIE_LATENCY = 5.7e-6  # likewise


def assemble(site: Site, kind: str, network: Network | None) -> Topology:
    """Return the topology of `site` whose NICs `network` joins (none: a single node)."""
    runs = [*_inside(site), *(_nics(site, network) if network else ()), *(network.runs if network else ())]
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
        router=router(site, network, latency),
        ends=_Ends(site, network),
    )


def _facts(site: Site, network: Network | None) -> NodeFacts:
    scale_up, nics, host = site.node.scale_up, site.node.nics, site.node.host
    link, joined = scale_up.link or 0.0, scale_up.kind != "none"
    return NodeFacts(
        architecture=site.gpu.architecture,
        scale_up=scale_up.kind,
        links=scale_up.links_per_gpu if joined else 0,
        link=link if joined else 0.0,
        nvlink=scale_up.links_per_gpu * link * scale_up.payload_efficiency if joined else 0.0,
        multicast=scale_up.multicast,
        cpu=host.cpu,
        pcie=host.usable,
        nics=site.nics,
        nic_line=nics.rate if nics else 0.0,
        nic=float(np.min(np.minimum(site.nic_rate, network.rate))) if network else 0.0,
        nic_of=tuple(site.nic_of.tolist()),
        net_latency=nics.latency if nics else 0.0,
        rails=network.rails if network else 1,
        nccl=_nccl(site.nccl),
    )


def _nccl(spec: Nccl) -> NcclFacts:
    launch = spec.launch if "launch" in spec.model_fields_set else None
    return NcclFacts(spec.version, spec.algo, spec.proto, spec.collnet, launch)


def _inside(site: Site) -> tuple[Run, Run]:
    scale_up, host = site.node.scale_up, site.node.host
    if scale_up.kind == "none":
        name, rate, delay = "pcie", host.usable, PCIE_LATENCY
    else:
        rate = scale_up.links_per_gpu * (scale_up.link or 0.0) * scale_up.payload_efficiency
        name, delay = "nvlink", NVLINK_LATENCY
    delay = delay if scale_up.latency is None else scale_up.latency
    return _pair(name, site.nodes * site.node.gpus.count, rate, delay / 2, scale_up.links_per_gpu)


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
    return {**head, **(network.counts if network else {}), "links": links, **power}


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """The two ends of a link by name."""

    site: Site
    network: Network | None

    def __call__(self, link: int) -> tuple[str, str]:
        gpus = self.site.nodes * self.site.node.gpus.count
        if link < 2 * gpus:
            inner = "pcie" if self.site.node.scale_up.kind == "none" else self.site.node.scale_up.kind
            gpu = link % gpus
            return _turned(f"gpu[{gpu}]", f"{inner}[{gpu // self.site.node.gpus.count}]", link < gpus)
        if self.network is None:
            raise IndexError(f"link {link} of {2 * gpus}")
        link -= 2 * gpus
        if link < 2 * self.site.endpoints:
            nic = link % self.site.endpoints
            return _turned(f"nic[{nic}]", self.network.port(nic), link < self.site.endpoints)
        return self.network.ends(link - 2 * self.site.endpoints)


def _turned(a: str, b: str, forward: bool) -> tuple[str, str]:
    return (a, b) if forward else (b, a)
