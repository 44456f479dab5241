"""`simulate` and `sweep`. The most recent cluster is kept, so that the next question about it reuses its caches."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple, get_args

from clustersim import plugins
from clustersim.api.inputs import (
    ClusterLike,
    WorkloadLike,
    axes_by_key,
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
from clustersim.sweeps.space import SweepSpace
from clustersim.topology.build import build, overridden
from clustersim.topology.model import Topology


class _Known(NamedTuple):
    """The description of a cluster, and its simulator."""

    document: Document | None
    """Description of the cluster; None for one that the caller has built."""
    simulator: Simulator


_recent: ContextVar[_Known | None] = ContextVar("recent", default=None)
"""Most recent cluster of each thread. A simulator's caches are not thread-safe."""


def simulator(cluster: ClusterLike, overrides: dict[str, object]) -> _Known:
    """Return a cluster with its simulator, which is reused if the previous question had the same description.

    Arguments are those of `load_cluster`. A cluster that the caller has built is not kept, nor one that depends on further files
    or outside code. Raises ClustersimError for an invalid description.
    """
    with keeping_inputs() as read:
        description = cluster_document(cluster)
        if isinstance(description, Topology):
            return _Known(None, Simulator(load_cluster(description, **overrides)))
        document = overridden(description, by_key(overrides))
        known = _recent.get()
        if known is not None and known.document == document and not plugins.permits():
            return known
        built = _Known(document, Simulator(build(document)))
    alone = read.keys() <= {document.path} and not plugins.permits()
    _recent.set(built if alone else None)
    return built


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
    """Simulate one training step, as `clustersim run` does. Nothing is written to disk.

    `cluster` and `workload` are files, names of shipped ones, mappings with the keys of such files, or results of `load_cluster`
    and `load_workload`. `fold` simulates identical ranks once. `ignore_memory` continues if the job does not fit.
    `full_attention` counts causal attention in full in the model FLOP. `engine` is "simpy", the reference, or "auto", the
    compiled loop. `overrides` are keys of both, as in `load_cluster` and `load_workload`. Raises ClustersimError with the place
    and the problem.

    >>> result = simulate("hgx_h100_8", "gpt3_xl", tp=2)
    >>> result.fits, 0 < result.mfu < 1
    (True, True)
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
    """Simulate every combination of values, such as `tp=[1, 2, 4], pp=[1, 2]`. Nothing is written to disk.

    `cluster`, `workload` and `engine` are those of `simulate`. `workers` is the number of processes; with more than 1, the
    calling script needs `if __name__ == "__main__":`, as always in Python's multiprocessing. `axes` are keys as in
    `load_workload`: a list, tuple or range holds the values to try, anything else is the same at every point. Raises
    ClustersimError for what is wrong at every point.

    >>> found = sweep("hgx_h100_8", "gpt3_xl", tp=[1, 2], pp=[1, 2])
    >>> [row["status"] for row in found.rows]
    ['ok', 'ok', 'ok', 'ok']
    """
    if not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers={workers!r}: write a whole number of 1 or more")
    _check_engine(engine)
    several, fixed = axes_by_key(axes)
    space = SweepSpace(several, fixed).space()
    document = workload_document(workload)
    case = SweepInputs(cluster_document(cluster), unbuilt(document), engine, places(document, axes))
    check(case, space)
    rows_by_index = dict(runner.rows(case, case, space, workers))
    return SweepResult(tuple(space), tuple(rows_by_index[index] for index in range(len(space))))


def _check_engine(engine: object) -> None:
    """Raise InputError for an unknown engine."""
    if not isinstance(engine, str) or engine not in get_args(Engine):
        raise InputError(f"engine={shown(engine)}: is none; write {', '.join(get_args(Engine))}")
