"""NCCL's topology XML (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE) → a node.

The file is system > cpu > pci > {gpu > nvlink, nic > net} (NCCL 2.30, src/graph/xml.cc): compute capabilities, counts of NVLink,
PCIe links and speeds of NICs in Mb/s. It says nothing beyond the NIC.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from clustersim.config.yaml import Document, Position
from clustersim.errors import ConfigError, InputError, shown
from clustersim.files import read_text

_MODELS = {
    "0x1db1": "v100-sxm2-16gb", "0x1db5": "v100-sxm2-32gb", "0x1db6": "v100-pcie-32gb", "0x1eb8": "t4", "0x15f8": "p100",
    "0x20b0": "a100-sxm-40gb", "0x20b2": "a100-sxm-80gb", "0x20f1": "a100-pcie-40gb", "0x20b5": "a100-pcie-80gb",
    "0x2236": "a10", "0x26b9": "l40s", "0x27b8": "l4", "0x2330": "h100-sxm", "0x2331": "h100-pcie", "0x2335": "h200-sxm",
    "0x2901": "b200-sxm", "0x2941": "gb200", "0x74a1": "mi300x",
}  # fmt: skip
"""PCI device ids (pci-ids.ucw.cz)."""
_BY_CAPABILITY = {
    60: "p100",
    70: "v100-sxm2-32gb",
    75: "t4",
    80: "a100-sxm-80gb",
    89: "l40s",
    90: "h100-sxm",
    100: "b200-sxm",
}
_NVLINK = ((100, 50, 0.802), (90, 25, 0.824), (80, 25, 0.8), (70, 25, 0.8), (60, 20, 0.9))
"""Compute capability, GB/s of a link, and the part that payload gets (NCCL 2.30, src/graph/topo.h)."""
_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # GT/s
_SWITCH = "0x068000"
_MOST, _MEGABITS = 1000, 1e8
"""Beyond any count of links, any compute capability, and any speed of a port (100 Tb/s)."""
_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}


class _Gpu(NamedTuple):
    element: ElementTree.Element
    pci: ElementTree.Element


def read(path: str | Path) -> Document:
    """Return the topology file of one node that an XML file describes. Raises InputError for what is wrong in it."""
    root = _parse(Path(path))
    cpu = next(iter(root.iter("cpu")), None)
    gpus, nets = list(_gpus(root)), list(_nets(root))
    if root.tag != "system" or not gpus:
        raise InputError(f"{path}: no <system> with a <gpu>; give the file that NCCL writes with NCCL_TOPO_DUMP_FILE")
    host: dict[str, object] = {"pcie": _slot(gpus[0].pci, path)}
    if cpu is not None:
        host["cpu"] = "arm" if cpu.get("arch") == "arm64" else _VENDORS.get(cpu.get("vendor", ""), "intel")
    node: dict[str, object] = {
        "gpus": {"model": _model(gpus[0], path), "count": len(gpus)},
        "scale_up": _scale_up(gpus, path),
        "host": host,
    }
    nics = min(len(nets), len(gpus))
    if nics:
        megabits = math.fsum(_number(net, "speed", path, _MEGABITS) for net in nets) / nics
        attach = "per_gpu" if nics == len(gpus) else "shared"
        node["nics"] = {
            "count": nics,
            "rate": f"{min(megabits / 1e3, _gigabits(str(host['pcie'])))!r}Gb/s",
            "attach": attach,
        }
    return Document(str(path), {"cluster": {"nodes": 1, "node": node}}, {(): Position(1, 1)})


def _parse(path: Path) -> ElementTree.Element:
    """Return the root of the file: UTF-8, whatever encoding it declares, as NCCL writes it."""
    text = read_text(path, "an XML file of NCCL's")
    if "<!" in text.replace("<!--", ""):
        raise InputError(f"{path}: no topology of NCCL's: it declares entities; give a plain file")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, column = error.position
        raise ConfigError(str(path), line, column + 1, "not valid XML; give the file that NCCL wrote") from error


def _gpus(root: ElementTree.Element) -> Iterator[_Gpu]:
    """Yield each GPU that a process used, or all when none has a rank, with the PCI device that it is."""
    found = [_Gpu(gpu, pci) for pci in root.iter("pci") for gpu in pci.findall("gpu")]
    yield from [each for each in found if each.element.get("rank", "-1") != "-1"] or found


def _nets(root: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Yield each port of a network that is up and not a way through the operating system's sockets on a management port."""
    for net in root.iter("net"):
        if net.get("speed") not in (None, "0", "-1") and net.get("keep", "1") != "0":
            yield net


