"""Published nccl-tests that were written down before the model had said anything about them, and what it says.

    python tests/support/nccl_blind_rows.py      prints the errors of tests/support/validation/nccl_tests.csv

NODES says what a fabric of the table is: presets and structure; a network has the latency of its transport.
"""

import csv
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nccl_rows import cluster, forecast, printed, transport

BANDS = (">= 64 MiB", "between", "<= 1 MiB")
TABLE = Path(__file__).parent / "validation" / "nccl_tests.csv"
RUNS = TABLE.with_name("nccl_tests_runs.csv")
GB300 = """{extends: gb200-nvl72, gpus: {model: gb300, count: 72}, host: {pcie: gen6x16, effective: 96GB/s},
  nics: {rate: 800Gb/s}}"""
NODES = {
    "HGX H100": "hgx-h100",
    "DGX H100": "hgx-h100",
    "DGX H100, 8x400G": "hgx-h100",
    "HGX H200": "hgx-h200",
    "HGX B200": "hgx-b200",
    "HGX A100": "hgx-a100",
    "HGX A100, IB 4x200G": "{extends: hgx-a100, nics: {count: 4, rate: 200Gb/s}}",
    "HGX H800 (8 NVLinks)": "{extends: hgx-h100, gpus: {model: h800-sxm, count: 8}, scale_up: {links_per_gpu: 8}}",
    "AWS p5, EFA 32x100G": "hgx-h100",
    "AWS p6-b300, EFA 16x400G": "hgx-b300",
    "AWS p4de, EFA 4x100G, NCCL_PROTO=Simple": "{extends: hgx-a100, nics: {count: 4, rate: 100Gb/s}}",
    "AWS p3dn, EFA 1x100G, ring": "{extends: dgx1-v100, nics: {count: 1, rate: 100Gb/s}}",
    "OCI BM.GPU4.8, RoCE 16x100G": "{extends: dgx-a100-40gb, nics: {rate: 200Gb/s}}",
    "OCI H200, RoCE 8x400G": "hgx-h200",
    "GCP A3 Ultra, RoCE 8x400G": "hgx-h200",
    "GCP A4, RoCE 8x400G": "hgx-b200",
    "GCP A4X, one rack": "gb200-nvl72",
    "GCP A4X Max, RoCE 8x400G per 4 GPUs, two racks": GB300,
    "OCI GB300 NVL72, RoCE 8x400G per 4 GPUs, one rack": GB300,
    "OCI GB300 NVL72, RoCE 8x400G per 4 GPUs, two racks": GB300,
    "CSCS Alps, 4 GH200, Slingshot 4x200G": """{gpus: {model: gh200, count: 4}, nics: {count: 4, rate: 200Gb/s},
  scale_up: {kind: nvlink, links_per_gpu: 18, link: 25GB/s, payload_efficiency: 0.824},
  host: {cpu: arm, pcie: gen5x16, effective: 48GB/s}}""",
    "DGX-2 (NVSwitch)": "{extends: dgx1-v100, gpus: {count: 16}, scale_up: {kind: nvswitch}}",
    "MI300X platform": "mi300x",
    "MI300X platform, 8 ConnectX": "mi300x",
    "MI325X platform, 8 Broadcom, ring": "{extends: mi300x, gpus: {model: mi325x, count: 8}}",
    "MI355X platform, Pollara 8x400G": """{extends: mi300x, gpus: {model: mi355x, count: 8},
  scale_up: {link: 76.8GB/s}}""",
}


class Run(NamedTuple):
    source: str
    gpu: str
    nodes: int
    gpus: int
    fabric: str
    nccl: str
    op: str
    size: int
    time_s: float
    note: str

    @property
    def amd(self) -> bool:
        return self.gpu.startswith("MI")

    @property
    def domains(self) -> int:
        """How many NVLink or xGMI domains the GPUs are in: a rack of GB200 or GB300 is one."""
        return {"one rack": 1, "two racks": 2}.get(self.fabric.rpartition(", ")[2], self.nodes)

    @property
    def place(self) -> str:
        return "one domain" if self.domains == 1 else "several"

    @property
    def band(self) -> str:
        return BANDS[2 if self.size <= 2**20 else 0 if self.size >= 2**26 else 1]


def runs() -> list[Run]:
    """Every row of the table: what nccl_tests_runs.csv says of its run, with its size and time."""
    with RUNS.open() as file:
        of = {row["run"]: row for row in csv.DictReader(file)}
    with TABLE.open() as file:
        return [_run(of[row["run"]], row) for row in csv.DictReader(file)]


def _run(of: dict[str, str], row: dict[str, str]) -> Run:
    nodes, gpus, size, time = int(of["nodes"]), int(of["gpus"]), int(row["size_bytes"]), float(row["time_us"]) * 1e-6
    return Run(of["source"], of["gpu"], nodes, gpus, of["fabric"], of["nccl"], of["op"], size, time, of["note"])


def version(run: Run) -> str:
    """The release of the row or the nearest that the tables have, 2.18 to 2.30; 2.27 where none is named."""
    found = re.match(r"2\.(\d+)", run.nccl)
    return f"2.{min(max(int(found[1]), 18), 30)}" if found else "2.27"


def settings(run: Run) -> str:
    """What the row says NCCL was told."""
    forced = {"NCCL_PROTO=Simple": ", proto: Simple", "ring": ", algo: ring"}.get(run.fabric.rpartition(", ")[2], "")
    return f'{{version: "{version(run)}"{forced}}}'


def topology(run: Run):
    node = NODES[run.fabric]
    given = node if node.startswith("{") else f"{{extends: {node}}}"
    found = transport(run.fabric)
    if found and "nics: {" in given:
        given = given.replace("nics: {", f"nics: {{{found}, ")
    elif found:
        given = f"{given[:-1]}, nics: {{{found}}}}}"
    return cluster(run.domains, given, settings(run))


class Check(NamedTuple):
    run: Run
    algorithm: str
    error: float


@cache
def checks() -> tuple[Check, ...]:
    """The model against every row."""
    found = []
    for run in runs():
        own = forecast(topology(run), run.domains, run.gpus, run.op, run.size, run.time_s)
        found.append(Check(run, f"{own.choice.algorithm}/{own.choice.protocol}", own.error))
    return tuple(found)


def report() -> str:
    every = checks()
    nvidia, amd = ([one for one in every if one.run.amd is kind] for kind in (False, True))

    def source(one: Check) -> tuple[str, ...]:
        run = one.run
        return run.source[:60], run.gpu, f"{run.nodes}x{run.gpus // run.nodes}", run.op, run.band

    by_band = [
        (name, rows, lambda c: (c.run.place, c.run.band))
        for name, rows in (("NVIDIA", nvidia), ("AMD", amd), ("all", every))
    ]
    by_operation = ("NVIDIA by operation", nvidia, lambda c: (c.run.place, c.run.op, c.run.band))
    return printed([*by_band, by_operation, ("by source", every, source)], 100)


if __name__ == "__main__":
    print(report())
