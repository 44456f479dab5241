"""GPUs of a node with different connections: bridges between pairs, islands, cube meshes, and the PCIe and CPUs below.

A GPU reaches another over a link between the two or the switch of their island, otherwise over links of a GPU in between,
otherwise over PCIe: up to its CPU, from socket to socket, and down. Bytes between GPUs without peer-to-peer transfers cross the
memory of the CPU, which all GPUs of a socket share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, combinations, permutations
from typing import NamedTuple

import numpy as np

from clustersim.arrays import Ints, offsets
from clustersim.config.topology import Host, ScaleUp
from clustersim.hardware.constants import NVLINK_LATENCY, PCIE_LATENCY
from clustersim.topology.detours import Wired
from clustersim.topology.hops import Hops
from clustersim.topology.lattice import Lattice
from clustersim.topology.specs import LinkRange, NodeSpecs

PAIRED = 64
"""Largest number of GPUs of a node whose links are listed pair by pair."""
TRIED = 20_000
"""Steps after which the search for a ring ends, as in NCCL (NCCL_SEARCH_TIMEOUT, src/graph/search.cc)."""


class Wire(NamedTuple):
    """A directed link inside a node."""

    tail: str
    """Start vertex, such as `gpu[3]`."""
    head: str
    """End vertex, such as `host[0]`."""
    rate: float
    """Bytes/s."""
    latency: float
    """Seconds."""
    cables: int = 1


@dataclass(frozen=True, eq=False)
class NodeGraph(Wired):
    """Several equal nodes, with the links and routes of one of them. Links of one name are numbered node by node.

    Vertices are the GPUs of all nodes, then all other ends of links, node by node.
    """

    names: tuple[str, ...]
    """Name of each range of links of a node, such as `nvlink-up`."""
    links: tuple[tuple[Wire, ...], ...]
    """Links of each range in one node."""
    table: Ints
    """Links of one node on the route from each GPU to each (GPUs, GPUs, width); -1 fills shorter routes."""
    nodes: int
    before: int = 0
    """Number of nodes of other types that come before."""
    first_gpu: int = 0
    """Number of GPUs of the nodes before."""
    start: int = 0
    """Number of links of the nodes before."""

    @property
    def gpus(self) -> int:
        """GPUs per node."""
        return len(self.table)

    @property
    def firsts(self) -> tuple[int, ...]:
        """Number of the first link of each range, followed by the number of links."""
        return tuple(accumulate((len(wires) * self.nodes for wires in self.links), initial=0))

    def ranges(self) -> Iterator[LinkRange]:
        """Yield the links of each range."""
        for name, wires in zip(self.names, self.links, strict=True):
            figures = (np.array([float(getattr(wire, key)) for wire in wires]) for key in ("rate", "latency", "cables"))
            yield LinkRange(name, *(np.tile(values, self.nodes) for values in figures))

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from each source GPU to its destination in the same node (pairs, width); -1 fills shorter ones."""
        node, a = np.divmod(source - self.first_gpu, self.gpus)
        local = self.table[a, (destination - self.first_gpu) % self.gpus]
        counts = np.array([len(wires) for wires in self.links])
        first = self.start + np.repeat(self.firsts[:-1] - offsets(counts)[:-1], counts) + np.arange(counts.sum())
        links = first[local] + node[:, np.newaxis] * np.repeat(counts, counts)[local]
        route_links: Ints = np.where(local < 0, -1, links)
        return route_links

    @cached_property
    def _vertices(self) -> tuple[tuple[str, ...], Ints]:
        """Names of the vertices of a node, and indices of the start and end of each of its links (2, links)."""
        ends = [(wire.tail, wire.head) for wires in self.links for wire in wires]
        names = tuple(dict.fromkeys([*(f"gpu[{gpu}]" for gpu in range(self.gpus)), *chain.from_iterable(ends)]))
        number = {name: i for i, name in enumerate(names)}
        return names, np.array([(number[tail], number[head]) for tail, head in ends]).T

    def vertex(self, endpoint: Ints) -> Ints:
        """Return the vertex of each GPU."""
        return endpoint - self.first_gpu

    def wires(self, link: Ints) -> tuple[Ints, Ints]:
        """Return (start vertices, end vertices) of links, which are numbered from 0 in these nodes."""
        (names, local), counts = self._vertices, np.array([len(wires) for wires in self.links])
        kind = np.searchsorted(self.firsts, link, side="right") - 1
        node, place = np.divmod(link - np.array(self.firsts)[kind], counts[kind])
        ends, inner = local[:, offsets(counts)[kind] + place], len(names) - self.gpus
        tail, head = ends + np.where(ends < self.gpus, node * self.gpus, self.gpus * (self.nodes - 1) + node * inner)
        return tail, head

    def name(self, vertex: int) -> str:
        """Return the name of a vertex: GPU 3 of node 2, with eight GPUs per node, is gpu[19]."""
        inner = self._vertices[0][self.gpus :]
        if vertex < self.gpus * self.nodes:
            return f"gpu[{self.first_gpu + vertex}]"
        node, place = divmod(vertex - self.gpus * self.nodes, len(inner))
        kind, _, number = inner[place][:-1].partition("[")
        per_node = sum(vertex_name.startswith(f"{kind}[") for vertex_name in inner)
        return f"{kind}[{(self.before + node) * per_node + int(number)}]"


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide(Hops):
    """Nodes of several types, each with its own routes."""

    parts: tuple[NodeGraph, ...]
    """The types one after the other."""

    @property
    def firsts(self) -> tuple[int, ...]:
        """Number of the first link, 0, followed by the number of links."""
        return 0, self.parts[-1].start + self.parts[-1].firsts[-1]

    def ranges(self) -> Iterator[LinkRange]:
        """Yield the links of each range of each type."""
        for part in self.parts:
            yield from part.ranges()

    def __call__(self, source: Ints, destination: Ints) -> Ints:
        """Return the links from each source GPU to its destination in the same node (pairs, width); -1 fills shorter ones."""
        routes = np.full((len(source), max(part.table.shape[2] for part in self.parts)), -1, np.int64)
        part_of = np.searchsorted([part.first_gpu for part in self.parts], source, side="right") - 1
        for index, part in enumerate(self.parts):
            rows = np.flatnonzero(part_of == index)
            routes[rows, : part.table.shape[2]] = part(source[rows], destination[rows])
        return routes

    def ends(self, link: int) -> tuple[str, str]:
        """Return the names of the start and the end of a link."""
        part = next(part for part in reversed(self.parts) if part.start <= link)
        return part.ends(link - part.start)


