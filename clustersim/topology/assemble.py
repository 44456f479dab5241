"""Builds a topology from its nodes and fabric, and names rates of its file that something else limits, such as cables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from clustersim.arrays import Floats
from clustersim.config.topology import EFA_PLUGIN, wider_slots
from clustersim.topology.lattice import Lattice
from clustersim.topology.model import HostFacts, LinkTier, NcclFacts, NodeFacts, Pool, Topology, pool_facts
from clustersim.topology.node import inner_network
from clustersim.topology.node_graph import NodeGraph, SideBySide, most_links
from clustersim.topology.routing import router
from clustersim.topology.specs import BuiltFabric, LinkRange, NodeSpecs, both_ways

_SAME = 1.0 + 1e-9
NICS = "cluster.node.nics.rate"
_PLAIN = "the switches of this fabric do not add up; write fabric.reduction: sharp, which fat trees and switch have, or drop it"


def limits(cluster: NodeSpecs, network: BuiltFabric) -> Iterator[str]:
    """Yield a sentence for each rate that cannot be used in full, with the keys of that rate and of its limit."""
    fastest = max(cluster.parts, key=lambda pool: pool.nic_line)  # slower types of nodes are intended
    nics, line, wire = fastest.node.nics, fastest.nic_line, _wire(network)
    if nics is None:
        return
    if line < nics.rate:
        host, at = fastest.node.host, ".".join(map(str, (*fastest.at, "host")))
        cut = f"{at}.effective" if host.effective else f"{at}.pcie"
        wider = next((f" without a wider slot ({at}.pcie: {slot.pcie})" for slot in wider_slots(host)), "")
        yield (
            f"{NICS}: NICs of {_rate(nics.rate)} get {_rate(line)} through their PCIe slots ({cut}); a faster NIC "
            f"changes nothing{wider}"
        )
    if wire > max(line, nics.rate) * _SAME:
        yield (
            f"{network.key}: cables of {_rate(wire)} end at NICs of {_rate(line)} ({NICS}), and no node sends faster than its "
            f"NICs; raise {NICS} to use them"
        )
    slowest = float(np.max(network.rate) if cluster.pools else np.min(network.rate))
    if line > slowest * _SAME:
        yield f"{NICS}: NICs of {_rate(line)} get {_rate(slowest)} from their cables ({network.key}); raise that to use them"


def limited_counts(cluster: NodeSpecs, network: BuiltFabric) -> Mapping[str, float]:
    """Return `network.counts`. If cables are faster than NICs, limit `bisection` to the rate of half of the NICs (bytes/s).

    `oversubscription` is then the rate of these NICs over that bisection, at least 1.
    """
    counts = network.counts
    line = cluster.by_endpoint(lambda pool: pool.nic_line)
    if not counts.get("bisection") or not _wire(network) > np.min(line) * _SAME:
        return counts
    endpoint_rates = np.broadcast_to(np.minimum(line, network.rate), cluster.endpoints)
    half_rate, bisection = float(endpoint_rates.sum()) / 2, counts["bisection"]
    return {**counts, "bisection": min(half_rate, bisection), "oversubscription": max(1.0, half_rate / bisection)}


def _wire(network: BuiltFabric) -> float:
    """Return the bytes/s of the fastest way into a NIC: all its cables together, or in a torus or grid the fastest cable."""
    rate = float(np.max(network.rate))
    if np.isfinite(rate):
        return rate
    rates = (float(np.max(part.capacity / part.cables)) for part in network.ranges if len(part.capacity))
    return max(rates, default=0.0)


def _rate(value: float) -> str:
    """Return a rate in bytes/s as text in Gb/s."""
    return f"{value * 8 / 1e9:.4g} Gb/s"


def assemble(cluster: NodeSpecs, kind: str, network: BuiltFabric | None) -> Topology:
    """Return the topology of `cluster`, with NICs connected by `network` of a `kind` of fabric (None: a single node)."""
    (inner, inner_ranges), numbering = inner_network(cluster), cluster.numbering()
    ranges = [*inner_ranges, *(_nics(cluster, network) if network else ()), *(network.ranges if network else ())]
    firsts = np.cumsum([0, *(len(part.capacity) for part in ranges)])
    latency = np.concatenate([part.latency for part in ranges])
    types = list(_pools(cluster, network))
    pools = [pool for index, pool in enumerate(types) if types.index(pool) == index]
    mixed_pools, gpus = len(pools) > 1, [pool.nodes * pool.node.gpus.count for pool in cluster.parts]
    return Topology(
        name=cluster.name,
        kind=kind,
        gpu=cluster.gpu,
        numbering=numbering,
        capacity=np.concatenate([part.capacity for part in ranges]),
        latency=latency,
        cables=np.concatenate([part.cables for part in ranges]),
        tiers=tuple(LinkTier(r.name, int(f), len(r.capacity)) for r, f in zip(ranges, firsts[:-1], strict=True)),
        counts=_counts(cluster, network, int(firsts[-1])),
        fanouts=(network.fanouts if network else ()) or (1,),
        launch=cluster.nccl.launch,
        slowdown=np.ones(numbering.gpus),
        node=pool_facts([pool.facts for pool in pools]),
        router=router(numbering, inner, network, latency),
        ends=_ClusterEnds(cluster, inner, network, inner.firsts[-1]),
        host_slowdown=cluster.node.host.slowdown,
        jitter=cluster.jitter,
        pools=tuple(pools) if mixed_pools else (),
        pool=np.repeat([pools.index(pool) for pool in types], gpus) if mixed_pools else None,
        reduction=network.reduction if network else "none",
        notes=cluster.document.notes,
        warnings=(*network.warnings, *limits(cluster, network)) if network else (),
    )


def _pools(cluster: NodeSpecs, network: BuiltFabric | None) -> Iterator[Pool]:
    """Yield GPU, NCCL figures and host slowdown of each node type, in the order of `cluster.parts`."""
    rate, first_nic = network.rate if network else np.inf, 0
    for pool in cluster.parts:
        end_nic = first_nic + pool.endpoints
        cables = rate[first_nic:end_nic] if isinstance(rate, np.ndarray) else rate
        yield Pool(pool.gpu, _facts(pool, network, cables), pool.node.host.slowdown)
        first_nic = end_nic


def _facts(cluster: NodeSpecs, network: BuiltFabric | None, rate: Floats | float) -> NodeFacts:
    """Return NCCL's figures for nodes of one type whose cables carry `rate` bytes/s, one for all or one per endpoint."""
    scale_up, nics, host = cluster.node.scale_up, cluster.node.nics, cluster.node.host
    link = scale_up.link or max((rate for *_, rate in scale_up.pairs), default=0.0)
    connected = scale_up.kind != "none"
    links = most_links(scale_up, cluster.node.gpus.count)
    return NodeFacts(
        architecture=cluster.gpu.architecture,
        scale_up=scale_up.kind,
        pairs=scale_up.pairs,
        island=scale_up.island or 0,
        links=links,
        link=link if connected else 0.0,
        nvlink=links * link * scale_up.payload_efficiency,
        multicast=scale_up.multicast,
        cpu=host.cpu,
        pcie=host.usable,
        nics=cluster.nics,
        nic_line=nics.rate if nics else 0.0,
        nic=float(np.min(np.minimum(cluster.nic_rate, rate))) if network else 0.0,
        net_latency=nics.latency if nics else 0.0,
        plugin_latency=EFA_PLUGIN if nics and nics.transport.startswith("efa") else 0.0,
        rails=network.rails if network else 1,
        nccl=_nccl(cluster, network),
        wire=float(np.mean(np.minimum(cluster.nic_line, rate))) if network else 0.0,
        tree_chunk=nics.tree_chunk if nics else None,
        host=HostFacts(host.c2c or host.usable, host.gpus_per_switch or 1, *host.figures),
    )