def _number(element: ElementTree.Element, key: str, path: object, most: float) -> float:
    """Return a number from 1 to `most`. Raises InputError."""
    text = element.get(key, "")
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 1 <= found <= most:
        what = f"{key} of <{element.tag[:40]}> is {shown(text) if text else 'missing'}"
        raise InputError(f"{path}: {what}; it is a number from 1 to {most:g} in the file that NCCL writes")
    return found


def _count(element: ElementTree.Element, key: str, path: object) -> int:
    """Return a whole number of links or a compute capability. Raises InputError."""
    found = _number(element, key, path, _MOST)
    if found != int(found):
        raise InputError(
            f"{path}: {key} of <{element.tag[:40]}> is {found:g}; it is whole in the file that NCCL writes"
        )
    return int(found)


def _model(gpu: _Gpu, path: object) -> str:
    device, capability = gpu.pci.get("device", ""), gpu.element.get("sm", "")
    known = _MODELS.get(device) or next((gpu for sm, gpu in _BY_CAPABILITY.items() if capability == str(sm)), None)
    if known is None:
        what = f"GPU with device {shown(device)} and sm {shown(capability)} is not known"
        raise InputError(f"{path}: {what}; write a node that extends one of the shipped types instead")
    return known


def _slot(pci: ElementTree.Element, path: object) -> str:
    match = re.match(r"([0-9]{1,4}(?:\.[0-9]{1,4})?) *GT/s", pci.get("link_speed", "32.0 GT/s"))
    width = pci.get("link_width", "16")
    generation = _GENERATION.get(float(match[1])) if match else None
    if generation is None or width not in {"1", "2", "4", "8", "16"}:
        raise InputError(
            f"{path}: PCIe at {shown(pci.get('link_speed'))} × {shown(width)} is not known; write like 32.0 GT/s and 16"
        )
    return f"gen{generation}x{width}"


def _gigabits(slot: str) -> float:
    """Return the raw Gb/s of a slot, which a NIC named faster than that cannot pass."""
    from clustersim.config.topology import Host

    return Host(pcie=slot).raw * 8e-9


def _scale_up(gpus: list[_Gpu], path: object) -> dict[str, object]:
    """Return the links inside the node: through switches a crossbar, straight from GPU to GPU what their counts say."""
    links = gpus[0].element.findall("nvlink")
    if not links:
        peers = gpus[0].element.findall("xgmi")
        each = _count(peers[0], "count", path) if peers else 0
        return (
            {"kind": "mesh", "links_per_peer": each, "link": "64GB/s", "payload_efficiency": 0.75}
            if each
            else {"kind": "none"}
        )
    capability = _count(gpus[0].element, "sm", path)
    rate, payload = next(((r, p) for least, r, p in _NVLINK if capability >= least), (20, 0.9))
    base = {"link": f"{rate}GB/s", "payload_efficiency": payload}
    count: Counter[str] = Counter()
    for link in links:
        count[link.get("target", "")] += _count(link, "count", path)
    if any(link.get("tclass") == _SWITCH for link in links):
        multicast = capability >= 90
        return {"kind": "nvswitch", "links_per_gpu": sum(count.values()), "multicast": multicast, **base}
    if len(count) == len(gpus) - 1 and len(set(count.values())) == 1 and max(count.values()) < 12:
        return {"kind": "mesh", "links_per_peer": max(count.values()), **base}
    return {"kind": "nvlink", "links_per_gpu": sum(count.values()), **base}