def place_nodes(graphs: Sequence[NodeGraph], counts: Sequence[int]) -> NodeGraph | SideBySide:
    """Return routes over `counts` nodes of each graph, type after type; link names of the second type begin with nvlink2, …."""
    parts: list[NodeGraph] = []
    uses, nodes, gpus, start = Counter[str](), 0, 0, 0
    for graph, count in zip(graphs, counts, strict=True):
        uses.update(graph.names)
        names = []
        for name in graph.names:
            stem, *way = name.rsplit("-", 1)
            names.append("-".join([f"{stem}{uses[name]}" if uses[name] > 1 else stem, *way]))
        parts.append(NodeGraph(tuple(names), graph.links, graph.table, count, nodes, gpus, start))
        nodes, gpus, start = nodes + count, gpus + count * graph.gpus, start + parts[-1].firsts[-1]
    return parts[0] if len(parts) == 1 else SideBySide(tuple(parts))


def graph_of_lattice(lattice: Lattice, gpus: int) -> NodeGraph:
    """Return the graph of one node of `gpus` GPUs that `lattice`, a grid of one node, connects."""
    ranges, first, links = list(lattice.ranges()), 0, []
    for part in ranges:
        figures = zip(part.capacity.tolist(), part.latency.tolist(), part.cables.astype(int).tolist(), strict=True)
        links.append(tuple(Wire(*lattice.ends(first + i), *link_figures) for i, link_figures in enumerate(figures)))
        first += len(part.capacity)
    table = lattice(*np.divmod(np.arange(gpus * gpus), gpus)).reshape(gpus, gpus, -1)
    return NodeGraph(tuple(part.name for part in ranges), tuple(links), table, 1)


