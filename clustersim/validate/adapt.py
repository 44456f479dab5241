"""Conversion of a measured run into the input of `clustersim run`: the text of two YAML files. The only way to the simulation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from clustersim.config.yaml import parse
from clustersim.convert.override import override, preset_node
from clustersim.engine.player import Engine
from clustersim.errors import InputError
from clustersim.frameworks.table import unseen as unseen_host
from clustersim.parallel.job import Job
from clustersim.parallel.load import build as build_job
from clustersim.report.verdicts import verdict
from clustersim.simulation import Simulator, StepResult
from clustersim.topology.build import build
from clustersim.validate.cluster import cluster
from clustersim.validate.degrees import smallest_first
from clustersim.validate.known_models import completed
from clustersim.validate.runs import Refusal, Run
from clustersim.validate.strangers import EVERYTHING, Knowledge
from clustersim.validate.workload import InputDraft, framework_of, workload

NEVER_LATE = 1e-9
"""Factor on the launch times of an ideal host, which never delays a kernel."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A run as the texts of a topology and a workload file (JSON is YAML), and the assumptions about it in words."""

    topology: str
    workload: str
    assumed: tuple[str, ...]
    sources: frozenset[str] = frozenset()
    """Names of the framework file, recipe, node and phrases that the files depend on, in the form of `strangers`."""


def adapt(run: Run, ablation: Mapping[str, str] | None = None, view: Knowledge = EVERYTHING) -> Setup:
    """Return the files of a run, changed by an `ablation` such as {"predictor": "roofline"}. Raises Refusal for a bad row.

    view: knowledge of the forecast; figures read from steps of the publisher `view.without` have their values without it.
    """
    if run.unreadable:
        raise Refusal("unreadable row", run.unreadable)
    machine, machine_assumed, sources = cluster(run, view)
    domain = machine["cluster"]["node"]["gpus"]["count"]
    run, model_assumed = completed(run)
    job, job_assumed, job_sources = _job(run, machine, domain, view)
    if view.without:
        _set_unseen_host(machine, run, view)
    for part, value in (ablation or {}).items():
        _change(machine, job, part, value)
    # equal clusters have one name, so that one is built for many runs
    machine["cluster"]["name"] = (
        f"{machine['cluster']['nodes']} x {machine['cluster']['node']['gpus']['count']} {run.gpu}"
    )
    texts = json.dumps(_overridden(machine, run)), json.dumps(job)
    return Setup(*texts, (*model_assumed, *job_assumed, *machine_assumed), frozenset(sources | job_sources))


def _set_unseen_host(machine: dict[str, Any], run: Run, view: Knowledge) -> None:
    """Set in `machine` the host slowdown fitted without `view.without`, if the framework's was read from that publisher."""
    slowdown, node = unseen_host(framework_of(run, view), view.without), machine["cluster"]["node"]
    if slowdown is not None:
        preset_slowdown = preset_node(node["extends"]).host.slowdown if "extends" in node else 1.0
        node.setdefault("host", {})["slowdown"] = preset_slowdown * slowdown


def _job(run: Run, machine: Mapping[str, Any], domain: int, view: Knowledge) -> InputDraft:
    """Return the workload of a run. Without tp and pp in its source, use the split with the fewest GPUs per replica that fits.

    domain: GPUs per NVLink domain. If no split fits, the one with the most GPUs per replica is used. Raises Refusal.
    """
    if run.tp or run.pp or run.dp or run.launch or None in (run.layers, run.num_gpus):
        return workload(run, domain, view=view)
    framework = framework_of(run, view)
    if (framework.value("parallelism.zero") if run.zero_stage is None else run.zero_stage) in (2, 3):
        draft = workload(replace(run, tp=1, pp=1), domain, view=view)
        assumption = "parallelism: tp 1, pp 1 (the source says neither, and sharding alone makes a replica fit)"
        return draft._replace(assumed=[assumption, *draft.assumed])
    text = json.dumps(machine)
    last = None
    for split in smallest_first(run, run.layers or 1, run.heads or 1, domain):
        last = workload(run, domain, split, view)
        if _fits(text, last.spec):
            return last
    if last is None:
        raise Refusal("incomplete source", f"the source says neither tp nor pp, and {run.num_gpus} GPUs have no split")
    return last  # the run was measured, so it did fit: the last split needs the least memory


def _fits(topology: str, job: Mapping[str, Any]) -> bool:
    """Return whether a job likely fits the memory of a cluster's GPUs; False if the cluster cannot run it.

    topology: text of its file. job: content of its workload file.
    """
    try:
        simulator = _simulator(topology)
        placed = simulator.placed(_built(json.dumps(job)))
        peak_bytes = max(rank.total for rank in simulator.preparation.peaks(placed))
    except InputError:
        return False
    return verdict(peak_bytes, simulator.cluster.gpu.memory) == "likely"


def _overridden(machine: dict[str, Any], run: Run) -> dict[str, Any]:
    """Return the topology `machine` with the values of the row's column `cluster_set`. Raises Refusal for an invalid value."""
    if not run.cluster_set:
        return machine
    try:
        return dict(override(parse(json.dumps(machine), "cluster"), dict(run.cluster_set)).data)
    except InputError as error:
        raise Refusal("cluster_set", f"cluster_set: {error}") from error


def simulate(setup: Setup, engine: Engine = "auto") -> StepResult:
    """Simulate a run, even if its memory seems not to fit. Raises Refusal if the job is invalid or its cluster cannot run it."""
    try:
        job = _built(setup.workload)
        return _simulator(setup.topology).run(job, ignore_memory=True, engine=engine, check_overlap=False)
    except InputError as error:
        raise Refusal("mapping", getattr(error, "message", str(error))) from error


def _built(workload: str) -> Job:
    """Return the job of the text of a workload file. Raises InputError for an invalid key."""
    return build_job(parse(workload, "workload"))


@lru_cache(maxsize=4)
def _simulator(topology: str) -> Simulator:
    """Return the simulator of the text of a topology file."""
    return Simulator(build(parse(topology, "cluster")))


ABLATIONS = ("predictor", "clocks", "nccl", "fabric", "host")
"""Parts of a forecast that `--ablate` can change."""


def _change(machine: dict[str, Any], job: dict[str, Any], part: str, value: str) -> None:
    """Change one of ABLATIONS in a topology and a workload to a value of `--ablate`; the fabric gets no limits whatever it is."""
    node = machine["cluster"]["node"]
    if part == "predictor":
        job["predictor"] = value
    elif part == "clocks":
        job["clocks"] = value
    elif part == "nccl":
        machine["nccl"] = {"algo": value}
    elif part == "host":
        node.setdefault("host", {})["slowdown"] = NEVER_LATE if value == "ideal" else float(value)
    else:  # no latency and an unlimited rate, inside nodes and between them
        limits = {"links_per_gpu": 1, "link": "1e6GB/s", "multicast": False, "latency": "0s"}
        node["scale_up"] = {"kind": "nvswitch", **limits}
        node["nics"].update(rate="1e6GB/s", attach="integrated", latency="0s")
        if "fabric" in machine:
            machine["fabric"] = {"kind": "switch"}
