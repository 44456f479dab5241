"""Topologies written by other tools, recognized by content: NCCL's XML, `nvidia-smi topo -m`, ns-3's links; else YAML."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from clustersim.config.yaml import Document, Loc, read
from clustersim.convert.override import nodes_by_gpu, preset_node
from clustersim.errors import UnknownNameError
from clustersim.files import read_text
from clustersim.hardware import gpus

_MATRIX = re.compile(r"^[\s|]*(\x1b\[\d*m)?\s*GPU0\b.*$", re.MULTILINE)
_NUMBERS = re.compile(r"\s*\d+(\s+\d+){2,4}(\s+[A-Za-z][\w-]*)?\s*$")
SLOTS = {"pascal": 3, "volta": 3, "turing": 3, "ampere": 4, "ada": 4}
"""PCIe generation of the slots of GPUs that have less than the fifth and no shipped type of node."""
NIC_RATES = {3: "100Gb/s", 4: "200Gb/s", 5: "400Gb/s", 6: "800Gb/s"}
"""Rate of the NICs in servers with slots of a generation, if a file does not contain it."""


def read_topology(path: Path) -> Document:
    """Return another tool's topology file as one of this project. Raises InputError and ConfigError for errors in it."""
    text = read_text(path, "a topology")
    if path.suffix.lower() == ".xml" or text.lstrip("\ufeff \t\r\n").startswith("<"):
        from clustersim.convert.nccl_xml import read as read_xml

        return read_xml(path)
    if _MATRIX.search(text):
        from clustersim.convert.smi_matrix import translated as of_matrix

        return of_matrix(str(path), text)
    if _NUMBERS.fullmatch(text.partition("\n")[0]):
        from clustersim.convert.ns3 import translated as of_links

        return of_links(str(path), text)
    return read(path)


def filled(node: dict[str, object], document: Document, at: Loc) -> dict[str, object]:
    """Return a node whose missing PCIe slots are those of its GPU's generation. NICs without a rate get that of the slots.

    Raises ConfigError at `at` if the node names no GPU.
    """
    gpu_keys, written, nics = node.get("gpus"), node.get("host"), node.get("nics")
    if not isinstance(gpu_keys, dict) or "model" not in gpu_keys:
        named = "the file names no known GPU; give --gpu h100, or write {extends: FILE, gpus: {model: h100-sxm}}"
        raise document.error(at, f"{'.'.join(map(str, at))}.gpus.model: {named}")
    host = dict(written) if isinstance(written, dict) else {}
    with suppress(UnknownNameError):  # which is told where the GPU is loaded
        gpu, has = gpus.load(str(gpu_keys["model"])), nodes_by_gpu()
        default_slot = f"gen{SLOTS.get(gpu.architecture, 5)}x16"
        host.setdefault("pcie", preset_node(has[gpu.name]).host.pcie if gpu.name in has else default_slot)
    generation = re.match(r"gen(\d)", str(host.get("pcie")))
    if isinstance(nics, dict) and "rate" not in nics and generation:
        nics = {**nics, "rate": NIC_RATES.get(int(generation[1]), "400Gb/s")}
    return {**node, "host": host, **({"nics": nics} if nics else {})}
