"""Links as ns-3 takes them in ASTRA-sim and SimAI → a topology: GPUs, switches, and a row for each cable.

The first line has the numbers of vertices, switches and links (ASTRA-sim), or of vertices, GPUs per server, NVSwitches, switches,
links, and the GPU's name (SimAI, astra-sim-alibabacloud/inputs/topo). The second lists the switches; all other vertices are GPUs.
A row has two vertices, rate, delay and an error rate. Cables between GPUs, and between a GPU and an NVSwitch, are inside nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clustersim.config.yaml import Document, Position
from clustersim.errors import ConfigError, shown
from clustersim.units import parse

_GPU = "h100-sxm"
"""Default GPU of a file without a name, as for ASTRA-sim's network.yml."""
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,12})?(?:[eE]-?\d{1,2})?)([KMGT]?bps)")
_DELAY = re.compile(r"(\d{1,12}(?:\.\d{1,24})?(?:[eE]-?\d{1,2})?)(ns|us|ms|s)")
_UNITS = {"bps": "b/s", "Kbps": "kb/s", "Mbps": "Mb/s", "Gbps": "Gb/s", "Tbps": "Tb/s"}
MOST = 200_000
"""Largest number of vertices and of cables in a file."""


class WrittenLink(NamedTuple):
    """A cable between two vertices."""

    a: int
    b: int
    rate: str
    """Rate as a quantity of this project: `400Gb/s`."""
    delay: str
    """Delay as a quantity of this project: `500ns`."""


class _Header(NamedTuple):
    vertices: int
    server: int
    nvswitches: int
    switches: int
    links: int
    gpu: str


def translated(path: str, text: str) -> Document:
    """Return the equivalent topology file. Raises ConfigError for errors in the given one."""
    lines = text.splitlines()
    header = _header(path, lines[0].split())
    words = lines[1].split() if len(lines) > 1 else []
    count = header.nvswitches + header.switches
    switches = [int(word) for word in words if word.isdecimal() and len(word) < 10]
    if len(set(switches)) != count or len(words) != count or any(switch >= header.vertices for switch in switches):
        raise ConfigError(path, 2, 1, f"must list each of the {count} switches of {header.vertices} vertices once")
    cables = list(_cables(path, lines, header))
    if len(cables) != header.links:
        raise ConfigError(path, 1, 1, f"says {header.links} links and has {len(cables)}; write as many rows as it says")
    return Document(path, _data(path, header, switches, cables), {(): Position(1, 1)})


def _header(path: str, words: Sequence[str]) -> _Header:
    """Return the counts in the words of the first line. Raises ConfigError for words of another form, or too many links."""
    counts = [int(word) for word in words if word.isdecimal() and len(word) < 10]
    if len(counts) == 3:
        counts[1:1] = [0, 0]  # neither GPUs of a server nor NVSwitches
    if len(counts) != 5:
        forms = "`vertices switches links`, or `vertices GPUs-of-a-server NVSwitches switches links GPU`"
        raise ConfigError(path, 1, 1, f"not a header of ns-3's links; write {forms}")
    if max(counts) > MOST:
        raise ConfigError(path, 1, 1, f"more than {MOST} vertices or links; use a fabric such as fat_tree")
    vertices, server, nvswitches, switches, links = counts
    return _Header(vertices, server, nvswitches, switches, links, "" if words[-1].isdecimal() else words[-1])


def _cables(path: str, lines: Sequence[str], header: _Header) -> Iterator[WrittenLink]:
    """Yield the cables in the rows from the third line on. Raises ConfigError for a row of another form."""
    for number, line in enumerate(lines[2:], start=3):
        words = line.split()
        if not words:
            continue
        rate = _RATE.fullmatch(words[2]) if len(words) == 5 else None
        delay = _DELAY.fullmatch(words[3]) if len(words) == 5 else None
        ends = [int(word) for word in words[:2] if word.isdecimal() and len(word) < 10]
        if rate is None or delay is None or len(ends) < 2:
            what = f"{shown(line)} is not a cable; write one such as `0 8 400Gbps 0.0005ms 0`"
            raise ConfigError(path, number, 1, what)
        if max(ends) >= header.vertices or ends[0] == ends[1]:
            why = f"joins {ends[0]} and {ends[1]}; write two of 0 to {header.vertices - 1}"
            raise ConfigError(path, number, 1, why)
        speed = f"{float(rate[1]):.12g}{_UNITS[rate[2]]}"
        yield WrittenLink(ends[0], ends[1], speed, f"{float(delay[1]):.12g}{delay[2]}")


