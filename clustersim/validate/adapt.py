"""A measured run → what `clustersim run` would be given: the text of two YAML files. The one door to the simulation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from clustersim.errors import InputError
from clustersim.validate.cluster import cluster
from clustersim.validate.refusal import Refusal
from clustersim.validate.runs import Run
from clustersim.validate.workload import workload

if TYPE_CHECKING:
    from clustersim.engine.player import Engine
    from clustersim.simulation import Simulator, StepResult

NEVER_LATE = 1e-9
"""How many times as long a host takes that is never in the way."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A run as two YAML texts (JSON is YAML), and what neither its row nor its columns say."""

    topology: str
    workload: str
    assumed: tuple[str, ...]


def adapt(run: Run, ablation: Mapping[str, str] | None = None) -> Setup:
    """Return the files of a run, changed by an `ablation` such as {"predictor": "roofline"}. Raises Refusal."""
    job, of_job = workload(run)
    machine, of_machine = cluster(run)
    for part, value in (ablation or {}).items():
        ABLATIONS[part](machine, job, value)
    # one name for all clusters that are alike, so that one is built for many runs
    machine["cluster"]["name"] = (
        f"{machine['cluster']['nodes']} x {machine['cluster']['node']['gpus']['count']} {run.gpu}"
    )
    return Setup(json.dumps(machine), json.dumps(job), (*of_job, *of_machine))


def simulate(setup: Setup, engine: Engine = "auto") -> StepResult:
    """Simulate a run as `clustersim run --ignore-memory` does: it was measured, so it did fit. Raises Refusal."""
    from clustersim.config.yaml import parse
    from clustersim.parallel.load import build

    try:
        job = build(parse(setup.workload, "workload"))
        return _simulator(setup.topology).run(job, ignore_memory=True, engine=engine)
    except InputError as error:
        raise Refusal("mapping", getattr(error, "message", str(error))) from error


@lru_cache(maxsize=4)
def _simulator(topology: str) -> Simulator:
    from clustersim.config.yaml import parse
    from clustersim.simulation import Simulator
    from clustersim.topology.build import build

    return Simulator(build(parse(topology, "cluster")))


def _predictor(_: dict[str, Any], job: dict[str, Any], value: str) -> None:
    job["predictor"] = value


def _clocks(_: dict[str, Any], job: dict[str, Any], value: str) -> None:
    job["clocks"] = value if value in ("sustained", "boost") else float(value)


def _nccl(machine: dict[str, Any], _: dict[str, Any], value: str) -> None:
    machine["nccl"] = {"algo": value}


def _fabric(machine: dict[str, Any], _: dict[str, Any], value: str) -> None:
    """Links without latency that are never short, inside nodes and between them."""
    node = machine["cluster"]["node"]
    node["scale_up"] = {"kind": "nvswitch", "links_per_gpu": 1, "link": "1e6GB/s", "multicast": False, "latency": "0s"}
    node["nics"].update(rate="1e6GB/s", attach="integrated", latency="0s")
    if "fabric" in machine:
        machine["fabric"] = {"kind": "switch"}


def _host(machine: dict[str, Any], _: dict[str, Any], value: str) -> None:
    """A host that is never late, or one that takes so many times as long."""
    slowdown = NEVER_LATE if value == "ideal" else float(value)
    machine["cluster"]["node"].setdefault("host", {})["slowdown"] = slowdown


ABLATIONS = {"predictor": _predictor, "clocks": _clocks, "nccl": _nccl, "fabric": _fabric, "host": _host}
"""What `--ablate` can change, and how."""
