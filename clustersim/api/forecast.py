"""The described cluster that was asked about last: what was worked out about it serves the next question about the same."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import NamedTuple, get_args

from clustersim import plugins
from clustersim.api.inputs import (
    ClusterLike,
    WorkloadLike,
    by_key,
    cluster_document,
    load_cluster,
    load_workload,
    parted,
    places,
    workload_document,
)
from clustersim.api.result import Result, SweepResult
from clustersim.config.yaml import Document
from clustersim.engine.player import Engine
from clustersim.errors import InputError, shown
from clustersim.files import keeping_inputs
from clustersim.parallel.load import unbuilt
from clustersim.question import StepQuestion
from clustersim.simulation import Simulator
from clustersim.sweeps import runner
from clustersim.sweeps.check import check
from clustersim.sweeps.evaluate import SweepInputs
from clustersim.sweeps.space import Point, SweepSpace
from clustersim.topology.build import build, overridden
from clustersim.topology.model import Topology


class _Known(NamedTuple):
    """A description of a cluster, and its simulator."""

    document: Document | None
    """None for a cluster that the caller has built."""
    simulator: Simulator


_recent: ContextVar[_Known | None] = ContextVar("recent", default=None)
"""One for each thread: what a simulator keeps is not made for two at once."""


def simulator(cluster: ClusterLike, overrides: dict[str, object]) -> _Known:
    """Return a cluster with its simulator, that of the last question if the description is the same.

    cluster, overrides: as in `load_cluster`. One that was loaded is the caller's, and nothing of it is kept. Nor is what
    more than the description decides: files that it names, and code from outside. Raises ClustersimError.
    """
    with keeping_inputs() as read:
        found = cluster_document(cluster)
        if isinstance(found, Topology):
            return _Known(None, Simulator(load_cluster(found, **overrides)))
        document = overridden(found, by_key(overrides))
        known = _recent.get()
        if known is not None and known.document == document and not plugins.permits():
            return known
        made = _Known(document, Simulator(build(document)))
    alone = read.keys() <= {document.path} and not plugins.permits()
    _recent.set(made if alone else None)
    return made


def simulate(
    cluster: ClusterLike,
    workload: WorkloadLike,
    *,
    fold: bool = True,
    ignore_memory: bool = False,
    full_attention: bool = False,
    engine: Engine = "simpy",
    **overrides: object,
) -> Result:
    """Simulate one training step, as `clustersim run` does, and write nothing.

    cluster, workload: files, names of shipped ones, mappings with the keys of such files, or what `load_cluster` and
    `load_workload` return. fold: simulate ranks that nothing can tell apart once. ignore_memory: go on when the job does not
    fit. full_attention: count all of causal attention in the model FLOP. engine: simpy; static (longest path) where that is
    proved exact; auto: static, else a compiled loop. overrides: keys of both, as in `load_cluster` and `load_workload`. Raises
    ClustersimError, which says where and what is wrong.
    """
    _check_engine(engine)
    of_cluster, of_job = parted(overrides)
    job = load_workload(workload, **of_job)
    known = simulator(cluster, of_cluster)
    result = known.simulator.run(
        job, fold=fold, ignore_memory=ignore_memory, full_attention=full_attention, engine=engine
    )
    if known.document is None:
        return Result(result)
    how = fold, ignore_memory, full_attention, engine
    return Result(result, StepQuestion(known.document, job.document, by_key(overrides), *how))


def sweep(
    cluster: ClusterLike, workload: WorkloadLike, *, workers: int = 1, engine: Engine = "auto", **axes: object
) -> SweepResult:
    """Simulate every combination of values, such as `tp=[1, 2, 4], pp=[1, 2]`, and write nothing.

    cluster, workload: as in `simulate`. workers: processes; with more than 1 the caller is a file whose own work stands under
    `if __name__ == "__main__":`, as everywhere in Python's multiprocessing. engine: as in `simulate`. axes:
    keys of the workload as in `load_workload`; a list, tuple or range has the values that are tried, anything else is the same at
    every point. Raises ClustersimError for what is wrong at every point.
    """
    if not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers={workers!r}: write a whole number of 1 or more")
    _check_engine(engine)
    space = _space(axes)
    document = workload_document(workload)
    case = SweepInputs(cluster_document(cluster), unbuilt(document), engine, places(document, axes))
    check(case, space)
    found = dict(runner.rows(case, case, space, workers))
    return SweepResult(tuple(space), tuple(found[index] for index in range(len(space))))


def _check_engine(engine: object) -> None:
    """Raise InputError for an unknown engine."""
    if not isinstance(engine, str) or engine not in get_args(Engine):
        raise InputError(f"engine={shown(engine)}: is none; write {', '.join(get_args(Engine))}")


def _space(axes: Mapping[str, object]) -> list[Point]:
    several = {name: value for name, value in axes.items() if isinstance(value, list | tuple | range)}
    for name, value in several.items():
        if not len(value):
            raise InputError(f"{name}=: no value; give at least one")
    fixed = by_key({name: value for name, value in axes.items() if name not in several})
    return SweepSpace(by_key(several), fixed).space()
