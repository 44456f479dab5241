"""The matrix of `nvidia-smi topo -m` → a node: NVLinks of each pair of GPUs, PCIe switches, sockets, NICs.

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
_LINKS = re.compile(r"NV(\d{1,3})")
_MOST_LINKS = 18
"""Largest number of NVLinks per GPU (Hopper, Blackwell): if a GPU's pairs have more in total, its links go to a switch."""


def translated(path: str, text: str) -> Document:
    """Return the topology of the node in a matrix. Raises InputError for errors in it."""
    rows = _rows(path, _ESCAPES.sub("", text))
    gpus = [name for name in rows if re.fullmatch(r"GPU\d+", name)]
    nics = sum(bool(_NIC.fullmatch(name)) for name in rows)
    matrix = [rows[name][: len(gpus)] for name in gpus]
    node: dict[str, object] = {"gpus": {"count": len(gpus)}, "scale_up": _scale_up(matrix), "host": _host(matrix)}
    return single_node(path, node, min(nics, len(gpus)), len(gpus))


def _rows(path: str, text: str) -> dict[str, list[str]]:
    """Return {row name: cells}, for the header's columns of GPUs and NICs. Raises InputError if a row lacks cells."""
    lines = [line.split() for line in text.splitlines() if line.split()]
    start = next(i for i, line in enumerate(lines) if line[0] == "GPU0")
    columns = [word for word in lines[start] if re.fullmatch(r"GPU\d+", word) or _NIC.fullmatch(word)]
    rows: dict[str, list[str]] = {}
    for line in lines[start + 1 :]:
        if line[0] not in columns:
            break
        if len(line) <= len(columns):
            why = f"the row of {line[0]} has {len(line) - 1} of {len(columns)} cells; give the whole matrix"
            raise InputError(f"{path}: {why}")
        rows[line[0]] = line[1 : 1 + len(columns)]
    gpus = [name for name in columns if name.startswith("GPU")]
    if missing := [name for name in gpus if name not in rows]:
        raise InputError(f"{path}: the matrix has no row of {missing[0]}; give all that nvidia-smi topo -m prints")
    known = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|N/A")
    for name, cell in ((gpu, cell) for gpu in gpus for cell in rows[gpu][: len(gpus)]):
        if not known.fullmatch(cell):
            why = f"{shown(cell)} in the row of {name} must be a connection; write NV12, PIX, PHB, NODE or SYS"
            raise InputError(f"{path}: {why}")
    return rows


def _scale_up(matrix: Sequence[Sequence[str]]) -> dict[str, object]:
    """Return the links of GPUs: a crossbar if every pair shows all links of a GPU, else the links of each pair."""
    count = len(matrix)
    cells = {(a, b): _LINKS.fullmatch(matrix[a][b]) for a, b in combinations(range(count), 2)}
    pairs = [(a, b, int(found[1])) for (a, b), found in cells.items() if found and int(found[1])]
    if not pairs:
        return {"kind": "none"}
    links = {each for _, _, each in pairs}
    if len(pairs) == count * (count - 1) // 2 and len(links) == 1 and (count - 1) * max(links) > _MOST_LINKS:
        return {"kind": "nvswitch", "links_per_gpu": max(links)}
    return wired(count, pairs)


def _host(matrix: Sequence[Sequence[str]]) -> dict[str, object]:
    """Return sockets and GPUs per PCIe switch, if all have equal sizes."""
    near = [[cell not in ("SYS", "SOC") for cell in row] for row in matrix]
    return shared_by(_groups(near), _groups([[cell in (*_CLOSE, "X") for cell in row] for row in matrix]))


def _groups(joined: Sequence[Sequence[bool]]) -> list[int]:
    """Return the sizes of runs of neighbours that are all connected with the first one."""
    sizes: list[int] = []
    first = 0
    for gpu in range(len(joined)):
        if sizes and joined[first][gpu]:
            sizes[-1] += 1
        else:
            sizes.append(1)
            first = gpu
    return sizes
