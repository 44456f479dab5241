"""`clustersim optimize` and `clustersim plan` for scripts: the best split, and the cluster that trains so many tokens in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clustersim.api.inputs import ClusterLike, WorkloadLike, by_key, cluster_document, places, workload_document
from clustersim.api.result import OptimizeResult, PlanResult
from clustersim.costs import figures
from clustersim.errors import InputError
from clustersim.optimization.answer import answer as best_of
from clustersim.optimization.objective import objective
from clustersim.optimization.search import free
from clustersim.parallel.load import unbuilt
from clustersim.planning.answer import answer
from clustersim.planning.planner import Planner
from clustersim.planning.reliability import load as load_reliability
from clustersim.planning.request import TOPOLOGY, plan_request
from clustersim.sweeps.evaluate import SweepInputs
from clustersim.sweeps.legal import AUTO
from clustersim.sweeps.space import SweepSpace


def optimize(
    cluster: ClusterLike,
    workload: WorkloadLike,
    *,
    goal: str = "step",
    target: float | None = None,
    top: int = 5,
    unlikely: bool = False,
    price: float | None = None,
    costs: str | Path | None = None,
    **axes: object,
) -> OptimizeResult:
    """Find the best split of a model on a cluster over all legal degrees and options, as `clustersim optimize` does.

    cluster, workload: as in `simulate`. goal: what is least: step, cost or energy a token, or gpus that reach `target`
    tokens/s. top: how many of the best are found. unlikely: also what is unlikely to fit. price: USD a GPU-hour. costs: a file
    of prices and power. axes: keys of both as in `sweep`, each a value or a list; "auto" is all legal values, and so are tp, pp,
    ep, expert_tp, micro_batch, recompute, schedule, vpp and zero where they are not given, and those of cp that leave 2,048
    tokens or more of a sequence together. Each split has the overlap that suits it best, where that is not given. Raises
    ClustersimError, which says where and what is wrong.
    """
    if not isinstance(top, int) or top < 1:
        raise InputError(f"top={top!r}: write a whole number of 1 or more")
    document = workload_document(workload)
    money = figures.load(costs, price)
    case = SweepInputs(
        cluster_document(cluster), unbuilt(document), places=places(document, axes), costs=money, unlikely=unlikely
    )
    return OptimizeResult(best_of(case, _space(axes), objective(goal, target), top))


def _space(axes: Mapping[str, object]) -> SweepSpace:
    """Return the space of keywords; what is free is `auto`."""
    several = {name: value for name, value in axes.items() if isinstance(value, list | tuple | range)}
    for name, value in several.items():
        if not len(value):
            raise InputError(f"{name}=: no value; give at least one")
    single = by_key({name: value for name, value in axes.items() if name not in several})
    auto = {key for key, value in single.items() if value == AUTO and key != "parallelism.dp"}
    tried: Mapping[str, Any] = by_key(several)
    auto |= set(free({*single, *tried}))
    fixed = {key: value for key, value in single.items() if key not in auto}
    return SweepSpace(tried, fixed, frozenset(), tuple(sorted(auto)))


def plan(
    workload: WorkloadLike,
    *,
    tokens: float,
    days: float | None = None,
    budget: float | None = None,
    nodes: int | None = None,
    gpu: str | Sequence[str] = "h100",
    nic: str | Sequence[str] | None = None,
    oversubscription: float | Sequence[float] | None = None,
    topology: ClusterLike = TOPOLOGY,
    blocking: bool = False,
    reliability: str | Path | None = None,
    unlikely: bool = False,
    price: float | None = None,
    costs: str | Path | None = None,
    **overrides: object,
) -> PlanResult:
    """Find the cheapest cluster and split that train on so many tokens in time, as `clustersim plan` does.

    tokens: of the whole run. days: in which it must be over. budget: USD that it may cost. nodes: that it may use at most, spares
    beside them. One of the three is given. gpu, nic, oversubscription: kinds of cluster that are compared, each a value or a
    list. topology: whose nodes are counted anew.
    blocking: steps wait while a checkpoint is written. reliability, costs: files in place of the defaults. unlikely: also splits
    that are unlikely to fit. price: USD a GPU-hour.
    overrides: keys of both that are the same for all. Raises ClustersimError, which says what is wrong, or what would do.
    """
    axes = {"cluster.gpu": gpu, "cluster.nic": nic, "fabric.oversubscription": oversubscription}
    several = {key: _listed(value) for key, value in axes.items() if value is not None}
    asked = plan_request(tokens, days, budget, nodes, by_key(overrides), several, blocking)
    document = workload_document(workload)
    money = figures.load(costs, price)
    case = SweepInputs(
        cluster_document(topology),
        unbuilt(document),
        places=places(document, overrides),
        costs=money,
        unlikely=unlikely,
    )
    return PlanResult(answer(Planner(case, load_reliability(reliability)), asked))


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]
