"""NCCL's topology XML (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE) → a node.

The file is system > cpu > pci > {gpu > nvlink, nic > net} (NCCL 2.30, src/graph/xml.cc): compute capabilities, counts of NVLink,
PCIe links and speeds of NICs in Mb/s. It describes nothing beyond the NIC. Clouds' files lack what NCCL detects itself: GPUs and
NICs are PCI devices of their class, and the user must name the model.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from clustersim.config.fields import Section
from clustersim.config.topology import Host
from clustersim.config.yaml import Document, Position
from clustersim.convert.override import NODE, nodes_by_gpu, preset
from clustersim.convert.table import records
from clustersim.errors import ConfigError, InputError, shown
from clustersim.files import read_text
from clustersim.hardware.gpus import load

_MODELS = {row["id"]: row["gpu"] for row in records("pci_gpus")}
"""GPUs by PCI device id and by compute capability."""
_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # GT/s
_SWITCH = "0x068000"
_MOST, _MEGABITS = 1000, 1e8
"""Upper limits of any count of links or compute capability, and of any port speed (100 Tb/s)."""
_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
_GPU_CLASSES, _NIC_CLASSES = ("0x0302", "0x0300", "0x1200"), ("0x0207", "0x0200")
"""PCI classes of 3D and VGA controllers and of processing accelerators, and of InfiniBand and Ethernet controllers."""
_XGMI = {"cdna1": ("46GB/s", 0.52), "cdna2": ("50GB/s", 0.72), "cdna4": ("76.8GB/s", 0.83)}
"""Line rate and usable share of a link of Infinity Fabric, if not those of the MI300X: datasheets; RCCL, src/graph/topo.h."""


class _Gpu(NamedTuple):
    element: ElementTree.Element | None
    """<gpu> element of the GPU; None for a PCI device identified only by its class."""
    pci: ElementTree.Element


def read(path: str | Path) -> Document:
    """Return the topology file of the node in an XML file. Raises InputError for errors in it."""
    root = _parse(Path(path))
    gpus = list(_gpus(root))
    if root.tag != "system" or not gpus:
        missing = "no <system> with a <gpu>, or with PCI devices of class 0x0302; give the file that NCCL writes with"
        raise InputError(f"{path}: {missing} NCCL_TOPO_DUMP_FILE or reads with NCCL_TOPO_FILE")
    (model, described), pcie = _model(gpus[0]), _slot(gpus[0].pci, path)
    scale_up = _scale_up(gpus, model or "", path)
    node: dict[str, object] = {
        "gpus": {**({"model": model} if model else {}), "count": len(gpus)},
        **({"scale_up": scale_up} if scale_up is not None else {}),
        "host": _host(root, gpus, pcie),
    }
    count, megabits = _nics(root, path)
    count = min(count, len(gpus))
    rate = math.fsum(megabits) / 1e3 / max(count, 1)
    nic_keys: Section = {"rate": f"{min(rate, Host(pcie=pcie).raw * 8e-9) if pcie else rate!r}Gb/s"} if megabits else {}
    document = single_node(str(path), node, count, len(gpus), nic_keys)
    document.positions[(*NODE, "gpus", "model")] = Position(1, 1, name=described)
    return document


def single_node(path: str, node: Section, nics: int, gpus: int, nic_keys: Section | None = None) -> Document:
    """Return the topology file of one node with this number of GPUs and NICs. nic_keys: further keys of `nics`."""
    attach = "per_gpu" if nics == gpus else "shared"
    section = {"count": nics, **(nic_keys or {}), "attach": attach} if nics else None
    return Document(path, {"cluster": {"nodes": 1, "node": {**node, "nics": section}}}, {(): Position(1, 1)})


def shared_by(sockets: Sequence[int], switches: Sequence[int]) -> dict[str, object]:
    """Return `sockets` and `gpus_per_switch` of `host` from the GPUs of each socket and switch, where these are equally many."""
    keys: dict[str, object] = {"sockets": len(sockets)} if len(set(sockets)) == 1 else {}
    return keys | ({"gpus_per_switch": switches[0]} if {*switches} - {1} and len(set(switches)) == 1 else {})


def _host(root: ElementTree.Element, gpus: Sequence[_Gpu], pcie: str | None) -> dict[str, object]:
    """Return {`cpu`: vendor, `pcie`: slot, `sockets` with GPUs, `gpus_per_switch`}, the last two if equal everywhere."""
    cpus = list(root.iter("cpu"))
    host: dict[str, object] = {"pcie": pcie} if pcie else {}
    if cpus:
        host["cpu"] = "arm" if cpus[0].get("arch") == "arm64" else _VENDORS.get(cpus[0].get("vendor", ""), "intel")
    ours = {id(gpu.pci) for gpu in gpus}
    sockets = [n for cpu in cpus if (n := sum(id(pci) in ours for pci in cpu.iter("pci")))]
    slots = [n for cpu in cpus for top in cpu.findall("pci") if (n := sum(id(pci) in ours for pci in top.iter("pci")))]
    return host | shared_by(sockets, slots)


def _parse(path: Path) -> ElementTree.Element:
    """Return the root of the file, decoded as UTF-8 whatever it declares, as NCCL does. Raises InputError for other files."""
    text = read_text(path, "an XML file of NCCL's")
    if "<!" in text.replace("<!--", ""):
        raise InputError(f"{path}: declares entities, as hwloc's files, not NCCL's; give that of NCCL_TOPO_DUMP_FILE")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, column = error.position
        raise ConfigError(str(path), line, column + 1, "not valid XML; give the file that NCCL wrote") from error


def _gpus(root: ElementTree.Element) -> Iterator[_Gpu]:
    """Yield the GPUs that a process used (all if none has a rank), with their PCI devices.

    Without any <gpu> all PCI devices of a GPU's class are GPUs. If no device has a class either, NCCL finds it on the machine:
    GPUs are then as many devices of each socket as the smallest socket has.
    """
    gpus = [_Gpu(gpu, pci) for pci in root.iter("pci") for gpu in pci.findall("gpu")]
    ranked = [gpu for gpu in gpus if gpu.element is not None and gpu.element.get("rank", "-1") != "-1"]
    by_class = (_Gpu(None, pci) for pci in root.iter("pci") if pci.get("class", "").lower().startswith(_GPU_CLASSES))
    yield from ranked or gpus or by_class
    if not gpus and not any("class" in pci.attrib for pci in root.iter("pci")):
        sockets = [cpu.findall("pci") for cpu in root.iter("cpu")]
        yield from (_Gpu(None, pci) for pcis in sockets for pci in pcis[: min(map(len, sockets))])


def _nics(root: ElementTree.Element, path: object) -> tuple[int, list[float]]:
    """Return (number of NICs, Mb/s of each port that is up and not an operating-system socket).

    Without any <net>, NICs are the PCI devices of a NIC's class, with unknown rates.
    """
    ports = list(root.iter("net"))
    up = [net for net in ports if net.get("speed") not in (None, "0", "-1") and net.get("keep", "1") != "0"]
    if ports:
        return len(up), [_number(net, "speed", path, _MEGABITS) for net in up]
    return sum(pci.get("class", "").lower().startswith(_NIC_CLASSES) for pci in root.iter("pci")), []


def _number(element: ElementTree.Element, key: str, path: object, most: float = _MOST) -> float:
    """Return a number from 1 to `most` in an attribute, a whole one up to _MOST. Raises InputError for another value."""
    kind = int if most == _MOST else float
    text = element.get(key, "")
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        what = f"{key} of <{element.tag[:40]}> is {shown(text) if text else 'missing'}"
        number = "whole number" if kind is int else "number"
        raise InputError(f"{path}: {what}; it is a {number} from 1 to {most:g} in the file that NCCL writes")
    return value


def _model(gpu: _Gpu) -> tuple[str | None, str]:
    """Return the GPU model by device, AMD's gfx number or compute capability, None if unknown; and these in words, "" without."""
    element = gpu.pci if gpu.element is None else gpu.element
    key = "gcn" if "gcn" in element.attrib else "sm"
    device, chip = gpu.pci.get("device", ""), element.get(key, "")
    described = f"GPU with device {shown(device)} and {key} {shown(chip)}" if device or chip else ""
    return _MODELS.get(device) or _MODELS.get(chip.removeprefix("gfx")), described


