"""Published runs → steps beside their forecasts, with what each rests on; what was simulated by the same code is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Any

from clustersim.calibration.constants import constants_of
from clustersim.calibration.sensitivity import sensitivities
from clustersim.config.yaml import parse
from clustersim.errors import ClustersimError
from clustersim.files import digest
from clustersim.lab.fit.pooled import PublishedStep
from clustersim.parallel.load import build as build_job
from clustersim.report.calibration import SCALES
from clustersim.simulation import Simulator
from clustersim.sweeps.runner import spread
from clustersim.topology.build import build
from clustersim.validate.adapt import Setup, adapt
from clustersim.validate.refusal import Refusal
from clustersim.validate.runs import Run
from clustersim.validate.statistics import LONG

ROOM = Path(__file__).parents[2]
NO_FORECAST = ("cli", "lab", "pages", "serve", "validate", "explain", "planning", "optimization", "_data")
"""Rooms that change no forecast of a step from its files."""
ShowAnswers = Callable[[Iterator[tuple[int, Any]], int], Iterator[tuple[int, Any]]]
"""Passes answers on as they come in, and may show progress of so many."""


def measured_steps(runs: Sequence[Run], workers: int, kept: Path, show: ShowAnswers) -> list[PublishedStep]:
    """Return the runs that have a measured time and a forecast, each forecast as if its publisher had published nothing.

    kept: a file to which every answer is added, and in which those are found that the same code gave for the same files.
    """
    asked = [(run, setup) for run in runs if run.sec_per_iter for setup in _setup(run)]
    known, code = _read(kept), _code()
    names = [digest(f"{code} {setup.topology} {setup.workload}".encode()) for _, setup in asked]
    left = list({name: setup for name, (_, setup) in zip(names, asked, strict=True) if name not in known}.items())
    left.sort(key=lambda one: one[1].topology)
    answers = spread(_answer, [setup for _, setup in left], workers, [setup.topology for _, setup in left])
    with kept.open("a", encoding="utf-8") as file:
        for place, answer in show(answers, len(left)):
            known[left[place][0]] = answer
            file.write(json.dumps({"question": left[place][0], **answer}) + "\n")
            file.flush()
    found = zip(asked, names, strict=True)
    return [_step(run, name, known[name]) for (run, _), name in found if "step" in known[name]]


def _setup(run: Run) -> Iterator[Setup]:
    try:
        yield adapt(run, unseen=True)
    except (Refusal, ClustersimError):
        return  # which `clustersim validate` counts and explains


def _code() -> str:
    """Return a digest of all that decides a forecast."""
    files = (path for path in sorted(ROOM.rglob("*")) if path.suffix in (".py", ".yaml", ".safetensors"))
    wanted = [path for path in files if path.relative_to(ROOM).parts[0] not in NO_FORECAST]
    return digest(b"".join(path.read_bytes() for path in wanted))


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines if line.endswith("}")]  # a crash may have torn the last
    return {one["question"]: one for one in found}


@lru_cache(maxsize=2)
def _simulator(topology: str) -> Simulator:
    return Simulator(build(parse(topology, "cluster")))


def _answer(setup: Setup) -> dict[str, Any]:
    """Return the step of a run, what it rests on, and what tells its machine and kind from others."""
    try:
        simulator, cluster = _simulator(setup.topology), parse(setup.topology, "cluster")
        job = simulator.placed(build_job(parse(setup.workload, "workload")))
        constants = constants_of(cluster, job)
        return {
            "step": simulator.seconds(job),
            "sensitivities": sensitivities(cluster, job, constants, simulator),
            "gpu": simulator.cluster.gpu.name,
            "precision": job.training.precision,
            "gpus": job.mesh.size,
            "split": job.parallelism.tp > 1,
            "long": job.training.seq > LONG,
        }
    except ClustersimError as error:
        return {"refused": str(error)}


def _step(run: Run, question: str, one: dict[str, Any]) -> PublishedStep:
    group = f"{one['gpu']} {one['precision']}"
    scale = next(name for most, name in SCALES if one["gpus"] <= most)
    return PublishedStep(
        id=run.id,
        publisher=run.publisher,
        machine=f"{run.publisher}, {one['gpu']}, {run.original_interconnect}",
        cell=f"{run.publisher}, {group}, {one['split']}, {one['long']}, {scale}",
        group=group,
        error=log((run.sec_per_iter or 0.0) / one["step"]),
        sensitivities=one["sensitivities"],
        gpus=one["gpus"],
        question=question,
    )
