"""Links between GPUs and the memory of their hosts, which a cluster gets if jobs offload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np

from clustersim.arrays import Floats, Ints
from clustersim.config.evidence import Declared
from clustersim.errors import InputError
from clustersim.hardware.constants import PCIE_LATENCY
from clustersim.topology.model import HostFacts, HostRoutes, LinkTier, Topology

REACHED: Annotated[float, Declared(chosen_on="copies of eight GPUs at once, and STREAM on such CPUs")] = 0.8
"""Share of the datasheet bandwidth that copies reach in a CPU's memory."""
UPDATED: Annotated[float, Declared(chosen_on="two publishers' updates")] = 0.5
"""Share of the datasheet bandwidth that an optimizer on the CPU reaches: 1 billion parameters in 0.22 to 0.26 s on a DGX-2 (arXiv
2101.06840, table 4), and 30 billion in about 3.5 s on two Xeons with DDR5 (PrimeIntellect-ai/prime-rl PR 3234)."""
CORE: Annotated[float, Declared("B/s")] = 10e9
"""Bytes/s that one core reads and writes: 10 to 14 GB/s in STREAM on one core of a Xeon."""


def with_host_links(topology: Topology) -> Topology:
    """Return the cluster with links between GPUs and the memory of their hosts. Raises InputError if a host is not known.

    Where GPUs reach each other over PCIe, copies to the host use the same links.
    """
    return topology.cache.once("hosted", lambda: _with_host_links(topology)) if topology.hosts is None else topology


def _with_host_links(topology: Topology) -> Topology:
    """Return the topology with new links between each GPU's slot and the memory of its host, numbered after all others."""
    node, local = topology.numbering.split(np.arange(topology.gpus))
    facts = _host_facts(topology, topology.numbering.first[:-1])
    first = local % np.array([host.shared for host in facts])[node] == 0  # number of GPUs per slot
    slot, lowest = np.cumsum(first) - 1, len(topology.capacity)
    added = [REACHED * np.array([host.bandwidth for host in facts])]
    tiers, routes = [LinkTier("host-memory", lowest, topology.nodes)], []
    owner, new_links, names = np.flatnonzero(first), topology.nodes, {tier.name: tier for tier in topology.tiers}
    for way in ("up", "down"):
        pcie = names.get(f"pcie-{way}")
        if pcie and pcie.links == topology.gpus:
            slots = names.get(f"slot-{way}")
            routes.append([pcie.first + np.arange(topology.gpus), *([slots.first + slot] if slots else [])])
            continue
        tiers.append(LinkTier(f"host-{way}", lowest + new_links, len(owner)))
        routes.append([lowest + new_links + slot])
        added.append(np.array([host.link for host in facts])[node][first])
        new_links += len(owner)

    def ends(link: int) -> tuple[str, str]:
        """Return the names of the start and the end of a link."""
        if link < lowest:
            return topology.ends(link)
        tier = next(tier for tier in reversed(tiers) if tier.first <= link)
        index = link - tier.first
        if tier is tiers[0]:
            return f"host[{index}]", f"host[{index}]"
        pair = f"gpu[{owner[index]}]", f"host[{node[owner[index]]}]"
        return pair if tier.name == "host-up" else pair[::-1]

    up, down = (np.stack([*links, lowest + node], axis=1) for links in routes)
    return replace(
        topology,
        capacity=np.concatenate([topology.capacity, *added]),
        latency=np.concatenate([topology.latency, np.zeros(new_links)]),
        cables=np.concatenate([topology.cables, np.ones(new_links)]),
        tiers=(*topology.tiers, *tiers),
        ends=ends,
        hosts=HostRoutes(up, down, (lowest + node)[:, np.newaxis]),
    )


def _host_facts(topology: Topology, gpus: Ints) -> list[HostFacts]:
    """Return the facts of the host of each of `gpus`. Raises InputError if a node has no known host."""
    optional_hosts = [topology.kinds[kind].facts.host for kind in topology.kind_of(gpus).tolist()]
    if None in optional_hosts:
        raise InputError("offloading needs nodes whose host is known; give the topology as YAML")
    return [host for host in optional_hosts if host]


def host_with_least_room(topology: Topology, gpus: Ints, bytes_per_gpu: Sequence[float]) -> tuple[float, float]:
    """Return (bytes needed, bytes of memory) of the host with the highest use of its memory.

    bytes_per_gpu: bytes of one GPU in each of several equal, consecutive parts of `gpus`.
    """
    node = topology.numbering.node_of(gpus)
    needed = np.bincount(node, np.repeat(bytes_per_gpu, len(gpus) // len(bytes_per_gpu)), topology.nodes)
    available = np.array([host.memory for host in _host_facts(topology, topology.numbering.first[:-1])])
    worst = int((needed / available).argmax())
    return float(needed[worst]), float(available[worst])


def transfer(topology: Topology, way: str, gpus: Ints, threads: int | None) -> tuple[Floats, Floats, Ints, Floats]:
    """Return columns of copies in direction `way` (`up`: to the host, `down`), or of optimizer updates there (`memory`).

    They are: latency in seconds (GPUs,), largest bytes/s (GPUs,), links and bytes on each per byte moved (both: GPUs, links).
    topology: one with host links. threads: CPU threads of an update; None: each GPU's share of its node's cores.
    """
    links: Ints = getattr(topology.hosts, way)[gpus]
    facts = _host_facts(topology, gpus)
    if way != "memory":
        return np.full(len(gpus), PCIE_LATENCY), topology.capacity[links].min(axis=1), links, np.ones(links.shape)
    node_gpus = np.diff(topology.numbering.first)[topology.numbering.node_of(gpus)]
    cores = np.array([threads or host.cores for host in facts]) / (1 if threads else node_gpus)
    rate = np.minimum(CORE * cores, [UPDATED * host.bandwidth for host in facts])
    return np.zeros(len(gpus)), rate, links, np.full(links.shape, REACHED / UPDATED)
