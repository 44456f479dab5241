"""Measured runs of nccl-tests, each on the cluster that its source describes, and what the model says about them.

    python tests/support/nccl_rows.py FOLDER      prints the errors; FOLDER holds collectives/collectives.csv
    python tests/support/nccl_rows.py             prints those of runs that were written down before the model had seen them

Every cluster is a preset with the NICs that the source names; nothing differs between the rows of a source but ranks and size.
No network is told its latency: it has that of its transport, and of InfiniBand where none is named.
"""

import csv
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from clustersim.collectives.nccl.table import line
from clustersim.config.yaml import parse
from clustersim.topology.build import build
from clustersim.topology.model import Topology

BLIND = Path(__file__).parent / "validation"
"""Folder of the runs that the model had not seen: their sizes and times, what they ran on, and the node of each fabric."""
BANDS = (">= 64 MiB", "between", "<= 1 MiB")
OPS = {name: name for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")}
OPS |= {"alltoall": "all_to_all", "sendrecv": "send"}
"""{operation in collectives.csv: operation of the model}"""
PRESETS = {gpu: f"hgx-{gpu.lower()}" for gpu in ("A100", "H100", "H200", "B200", "B300")}
PRESETS |= {"V100": "dgx1-v100", "GB200": "gb200-nvl72"}
CHOSEN_ON = ("ai-dynamo", "NVIDIA/nccl-tests issue #309 (Dell XE9680)")
"""Sources on which constants of the model were chosen: kernels of one node, the hop of a tree between nodes in LL."""
WITHOUT_NVLS = "oci-hpc-oke docs @003aae9"
"""A source whose command says NCCL_NVLS_ENABLE=0 (its manifests/nccl-tests/kueue/BM.GPU.GB200-v3.4.yaml), not its table."""
NICS = {
    "16x200G": "rate: 400Gb/s",
    "16x100G": "rate: 200Gb/s",
    "8x200G": "rate: 200Gb/s",
    "EFA 4x100G": "count: 4, rate: 100Gb/s",
    "4x200G": "count: 4, rate: 200Gb/s",
    "1x100G": "count: 1, rate: 100Gb/s",
    "8x400G RoCE per 4-GPU": "rate: 800Gb/s",
    "4 only 325 Gb/s": "efficiency: 0.8125",
}
"""{words of a fabric: the NICs of a node, as YAML}"""
TRANSPORTS = {
    "EFA v3": "efa_v3",
    "EFA v4": "efa_v3",
    "p6": "efa_v3",
    "EFA": "efa",
    "TCPXO": "tcpxo",
    "Slingshot": "slingshot",
    "RoCE": "roce",
    "Pollara": "roce",
    "Broadcom": "roce",
}
"""{word of a fabric: transport}, of which the first counts"""


class Run(NamedTuple):
    """One size of one run."""

    source: str
    gpu: str
    nodes: int
    gpus: int
    op: str
    size: int
    time_s: float
    domains: int
    """NVLink or xGMI domains that the GPUs are in: a rack of GB200 or GB300 is one."""
    node: str
    """Type of the nodes, as YAML."""
    settings: str
    """What NCCL was told, as YAML."""
    note: str

    @property
    def amd(self) -> bool:
        return self.gpu.startswith("MI")

    @property
    def place(self) -> str:
        return "one domain" if self.domains == 1 else "several"

    @property
    def band(self) -> str:
        return BANDS[2 if self.size <= 2**20 else 0 if self.size >= 2**26 else 1]

    @property
    def chosen_on(self) -> bool:
        return self.source.startswith(CHOSEN_ON)


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def measured(folder: Path) -> list[Run]:
    """Every row of a collective of NCCL that has a size; a time is derived from busbw where only that is given.

    Left out: what is none (DeepEP's dispatch and combine, copies, sends to oneself, ib_write_bw) and peaks without a size.
    """
    rows = table(folder / "collectives" / "collectives.csv")
    return [_measured(row) for row in rows if row["op"] in OPS and row["size_bytes"] and row["nodes"]]


def _measured(row: dict[str, str]) -> Run:
    nodes, gpus, size = int(row["nodes"]), int(row["gpus"]), int(row["size_bytes"])
    domains = -(-gpus // 72) if row["gpu"] == "GB200" else nodes
    return Run(
        *(row["source"], row["gpu"], nodes, gpus, OPS[row["op"]], size, _seconds(row, gpus, size)),
        *(domains, _node(row, nodes), _settings(row), row["note"]),
    )


def _seconds(row: dict[str, str], n: int, size: int) -> float:
    if row["time_us"]:
        return float(row["time_us"]) * 1e-6
    factor = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0, "sendrecv": 1.0}.get(row["op"], (n - 1) / n)
    return size * factor / (float(row["busbw"]) * 1e9)


def _settings(row: dict[str, str]) -> str:
    """Release and settings of a row; where it names no release, the one of its year's releases the tables have."""
    algo = row["algo"]
    found = re.search(r"(?:NCCL |nccl/)(2\.\d+(?:\.\d+)?)", f"{row['source']} {algo} {row['fabric']}")
    known = found is not None and int(found[1].split(".")[1]) >= 18
    parts = [f'version: "{found[1] if known else "2.18" if found else "2.27"}"']
    if "NVLS off" in algo or "NVLS_ENABLE=0" in algo or row["source"].endswith(WITHOUT_NVLS):
        parts.append("nvls: false")
    if "Ring" in algo.split(",")[0].split(" ")[0]:
        parts.append("algo: ring")
    elif algo.startswith("NVLSTree") and "default" not in algo:
        parts.append("algo: nvls_tree")
    if "LL128" in algo:
        parts.append("proto: LL128")
    if "SHARP" in algo:
        parts.append("collnet: true")
    if "drmysore" in row["source"] or "all_reduce_bench" in row["note"] or "SimuMax" in row["source"]:
        parts.append("launch: 24us")  # PyTorch, one call at a time: stas00/ml-engineering, network/benchmarks
    return "{" + ", ".join(parts) + "}"


def _node(row: dict[str, str], nodes: int) -> str:
    gpu, fabric = row["gpu"], row["fabric"]
    unknown = gpu.startswith("not stated")
    preset = "hgx-h200" if unknown else PRESETS[re.split("[-_ ]", gpu)[0]]
    own = next((nics for words, nics in NICS.items() if words in fabric), "")
    nics = ", ".join(filter(None, (own, transport(fabric))))
    if unknown and nodes > 1:
        preset, nics = "hgx-a100", "count: 4, rate: 200Gb/s"
    if gpu.startswith("A100-SXM4-40GB"):
        preset = "dgx-a100-40gb"
    host = ", host: {pcie: gen6x16, effective: 96GB/s}" if "8x400G RoCE per 4-GPU" in fabric else ""
    return f"{{extends: {preset}{host}, nics: {{{nics}}}}}" if nics else preset


def transport(fabric: str) -> str:
    """What the words of a fabric say of its transport, as YAML; `RoCE/IB` says nothing."""
    found = next((name for word, name in TRANSPORTS.items() if word in fabric and f"{word}/IB" not in fabric), "")
    return f"transport: {found}" if found else ""


@cache
def blind() -> tuple[Run, ...]:
    """Every row that was written down before the model had said anything about it."""
    ran = {row["run"]: row for row in table(BLIND / "nccl_tests_runs.csv")}
    nodes = {row["fabric"]: row["node"] for row in table(BLIND / "nccl_tests_nodes.csv")}
    return tuple(_blind(ran[row["run"]], row, nodes) for row in table(BLIND / "nccl_tests.csv"))


def _blind(ran: dict[str, str], row: dict[str, str], nodes: dict[str, str]) -> Run:
    """Return a row; NCCL is the release of the row or the nearest that the tables have, 2.27 where none is named."""
    last = ran["fabric"].rpartition(", ")[2]
    found = re.match(r"2\.(\d+)", ran["nccl"])
    version = f"2.{min(max(int(found[1]), 18), 30)}" if found else "2.27"
    forced = {"NCCL_PROTO=Simple": ", proto: Simple", "ring": ", algo: ring"}.get(last, "")
    node = nodes[ran["fabric"]]
    given, own = node if node.startswith("{") else f"{{extends: {node}}}", transport(ran["fabric"])
    if own and "nics: {" in given:
        given = given.replace("nics: {", f"nics: {{{own}, ")
    elif own:
        given = f"{given[:-1]}, nics: {{{own}}}}}"
    domains = {"one rack": 1, "two racks": 2}.get(last, int(ran["nodes"]))
    return Run(
        *(ran["source"], ran["gpu"], int(ran["nodes"]), int(ran["gpus"]), ran["op"]),
        *(int(row["size_bytes"]), float(row["time_us"]) * 1e-6),
        *(domains, given, f'{{version: "{version}"{forced}}}', ran["note"]),
    )


@cache
def cluster(nodes: int, node: str, settings: str) -> Topology:
    adds = ", reduction: sharp" if "collnet: true" in settings else ""
    fabric = f"fabric: {{kind: switch, link: {{rate: 800Gb/s}}{adds}}}" if nodes > 1 else ""
    return build(parse(f"cluster: {{nodes: {nodes}, node: {node}}}\n{fabric}\nnccl: {settings}\n", "rows.yaml"))


@cache
def error(run: Run) -> float:
    """Return the relative error of `clustersim collective` for the first GPUs of each NVLink domain."""
    topology = cluster(run.domains, run.node, run.settings)
    ranks = np.arange(run.domains)[:, None] * topology.gpus_per_node + np.arange(run.gpus // run.domains)
    return line(topology, ranks.ravel(), run.op, run.size, run.time_s).error


def report(runs: list[Run]) -> str:
    """Return tables of rows, median absolute error and median error: of all, by GPU, operation and source."""
    lines = []
    for title in ("", "gpu", "op", "source"):
        groups = defaultdict(list)
        for run in runs:
            groups[", ".join((run.place, *([getattr(run, title)[:60]] * bool(title)), run.band))].append(error(run))
        lines += ["", f"by {title}" if title else "all rows"]
        for label, errors in sorted(groups.items()):
            absolute, signed = median(map(abs, errors)), median(errors)
            lines.append(f"  {label:<90} {len(errors):>5} rows  {100 * absolute:5.1f} %  ({100 * signed:+.1f} %)")
    return "\n".join(lines[1:])


if __name__ == "__main__":
    print(report(measured(Path(sys.argv[1])) if sys.argv[1:] else list(blind())))