def _slot(pci: ElementTree.Element, path: object) -> str | None:
    """Return generation and lanes of a slot, such as `gen5x16`; None without a speed. Raises InputError for unknown speeds.

    Like NCCL, takes 16 lanes where a virtual machine shows none or 0.
    """
    speed, width = (pci.get(key, "").strip() for key in ("link_speed", "link_width"))
    if speed.lower() in ("", "unknown", "unknown speed"):
        return None
    match = re.match(r"([0-9]{1,4}(?:\.[0-9]{1,4})?) *GT/s", speed)
    generation = _GENERATION.get(float(match[1])) if match else None
    if generation is None or width not in {"", "0", "1", "2", "4", "8", "16"}:
        why = f"PCIe at {shown(pci.get('link_speed'))} × {shown(width)} is not known; write like 32.0 GT/s and 16"
        raise InputError(f"{path}: {why}")
    return f"gen{generation}x{int(width or 0) or 16}"


def _scale_up(gpus: Sequence[_Gpu], model: str, path: object) -> object:
    """Return the links inside the node: a crossbar for links to switches, or pairs of GPUs with their link counts.

    Without <gpu>, NCCL finds the links on the machine: those of the model's shipped node, None for a model without one.
    """
    elements = [gpu.element for gpu in gpus if gpu.element is not None]
    if not elements:
        return preset(nodes_by_gpu()[model])["scale_up"] if model in nodes_by_gpu() else None
    for element in elements if any(nvlinks := [device.findall("nvlink") for device in elements]) else ():
        _number(element, "sm", path)
    place = {gpu.pci.get("busid", "").lower(): number for number, gpu in enumerate(gpus)}
    tag = nvlinks if any(nvlinks) else [element.findall("xgmi") for element in elements]
    ends: Counter[tuple[int, int]] = Counter()
    leaving: Counter[int] = Counter()
    for number, links in enumerate(tag):
        for link in links:
            count, other = int(_number(link, "count", path)), place.get(link.get("target", "").lower())
            if other == number:  # a virtual machine hides the other end
                continue
            leaving[number] += count
            if other is not None and link.get("tclass", "") != _SWITCH:
                ends[number, other] += count
    if not leaving:
        return {"kind": "none"}
    rate, efficiency = _XGMI.get(load(model).architecture if model else "", ("64GB/s", 0.75))
    link_keys = {} if any(nvlinks) else {"link": rate, "payload_efficiency": efficiency}
    if any(link.get("tclass") == _SWITCH for links in tag for link in links) or not ends:
        kind = {"kind": "nvswitch" if any(nvlinks) else "mesh"}
        counted = {"links_per_gpu": max(leaving.values())} if any(nvlinks) else {"links_per_peer": 1}
        switches = {"multicast": _number(elements[0], "sm", path) >= 90} if any(nvlinks) else {}  # from Hopper on
        return {**kind, **counted, **switches, **link_keys}
    # both ends list the links
    pairs = {(min(pair), max(pair)): max(count, ends[pair[::-1]]) for pair, count in ends.items()}
    return {**wired(len(gpus), [(a, b, count) for (a, b), count in sorted(pairs.items())]), **link_keys}


def wired(gpus: int, pairs: Sequence[tuple[int, int, int]]) -> dict[str, object]:
    """Return `scale_up` for pairs (GPU, GPU, links): a mesh if all pairs have equally many links, else the list of pairs."""
    counts = {links for _, _, links in pairs}
    if gpus > 2 and len(pairs) == gpus * (gpus - 1) // 2 and len(counts) == 1:
        return {"kind": "mesh", "links_per_peer": counts.pop()}
    return {"kind": "pairs", "pairs": [list(pair) for pair in pairs]}