def graph_of_node(cluster: NodeSpecs) -> NodeGraph | None:
    """Return the graph of one node whose GPUs are connected by pairs, islands, or PCIe with several parts; None for others."""
    scale_up, host, gpus = cluster.node.scale_up, cluster.node.host, cluster.node.gpus.count
    if gpus == 1:
        return None  # nothing to connect
    direct = cluster.gpu.peer_to_peer
    sockets = host.sockets or (1 if direct or gpus <= 4 else 2)
    carries = host.carries or (0.0 if direct else host.memory_carries)
    plain = sockets == 1 and not (host.gpus_per_switch or carries or host.socket_link)
    if not scale_up.pairs and not scale_up.island and (scale_up.kind != "none" or plain):
        return None
    ranges = _links(scale_up, gpus)
    linked = list(enumerate(wire for wires in ranges.values() for wire in wires))
    if sum(end.startswith("gpu") for end in _reached(linked, "gpu[0]")) < gpus:
        ranges |= _pcie(host, gpus, sockets, carries)
    return NodeGraph(tuple(ranges), tuple(map(tuple, ranges.values())), _table(ranges, gpus), 1)


def _links(scale_up: ScaleUp, gpus: int) -> dict[str, list[Wire]]:
    """Return {`nvlink-up`, `nvlink-down`: links of a node between pairs, or of GPUs and their island's switch}; {} without."""
    rate = (scale_up.link or 0.0) * scale_up.payload_efficiency
    delay = NVLINK_LATENCY if scale_up.latency is None else scale_up.latency
    if scale_up.kind in ("pairs", "mesh"):
        island, links, payload = scale_up.island or gpus, scale_up.links_per_peer, scale_up.payload_efficiency
        meshed = ((a, b, links, 0.0) for a, b in combinations(range(gpus), 2) if a // island == b // island)
        pairs = scale_up.pairs or meshed
        up = [Wire(f"gpu[{a}]", f"gpu[{b}]", n * (link * payload or rate), delay, n) for a, b, n, link in pairs]
    else:
        n, island = scale_up.links_per_gpu, scale_up.island or gpus
        up = [Wire(f"gpu[{g}]", f"{scale_up.kind}[{g // island}]", n * rate, delay / 2, n) for g in range(gpus)]
    down = [wire._replace(tail=wire.head, head=wire.tail) for wire in up]
    return {"nvlink-up": up, "nvlink-down": down} if scale_up.kind != "none" else {}


def _pcie(host: Host, gpus: int, sockets: int, carries: float) -> dict[str, list[Wire]]:
    """Return the links of PCIe and CPUs: `pcie`, and if needed `slot` (shared), each -up and -down, `memory`, and `socket`.

    GPUs are divided among the CPUs in order. carries: bytes/s that a CPU's memory passes on between GPUs; 0: GPUs reach each
    other directly.
    """
    socket = [gpu * sockets // gpus for gpu in range(gpus)]
    entry, leave = ("root", "host") if carries else ("host", "host")
    rate, delay = host.usable, PCIE_LATENCY / 2
    wires: dict[str, list[Wire]] = {}

    def join(name: str, ends: Iterable[tuple[str, str, str]], delay: float) -> None:
        """Add the links `name`-up and `name`-down. ends: (lower end, upper end, way down to the lower end)."""
        end_names = list(ends)  # lower end, upper end, and the way down to the lower end
        wires[f"{name}-up"] = [Wire(low, up, rate, delay) for low, up, _ in end_names]
        wires[f"{name}-down"] = [Wire(down, low, rate, delay) for low, _, down in end_names]

    cpu = [(f"{entry}[{s}]", f"{leave}[{s}]") for s in socket]
    if shared := host.gpus_per_switch:
        switch = [f"pcie[{gpu // shared}]" for gpu in range(gpus)]
        join("pcie", ((f"gpu[{g}]", switch[g], switch[g]) for g in range(gpus)), delay)
        join("slot", ((switch[g], *cpu[g]) for g in range(0, gpus, shared)), 0.0)
    else:
        join("pcie", ((f"gpu[{g}]", *cpu[g]) for g in range(gpus)), delay)
    if carries:
        wires["memory"] = [Wire(f"root[{s}]", f"host[{s}]", carries, 0.0) for s in range(sockets)]
    if sockets > 1:
        between, pairs = host.socket_link or host.between_sockets, permutations(range(sockets), 2)
        wires["socket"] = [Wire(f"{leave}[{s}]", f"{entry}[{t}]", between, 0.0) for s, t in pairs]
    return wires


def _table(ranges: dict[str, list[Wire]], gpus: int) -> Ints:
    """Return the link numbers of the route of each pair of GPUs, -1 after its end (GPUs, GPUs, links). NVLink precedes PCIe."""
    wires = list(enumerate(wire for part in ranges.values() for wire in part))
    linked = 2 * len(ranges.get("nvlink-up", ()))
    routes: dict[tuple[int, int], list[int]] = {}
    for a in range(gpus):
        nvlink_routes, pcie_routes = (_reached(part, f"gpu[{a}]") for part in (wires[:linked], wires[linked:]))
        for b in range(gpus):
            shortest = nvlink_routes.get(f"gpu[{b}]") or pcie_routes.get(f"gpu[{b}]", [[]])
            routes[a, b] = shortest[(a + b) % len(shortest)]
    table = np.full((gpus, gpus, max(map(len, routes.values()))), -1, np.int64)
    for (a, b), route in routes.items():
        table[a, b, : len(route)] = route
    return table


def _reached(wires: Sequence[tuple[int, Wire]], start: str) -> dict[str, list[list[int]]]:
    """Return {vertex: shortest routes from `start`}, each route as link numbers; the route to `start` itself is empty."""
    leaving: dict[str, list[tuple[int, Wire]]] = {}
    for number, wire in wires:
        leaving.setdefault(wire.tail, []).append((number, wire))
    routes: dict[str, list[list[int]]] = {start: [[]]}
    front = [start]
    while front:
        next_routes: dict[str, list[list[int]]] = {}
        for vertex in front:
            for number, wire in leaving.get(vertex, ()):
                if wire.head not in routes:
                    next_routes.setdefault(wire.head, []).extend([*route, number] for route in routes[vertex])
        routes |= next_routes
        front = list(next_routes)
    return routes


def most_links(scale_up: ScaleUp, gpus: int) -> int:
    """Return the largest number of scale-up links of any GPU of a node of `gpus` GPUs; 0 if GPUs only have PCIe."""
    if scale_up.kind == "none":
        return 0
    if scale_up.kind == "pairs":
        return max(sum(n for a, b, n, _ in scale_up.pairs if gpu in (a, b)) for gpu in range(gpus))
    if scale_up.kind in ("nvswitch", "nvlink"):
        return scale_up.links_per_gpu
    grid = sum(min(extent - 1, 2) for extent in scale_up.shape or (gpus,))
    return scale_up.links_per_peer * ((scale_up.island or gpus) - 1 if scale_up.kind == "mesh" else grid)


def rings(pairs: Sequence[tuple[int, int, int, float]], gpus: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the rings through all of `gpus` that NCCL can build from links between GPU pairs, each as positions in ring order.

    pairs: as in `NodeFacts`. A ring of two GPUs uses one link both ways; a longer ring uses each link one way, and its reverse
    the other way. A depth-first search takes the first ring that it finds and continues with the remaining links, as NCCL's
    search does channel by channel (NVIDIA/nccl, src/graph/search.cc).
    """
    position_of = {gpu: i for i, gpu in enumerate(gpus)}
    links_left = np.zeros((len(gpus), len(gpus)), np.int64)
    for a, b, links, _ in pairs:
        if a in position_of and b in position_of:
            links_left[position_of[a], position_of[b]] = links_left[position_of[b], position_of[a]] = links
    if len(gpus) == 2:
        return [(0, 1)] * int(links_left[0, 1])
    orders: list[tuple[int, ...]] = []
    while len(gpus) > 2 and (ring := _ring(links_left)):
        for a, b in zip(ring, [*ring[1:], ring[0]], strict=True):
            links_left[a, b] -= 1
            links_left[b, a] -= 1
        orders += [tuple(ring), tuple(ring[::-1])]
    return orders


def _ring(links_left: Ints) -> list[int] | None:
    """Return the GPUs of a ring over all GPUs, in order, preferring pairs with the most links; None if none is found.

    links_left: number of unused links of each pair (GPUs, GPUs).
    """
    path, choices = [0], [iter(_next(links_left, [0]))]
    for _ in range(TRIED):
        following = next(choices[-1], None)
        if following is None:
            choices.pop()
            path.pop()
            if not choices:
                return None
        elif len(path) + 1 < len(links_left):
            path.append(following)
            choices.append(iter(_next(links_left, path)))
        elif links_left[following, 0] > 0:
            return [*path, following]
    return None


def _next(links_left: Ints, path: Sequence[int]) -> list[int]:
    """Return the GPUs not on `path` that it can go on to: first those with the most links left, then by index."""
    links = links_left[path[-1]]
    return sorted((v for v in range(len(links)) if links[v] > 0 and v not in path), key=lambda v: (-links[v], v))
