"""Measured runs of nccl-tests, each on the cluster that its source describes, and what the model says about them.

    python tests/nccl_rows.py FOLDER      prints the errors; FOLDER holds collectives/collectives.csv

Every cluster is a preset with the fabric that the source names; nothing differs between the rows of a source but ranks and size.
"""

import csv
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

OPS = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv"}
PRESETS = {
    "V100": "dgx1-v100",
    "A100": "hgx-a100",
    "H100": "hgx-h100",
    "H200": "hgx-h200",
    "B200": "hgx-b200",
    "B300": "hgx-b300",
    "GB200": "gb200-nvl72",
}
LATENCY = {"RoCE": 16, "EFA": 34, "TCPX": 69}
"""us from GPU to GPU; InfiniBand 14 (NCCL's). RoCE: three Ethernet switches on the way, 0.6 us each more than InfiniBand's.

EFA and TCPX-O are the 8-byte rows of one source each (aws-samples, lessizzmore), which count for nothing else.
"""


class Run(NamedTuple):
    source: str
    gpu: str
    nodes: int
    gpus: int
    fabric: str
    op: str
    algo: str
    size: int
    time_s: float
    note: str


def runs(folder: Path) -> list[Run]:
    """Every row that times a collective of NCCL; rows of busbw without a size or a time are left out."""
    with (folder / "collectives" / "collectives.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = [_run(row) for row in rows if row["op"] in OPS and row["size_bytes"] and row["time_us"] and row["nodes"]]
    return [run for run in found if not (run.size == 8 and run.source.startswith(("aws-samples", "lessizzmore")))]


def _run(row):
    return Run(
        row["source"],
        row["gpu"],
        int(row["nodes"]),
        int(row["gpus"]),
        row["fabric"],
        row["op"],
        row["algo"],
        int(row["size_bytes"]),
        float(row["time_us"]) * 1e-6,
        row["note"],
    )


def version(run: Run) -> str:
    """The release that the row names; where it names none, the one of its year's releases the tables have."""
    found = re.search(r"(?:NCCL |nccl/)(2\.\d+(?:\.\d+)?)", f"{run.source} {run.algo} {run.fabric}")
    if found and int(found[1].split(".")[1]) >= 18:
        return found[1]
    return "2.18" if found else "2.27"


def settings(run: Run) -> str:
    """What the row says NCCL was told."""
    parts = [f'version: "{version(run)}"']
    if "NVLS off" in run.algo or "NVLS_ENABLE=0" in run.algo or "Ring" in run.algo.split(",")[0].split(" ")[0]:
        parts.append("algo: ring")
    elif run.algo.startswith("NVLSTree"):
        parts.append("algo: nvls_tree" if "default" not in run.algo else "")
    if "LL128" in run.algo:
        parts.append("proto: LL128")
    if "SHARP" in run.algo:
        parts.append("collnet: true")
    if "drmysore" in run.source or "all_reduce_bench" in run.note or "SimuMax" in run.source:
        parts.append("launch: 24us")  # PyTorch, one call at a time: stas00/ml-engineering, network/benchmarks
    return "{" + ", ".join(filter(None, parts)) + "}"


def node(run: Run) -> str:
    """The node type as YAML."""
    preset = PRESETS[re.split("[-_ ]", run.gpu)[0]] if not run.gpu.startswith("not stated") else "hgx-h200"
    nics = _nics(run)
    if run.gpu.startswith("not stated") and run.nodes > 1:
        preset, nics = "hgx-a100", "count: 4, rate: 200Gb/s"
    if run.gpu.startswith("A100-SXM4-40GB"):
        preset = "dgx-a100-40gb"
    host = ", host: {pcie: gen6x16, effective: 96GB/s}" if "8x400G RoCE per 4-GPU" in run.fabric else ""
    return f"{{extends: {preset}{host}, nics: {{{nics}}}}}" if nics else preset


def _nics(run: Run) -> str:
    for text, nics in {
        "16x200G": "rate: 400Gb/s",
        "16x100G": "rate: 200Gb/s",
        "8x200G": "rate: 200Gb/s",
        "EFA 4x100G": "count: 4, rate: 100Gb/s",
        "4x200G": "count: 4, rate: 200Gb/s",
        "1x100G": "count: 1, rate: 100Gb/s",
        "8x400G RoCE per 4-GPU": "rate: 800Gb/s",
        "4 only 325 Gb/s": "efficiency: 0.8125",
    }.items():
        if text in run.fabric:
            return nics + _latency(run)
    return _latency(run).lstrip(", ")


def _latency(run: Run) -> str:
    """How far a NIC is by what it is: InfiniBand's default, or as in LATENCY."""
    return next((f", latency: {us}us" for text, us in LATENCY.items() if text in run.fabric), "")


@cache
def cluster(nodes: int, node_text: str, settings_text: str):
    from clustersim.config.yaml import parse
    from clustersim.topology.build import build

    rate = "800Gb/s"
    fabric = f"fabric: {{kind: switch, link: {{rate: {rate}}}}}" if nodes > 1 else ""
    text = f"cluster: {{nodes: {nodes}, node: {node_text}}}\n{fabric}\nnccl: {settings_text}\n"
    return build(parse(text, "rows.yaml"))


def domains(run: Run) -> tuple[int, int]:
    """(nodes, GPUs of each) as NVLink joins them: a rack of GB200 is one node."""
    if run.gpu == "GB200":
        racks = -(-run.gpus // 72)
        return racks, run.gpus // racks
    return run.nodes, run.gpus // run.nodes


def topology(run: Run):
    return cluster(domains(run)[0], node(run), settings(run))


def ranks(run: Run):
    import numpy as np

    nodes, each = domains(run)
    width = topology(run).gpus_per_node
    return (np.arange(nodes)[:, None] * width + np.arange(each)).ravel()
