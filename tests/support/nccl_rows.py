"""Measured runs of nccl-tests, each on the cluster that its source describes, and what the model says about them.

    python tests/support/nccl_rows.py FOLDER      prints the errors; FOLDER holds collectives/collectives.csv

Every cluster is a preset with the NICs that the source names; nothing differs between the rows of a source but ranks and size.
No network is told its latency: it has that of its transport, and of InfiniBand where none is named.
"""

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from clustersim.collectives.nccl.table import TableLine, line
from clustersim.config.yaml import parse
from clustersim.topology.build import build
from clustersim.topology.model import Topology

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
CHOSEN_ON = ("ai-dynamo", "NVIDIA/nccl-tests issue #309 (Dell XE9680)")
"""Sources on which constants of the model were chosen: kernels of one node, the hop of a tree between nodes in LL."""
WITHOUT_NVLS = "oci-hpc-oke docs @003aae9"
"""A source whose command says NCCL_NVLS_ENABLE=0 (its manifests/nccl-tests/kueue/BM.GPU.GB200-v3.4.yaml), not its table."""


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
    """Every row of a collective of NCCL that has a size; a time is derived from busbw where only that is given.

    Left out: what is none (DeepEP's dispatch and combine, copies, sends to oneself, ib_write_bw) and peaks without a size.
    """
    with (folder / "collectives" / "collectives.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [_run(row) for row in rows if row["op"] in OPS and row["size_bytes"] and row["nodes"]]


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
        _seconds(row),
        row["note"],
    )


def _seconds(row) -> float:
    if row["time_us"]:
        return float(row["time_us"]) * 1e-6
    n = int(row["gpus"])
    factor = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0, "sendrecv": 1.0}.get(row["op"], (n - 1) / n)
    return int(row["size_bytes"]) * factor / (float(row["busbw"]) * 1e9)


def version(run: Run) -> str:
    """The release that the row names; where it names none, the one of its year's releases the tables have."""
    found = re.search(r"(?:NCCL |nccl/)(2\.\d+(?:\.\d+)?)", f"{run.source} {run.algo} {run.fabric}")
    if found and int(found[1].split(".")[1]) >= 18:
        return found[1]
    return "2.18" if found else "2.27"


def settings(run: Run) -> str:
    """What the row says NCCL was told."""
    parts = [f'version: "{version(run)}"']
    if "NVLS off" in run.algo or "NVLS_ENABLE=0" in run.algo or run.source.endswith(WITHOUT_NVLS):
        parts.append("nvls: false")
    if "Ring" in run.algo.split(",")[0].split(" ")[0]:
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
    nics = ", ".join(filter(None, (_nics(run), transport(run.fabric))))
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
            return nics
    return ""


def transport(fabric: str) -> str:
    """What the words of a fabric say of its transport, as YAML; `RoCE/IB` says nothing."""
    names = {
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
    found = next((name for word, name in names.items() if word in fabric and f"{word}/IB" not in fabric), "")
    return f"transport: {found}" if found else ""


@cache
def cluster(nodes: int, node_text: str, settings_text: str) -> Topology:
    adds = ", reduction: sharp" if "collnet: true" in settings_text else ""
    fabric = f"fabric: {{kind: switch, link: {{rate: 800Gb/s}}{adds}}}" if nodes > 1 else ""
    text = f"cluster: {{nodes: {nodes}, node: {node_text}}}\n{fabric}\nnccl: {settings_text}\n"
    return build(parse(text, "rows.yaml"))


def forecast(topology: Topology, domains: int, gpus: int, op: str, size: int, time_s: float) -> TableLine:
    """Return the line of `clustersim collective` of the first GPUs of each NVLink domain, with the measured time in it."""
    ranks = (np.arange(domains)[:, None] * topology.gpus_per_node + np.arange(gpus // domains)).ravel()
    return line(topology, ranks, op, size, time_s)


def domains(run: Run) -> tuple[int, int]:
    """Return nodes and GPUs of each as NVLink joins them: a rack of GB200 is one node."""
    if run.gpu == "GB200":
        racks = -(-run.gpus // 72)
        return racks, run.gpus // racks
    return run.nodes, run.gpus // run.nodes


class Check(NamedTuple):
    run: Run
    single: bool  # all GPUs in one NVLink domain
    chosen_on: bool  # the model's constants were chosen on this row
    algorithm: str
    error: float

    @property
    def size(self) -> str:
        return "<= 1 MiB" if self.run.size <= 2**20 else ">= 64 MiB" if self.run.size >= 2**26 else "between"


def checks(folder: Path) -> list[Check]:
    """The model against every row."""
    found = []
    for run in runs(folder):
        op = {"alltoall": "all_to_all", "sendrecv": "send"}.get(run.op, run.op)
        joined = domains(run)[0]
        own = forecast(cluster(joined, node(run), settings(run)), joined, run.gpus, op, run.size, run.time_s)
        found.append(Check(run, joined == 1, run.source.startswith(CHOSEN_ON), own.choice.algorithm, own.error))
    return found


def printed(tables: Iterable[tuple[str, Iterable[Any], Callable[[Any], tuple[str, ...]]]], width: int = 46) -> str:
    """Return tables of checks: rows, median absolute error and median error of each group of a key."""
    lines = []
    for title, rows, key in tables:
        groups = defaultdict(list)
        for check in rows:
            groups[", ".join(key(check))].append(check.error)
        lines += ["", title]
        for label, errors in sorted(groups.items()):
            absolute, signed = median(map(abs, errors)), median(errors)
            lines.append(f"  {label:<{width}} {len(errors):>5} rows  {100 * absolute:5.1f} %  ({100 * signed:+.1f} %)")
    return "\n".join(lines[1:])


def decile(all_checks: list[Check]) -> Callable[[Check], tuple[str, ...]]:
    """Return the function that names the decile of a check's size."""
    sizes = sorted(check.run.size for check in all_checks)
    edges = [sizes[len(sizes) * i // 10] for i in range(1, 10)]

    def name(check: Check) -> tuple[str, ...]:
        i = sum(check.run.size >= edge for edge in edges)
        return (f"decile {i + 1:>2}, from {edges[i - 1] if i else sizes[0]} B",)

    return name


def report(folder: Path) -> str:
    found = checks(folder)
    place = {True: "one NVLink domain", False: "several"}
    fresh = [c for c in found if not c.chosen_on]
    tables = [
        ("all rows", found, lambda c: (place[c.single], c.size)),
        ("rows of other sources than the constants'", fresh, lambda c: (place[c.single], c.size)),
        ("by GPU", found, lambda c: (place[c.single], c.run.gpu[:12], c.size)),
        ("by operation", found, lambda c: (place[c.single], c.run.op, c.size)),
    ]
    for one in (True, False):
        rows = [c for c in found if c.single is one]
        tables.append((f"by size, {place[one]}", rows, decile(rows)))
    return printed(tables)


if __name__ == "__main__":
    print(report(Path(sys.argv[1])))