def _data(path: str, header: _Header, switches: Sequence[int], cables: Sequence[WrittenLink]) -> dict[str, object]:
    """Return {`cluster`, `fabric`: section of the topology}. Raises ConfigError unless the GPUs divide into equal servers."""
    gpus = [vertex for vertex in range(header.vertices) if vertex not in set(switches)]
    place = {vertex: number for number, vertex in enumerate(gpus)}
    inner = set(switches[: header.nvswitches])
    direct = [cable for cable in cables if cable.a in place and cable.b in place]
    each = header.server or 1
    server = len(gpus) if any(place[c.a] // each != place[c.b] // each for c in direct) else each
    if not gpus or len(gpus) % server:
        raise ConfigError(path, 1, 1, f"{len(gpus)} GPUs are not servers of {server} each; write a divisor")
    node: dict[str, object] = {"gpus": {"model": header.gpu.lower() or _GPU, "count": server}}
    node["scale_up"] = _pairs(path, place, server, direct) if direct else _crossbar(gpus[0], inner, cables)
    sockets = len(inner) * server // len(gpus)
    first = {end for cable in cables if gpus[0] in (cable.a, cable.b) for end in (cable.a, cable.b)} & inner
    if 0 < len(first) < sockets:  # not all NVSwitches, but one CPU of several
        node |= {"host": {"sockets": sockets}, **({} if direct else {"scale_up": {"kind": "none"}})}
    data: dict[str, object] = {"cluster": {"nodes": len(gpus) // server, "node": node}}
    out = [cable for cable in cables if not {cable.a, cable.b} & inner and not {cable.a, cable.b} <= place.keys()]
    if out and direct and server == len(gpus):
        raise ConfigError(path, 3, 1, "has cables between GPUs and cables to switches; write one kind of them")
    if out:
        node["nics"] = _nics(path, place, out, server)
        data["fabric"] = _fabric(place, out)
    return data


def _pairs(path: str, place: dict[int, int], server: int, direct: Sequence[WrittenLink]) -> dict[str, object]:
    """Return `scale_up` for the cables `direct` between GPUs of a server. Raises ConfigError if servers or delays differ."""
    delays = {cable.delay for cable in direct}
    if len(delays) > 1:
        raise ConfigError(path, 3, 1, "cables between GPUs have different delays; write one for all")
    ends = ((*sorted((place[c.a] % server, place[c.b] % server)), c.rate) for c in direct)
    counts, servers = Counter(ends), len(place) // server
    if any(count % servers for count in counts.values()):
        raise ConfigError(path, 3, 1, "servers have different cables between GPUs; write as many for each")
    pairs = [[a, b, count // servers, rate] for (a, b, rate), count in counts.items()]
    return {"kind": "pairs", "pairs": pairs, "latency": delays.pop(), "payload_efficiency": 1.0}


def _crossbar(gpu: int, inner: set[int], cables: Sequence[WrittenLink]) -> dict[str, object]:
    """Return `scale_up` for a GPU's links to the NVSwitches `inner`, with their summed rate; `none` without such links."""
    uplinks = [cable for cable in cables if gpu in (cable.a, cable.b) and {cable.a, cable.b} & inner]
    total = sum(parse(cable.rate, "bandwidth") for cable in uplinks)
    crossbar = {"kind": "nvswitch", "link": f"{total / 1e9:.12g}GB/s", "payload_efficiency": 1.0}
    return crossbar if uplinks else {"kind": "none"}


def _nics(path: str, place: dict[int, int], out: Sequence[WrittenLink], server: int) -> dict[str, object]:
    """Return `nics` of a node: one per GPU with a cable to a switch. Raises ConfigError if servers have different cables."""
    ends = Counter(place[end] for cable in out for end in (cable.a, cable.b) if end in place)
    each = {gpu % server for gpu in ends}
    if len(ends) != len(each) * (len(place) // server) or len(set(ends.values())) > 1:
        raise ConfigError(path, 3, 1, "servers have different cables to switches; write as many for each")
    rate = next(cable.rate for cable in out if {cable.a, cable.b} & place.keys())
    return {"count": len(each), "rate": rate, "attach": "integrated", "efficiency": 1.0}


def _fabric(place: dict[int, int], out: Sequence[WrittenLink]) -> dict[str, object]:
    """Return `fabric` with the switches and cables between NICs. out: cables to switches. place: {GPU vertex: GPU number}."""
    with_nic = sorted({place[end] for cable in out for end in (cable.a, cable.b) if end in place})
    nic = {gpu: number for number, gpu in enumerate(with_nic)}

    def name(vertex: int) -> str:
        """Return `nic[N]` for a GPU's vertex, else `switchV`."""
        return f"nic[{nic[place[vertex]]}]" if vertex in place else f"switch{vertex}"

    order = dict.fromkeys(name(end) for cable in out for end in (cable.a, cable.b) if end not in place)
    ends = (({"a": name(cable.a), "b": name(cable.b)}, cable, count) for cable, count in Counter(out).items())
    links = [{**names, "rate": cable.rate, "latency": cable.delay, "count": count} for names, cable, count in ends]
    return {"kind": "explicit", "nodes": list(order), "links": links}