def _nccl(cluster: NodeSpecs, network: BuiltFabric | None) -> NcclFacts:
    """Return NCCL's settings on this fabric (None: one node). Raises ConfigError for CollNet without switches that reduce."""
    spec, sharp = cluster.nccl, network is not None and network.reduction == "sharp"
    if network and not sharp and spec.collnet and "collnet" in spec.model_fields_set:
        raise cluster.error(("nccl", "collnet"), f"nccl.collnet: {_PLAIN}")
    launch = spec.launch if "launch" in spec.model_fields_set else None
    used = spec.collnet and sharp
    return NcclFacts(spec.version, spec.algo, spec.proto, used, launch, spec.nvls, spec.slowdown, spec.p2p_chunk)


def _nics(cluster: NodeSpecs, network: BuiltFabric) -> tuple[LinkRange, LinkRange]:
    """Return the links from NICs to the fabric and back, at the lower of NIC and cable rate."""
    latency = cluster.by_endpoint(lambda pool: pool.node.nics.latency if pool.node.nics else 0.0)
    rate = cluster.by_endpoint(lambda pool: pool.nic_rate)
    delay = latency / 2 + network.delay  # a path crosses two NICs, but has their latency only once
    return both_ways("nic", cluster.endpoints, np.minimum(rate, network.rate), delay)


def _counts(cluster: NodeSpecs, network: BuiltFabric | None, links: int) -> dict[str, float]:
    """Return {name: number}: `nodes`, `gpus`, `nics`, `links`, if known `sockets` and `power` (W), and `limited_counts`."""
    totals = {"nodes": cluster.nodes, "gpus": cluster.gpus, "nics": cluster.endpoints}
    pool_powers = [pool.nodes * pool.node.power.max for pool in cluster.parts if pool.node.power]
    power = {"power": math.fsum(pool_powers)} if len(pool_powers) == len(cluster.parts) else {}
    host, pairs = cluster.node.host, cluster.node.scale_up.pairs
    inner = {"cables": sum(n for _, _, n, _ in pairs)} if pairs and not network else {}
    sockets = {"sockets": host.sockets} if host.sockets and cluster.nodes == 1 else {}
    outer = limited_counts(cluster, network) if network else {}
    return {**totals, **inner, **sockets, **outer, "links": links, **power}


@dataclass(frozen=True, slots=True, eq=False)
class _ClusterEnds:
    """Names of the two ends of a link."""

    cluster: NodeSpecs
    inner: Lattice | NodeGraph | SideBySide
    network: BuiltFabric | None
    first: int
    """The first link outside nodes."""

    def __call__(self, link: int) -> tuple[str, str]:
        """Return the names of the start and the end of a link. Raises IndexError for a number beyond the last."""
        if link < self.first:
            return self.inner.ends(link)
        if self.network is None:
            raise IndexError(f"link {link} of {self.first}")
        backward, nic = divmod(link - self.first, self.cluster.endpoints)
        if backward > 1:
            return self.network.ends(link - self.first - 2 * self.cluster.endpoints)
        pair = f"nic[{nic}]", self.network.port(nic)
        return pair[::-1] if backward else pair
