"""The matrix of `nvidia-smi topo -m` or `rocm-smi --showtopo` → a node: links of GPU pairs, PCIe switches, sockets, NICs.

It has no GPU name and no rates: the user gives them (`--gpu`), or they follow from the generation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

from clustersim.config.yaml import Document
from clustersim.convert.nccl_xml import shared_by, single_node, wired
from clustersim.errors import InputError, shown

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_NIC = re.compile(r"(NIC\d+|mlx\d+_\w+|\w*ib\d+|rdma\w*|efa\w*)", re.IGNORECASE)
_CLOSE = ("PIX", "PXB")
_NUMA = re.compile(r"^GPU\[\d+\].*Numa Node: *(\d+)", re.MULTILINE)
_LINKS = re.compile(r"NV(\d{1,3})")
_MOST_LINKS = 18
"""Largest number of NVLinks per GPU (Hopper, Blackwell): if a GPU's pairs have more in total, its links go to a switch."""


def translated(path: str, text: str) -> Document:
    """Return the topology of the node in a matrix. Raises InputError for errors in it."""
    _, of_amd, links = text.partition("Link Type")
    rows = _rows(path, _ESCAPES.sub("", links if of_amd else text))
    gpus = [name for name in rows if re.fullmatch(r"GPU\d+", name)]
    nics = sum(bool(_NIC.fullmatch(name)) for name in rows)
    matrix = [rows[name][: len(gpus)] for name in gpus]
    amd = _of_amd(path, matrix, _NUMA.findall(links)) if of_amd else None
    node = {"gpus": {"count": len(gpus)}, **(amd or {"scale_up": _scale_up(matrix), "host": _host(matrix)})}
    return single_node(path, node, min(nics, len(gpus)), len(gpus))


def _rows(path: str, text: str) -> dict[str, list[str]]:
    """Return {row name: cells}, for the header's columns of GPUs and NICs. Raises InputError if a row lacks cells."""
    lines = [words for line in text.splitlines() if (words := line.replace("|", " ").replace("--", "").split())]
    start = next((i for i, line in enumerate(lines) if line[0] == "GPU0"), len(lines))
    header = [word for line in lines[start : start + 1] for word in line]
    columns = [word for word in header if re.fullmatch(r"GPU\d+", word) or _NIC.fullmatch(word)]
    rows: dict[str, list[str]] = {}
    for line in lines[start + 1 :]:
        if line[0] not in columns:
            break
        if len(line) <= len(columns):
            why = f"the row of {line[0]} has {len(line) - 1} of {len(columns)} cells; give the whole matrix"
            raise InputError(f"{path}: {why}")
        rows[line[0]] = line[1 : 1 + len(columns)]
    gpus = [name for name in columns if name.startswith("GPU")] or ["GPU0"]
    if missing := [name for name in gpus if name not in rows]:
        why = f"the matrix has no row of {missing[0]}; give all that nvidia-smi topo -m or rocm-smi --showtopo prints"
        raise InputError(f"{path}: {why}")
    known = re.compile(r"X|0|NV\d{1,3}|XGMI|PCIE|PIX|PXB|PHB|NODE|SYS|SOC|N/A")
    for name, cell in ((gpu, cell) for gpu in gpus for cell in rows[gpu][: len(gpus)]):
        if not known.fullmatch(cell):
            why = f"{shown(cell)} in the row of {name} must be a connection; write NV12, PIX, PHB, NODE or SYS"
            raise InputError(f"{path}: {why}")
    return rows


def _scale_up(matrix: Sequence[Sequence[str]]) -> dict[str, object]:
    """Return `scale_up` of a node: `none`, `nvswitch` if every pair shows all links of a GPU, else the links of each pair."""
    count = len(matrix)
    cells = {(a, b): _LINKS.fullmatch(matrix[a][b]) for a, b in combinations(range(count), 2)}
    pairs = [(a, b, int(match[1])) for (a, b), match in cells.items() if match and int(match[1])]
    if not pairs:
        return {"kind": "none"}
    links = {each for _, _, each in pairs}
    if len(pairs) == count * (count - 1) // 2 and len(links) == 1 and (count - 1) * max(links) > _MOST_LINKS:
        return {"kind": "nvswitch", "links_per_gpu": max(links)}
    return wired(count, pairs)


def _of_amd(path: str, matrix: Sequence[Sequence[str]], numa: Sequence[str]) -> dict[str, object]:
    """Return {`host`: sockets, `scale_up`: islands of GPUs joined by XGMI}. `numa`: CPU of each GPU.

    Without XGMI, `scale_up` has the kind `none`; if XGMI joins all GPUs it is missing. Raises InputError if some pairs of an
    island have no link, or islands have different sizes.
    """
    linked = [[cell in ("XGMI", "0") for cell in row] for row in matrix]
    [size, *others] = set(_groups(linked))
    if others or any(sum(row) != size for row in linked):
        raise InputError(f"{path}: XGMI joins unequal groups of GPUs; give RCCL's XML (NCCL_TOPO_DUMP_FILE)")
    sockets = [numa.count(cpu) for cpu in dict.fromkeys(numa)]
    island: dict[str, object] = {"scale_up": {"kind": "mesh", "island": size}} if size < len(matrix) else {}
    return {"host": shared_by(sockets, [1]), **({"scale_up": {"kind": "none"}} if size == 1 else island)}


def _host(matrix: Sequence[Sequence[str]]) -> dict[str, object]:
    """Return `sockets` and `gpus_per_switch`, where all sizes are equal. NVLinks between all GPUs hide how PCIe connects them."""
    sockets = _groups([[cell not in ("SYS", "SOC") for cell in row] for row in matrix])
    hidden = len(sockets) == 1 and any(_LINKS.fullmatch(cell) for row in matrix for cell in row)
    switches = _groups([[cell in (*_CLOSE, "X") for cell in row] for row in matrix])
    return shared_by([] if hidden else sockets, switches)


def _groups(linked: Sequence[Sequence[bool]]) -> list[int]:
    """Return the sizes of runs of neighbouring GPUs that are all linked to the first of their run."""
    sizes: list[int] = []
    first = 0
    for gpu in range(len(linked)):
        if sizes and linked[first][gpu]:
            sizes[-1] += 1
        else:
            sizes.append(1)
            first = gpu
    return sizes
