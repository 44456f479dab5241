"""Exports of a topology: as a networkx graph, as GraphML, for ns-3, and with every cable as a separate link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from math import isinf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from clustersim.arrays import Ints
from clustersim.config.yaml import Document
from clustersim.convert.astra_sim import is_astra
from clustersim.errors import ConfigError, InputError
from clustersim.hardware.constants import NVLINK_LATENCY, PCIE_LATENCY
from clustersim.topology.build import build, deep_merge
from clustersim.topology.faults import DEAD
from clustersim.topology.model import Topology
from clustersim.topology.routing import Remaining

if TYPE_CHECKING:
    import networkx as nx

_UNBUNDLED = ("nic", "nvlink", "pcie", "port", "mesh", "ring")
BUNDLES = "adaptive"
"""Routing that spreads packets evenly over parallel cables, which then are one link; with `dmodk` each cable is a link."""
_INNER, _NICS = ("nvlink", "pcie", "mesh", "ring"), ("nic", "ports")
_NVLINK_DELAY, _NIC_DELAY, _SAID = 25e-9, 500e-9, 100e-9


def to_networkx(topology: Topology) -> nx.MultiDiGraph[str]:
    """Return the graph of a small cluster, with one edge per directed link: `link`, `capacity` (B/s), `latency` (s), `cables`.

    Nodes have a `kind`: gpu, nvswitch, nic, leaf, …. A GPU and its NIC are connected both ways by edges without `link`, which
    have no cost: PCIe is already in the NIC's capacity.
    """
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for gpu in gpu_numbers(topology).tolist():
        graph.add_node(f"gpu[{gpu}]", kind="gpu")
    for link in range(len(topology.capacity)):
        start, end = topology.ends(link)
        for name in (start, end):
            graph.add_node(name, kind=name.partition("[")[0])
        figures = {key: float(getattr(topology, key)[link]) for key in ("capacity", "latency", "cables")}
        graph.add_edge(start, end, link=link, **figures)
    if topology.nodes > 1:
        for gpu, nic in zip(gpu_numbers(topology).tolist(), topology.numbering.nic.tolist(), strict=True):
            graph.add_edge(f"gpu[{gpu}]", f"nic[{nic}]", capacity=float("inf"), latency=0.0)
            graph.add_edge(f"nic[{nic}]", f"gpu[{gpu}]", capacity=float("inf"), latency=0.0)
    return graph


def gpu_numbers(topology: Topology) -> Ints:
    """Return the number of each GPU as in the names of links: its number before dead nodes were removed (GPUs,)."""
    router = topology.router
    return router.gpus if isinstance(router, Remaining) else np.arange(topology.gpus)


def with_single_cables(document: Document) -> Topology:
    """Return the topology of a file with one link per cable. Faults of bundles are left out, because link numbers differ.

    Raises ConfigError for an invalid file.
    """
    if is_astra(document) or ((document.data.get("fabric") or {}).get("routing") or {}).get("mode", BUNDLES) != BUNDLES:
        return build(document)
    data = deep_merge(document.data, {"fabric": {"routing": {"mode": "dmodk"}}})
    faults = data.get("faults") or []
    data["faults"] = [fault for fault in faults if (fault.get("link") or "nic").startswith(_UNBUNDLED)]
    try:
        return build(Document(document.path, data, document.positions))
    except ConfigError:
        return build(document)  # a kind without this routing, which bundles nothing, or an invalid file


def graphml(topology: Topology) -> str:
    """Return a GraphML file: vertices with `kind`, an edge per link with `link`, `capacity_bytes_per_s`, `latency_s`, `cables`.

    An edge between a GPU and its NIC has no capacity, because PCIe is included in the NIC's.
    """
    import networkx as nx

    graph = to_networkx(topology)
    for _, _, data in graph.edges(data=True):
        capacity, data["latency_s"] = data.pop("capacity"), data.pop("latency")
        if not isinf(capacity):
            data["capacity_bytes_per_s"] = capacity
    buffer = BytesIO()
    nx.write_graphml(graph, buffer)
    return buffer.getvalue().decode()


class Ns3Link(NamedTuple):
    """A cable: names of its ends, bytes/s, latency in seconds."""

    a: str
    b: str
    rate: float
    delay: float


def ns3(topology: Topology) -> str:
    """Return an ns-3 topology file of a topology with one link per cable (see `with_single_cables`).

    Raises InputError if nodes have different numbers of GPUs.
    """
    if len({*topology.numbering.widths}) > 1:
        raise InputError("ns-3's file has one number of GPUs for all servers, and these nodes differ; write graphml")
    rows = [row for row, count in Counter(ns3_links(topology)).items() for _ in range(count)]  # parallel ones adjacent
    number = {f"gpu[{g}]": i for i, g in enumerate(gpu_numbers(topology).tolist())}
    ends = dict.fromkeys(end for row in rows for end in (row.a, row.b) if end not in number)
    inner = [end for end in ends if end.partition("[")[0] in ("nvswitch", "nvlink", "pcie", "host", "root")]
    switches = list(dict.fromkeys([*inner, *ends]))
    number |= {end: topology.gpus + i for i, end in enumerate(switches)}
    short = topology.gpu.name.split("-")[0]
    kind = (short if short in topology.gpu.aliases else topology.gpu.name).upper()
    head = f"{len(number)} {topology.numbering.widths[-1]} {len(inner)} {len(switches) - len(inner)} {len(rows)} {kind}"
    if topology.node.pairs and not switches and topology.gpu.name == "h100-sxm":
        head = f"{len(number)} 0 {len(rows)}"  # ASTRA-sim's ns-3 format; SimAI's adds servers and their switches
    body = (f"{number[r.a]} {number[r.b]} {r.rate * 8e-9:.10g}Gbps {r.delay * 1e3:.10g}ms 0" for r in rows)
    return "\n".join([head, " ".join(str(number[end]) for end in switches), *body, ""])


def ns3_links(topology: Topology) -> Iterator[Ns3Link]:
    """Yield every live cable once, with NICs merged into the GPUs that own them.

    Latencies that are NCCL's, not the cable's, are replaced by those of a plain NVLink cable or NIC.
    """
    owners = topology.numbering.built.owners().tolist()
    owner = {f"{kind}[{nic}]": gpu for nic, gpu in enumerate(owners) for kind in _NICS}
    alive = {f"gpu[{g}]" for g in gpu_numbers(topology).tolist()}
    for tier in topology.tiers:
        if not tier.name.endswith("-up"):
            continue
        inner = tier.name.split("-")[0] in _INNER
        for link in range(tier.first, tier.first + tier.links):
            a, b = (f"gpu[{owner[end]}]" if end in owner else end for end in topology.ends(link))
            rate, cables = float(topology.capacity[link]), int(topology.cables[link])
            if a == b or any(e.startswith("gpu[") and e not in alive for e in (a, b)) or rate <= DEAD or not cables:
                continue
            delay = float(topology.latency[link])
            if inner and delay in (NVLINK_LATENCY, NVLINK_LATENCY / 2, PCIE_LATENCY / 2):  # NCCL's, not the wire's
                delay = _NVLINK_DELAY
            elif tier.name in ("nic-up", "port-up"):  # in addition to NCCL's latency per hop, if the file sets one
                cable_delay = delay - topology.node.net_latency / 2
                delay = cable_delay if cable_delay >= _SAID else _NIC_DELAY
            count = 1 if inner and not topology.node.pairs else cables
            yield from [Ns3Link(a, b, rate / count, delay)] * count
