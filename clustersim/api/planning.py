"""`clustersim optimize` and `clustersim plan` for scripts: the best split, and the cheapest cluster for a training run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from clustersim.api.inputs import (
    ClusterLike,
    WorkloadLike,
    axes_by_key,
    by_key,
    cluster_document,
    places,
    workload_document,
)
from clustersim.api.result import OptimizeResult, PlanResult
from clustersim.config.yaml import Document
from clustersim.costs import figures
from clustersim.errors import InputError
from clustersim.optimization.answer import answer as best_of
from clustersim.optimization.objective import objective
from clustersim.optimization.search import free
from clustersim.parallel.load import unbuilt
from clustersim.planning.answer import answer, changes
from clustersim.planning.planner import Planner
from clustersim.planning.reliability import load as load_reliability
from clustersim.planning.request import TOPOLOGY, amount, plan_request
from clustersim.sweeps.evaluate import SweepInputs
from clustersim.sweeps.legal import AUTO
from clustersim.sweeps.space import SweepSpace


def optimize(
    cluster: ClusterLike,
    workload: WorkloadLike,
    *,
    goal: str = "soonest",
    target: float | None = None,
    top: int = 5,
    unlikely: bool = False,
    price: float | None = None,
    costs: str | Path | None = None,
    **axes: object,
) -> OptimizeResult:
    """Find the best split of a model on a cluster over all legal degrees and options, as `clustersim optimize` does.

    `cluster` and `workload` are those of `simulate`. `goal` is minimized per token: time ("soonest"), USD ("rent", or "owned"
    machines) or "energy"; or the "gpus" that reach `target` tokens/s. `top` is the number of results. `unlikely` includes
    splits that are unlikely to fit. `price` is in USD per GPU-hour, `costs` a file of prices and power. `axes` are keys as in
    `sweep`, each a value or a list; "auto" means all legal values. The default is "auto" for tp, pp, ep, expert_tp, micro_batch,
    recompute, schedule, vpp and zero, and for values of cp that keep at least 2,048 tokens of a sequence together. Each split
    gets the overlap that suits it best, unless it is set. Raises ClustersimError with the place and the problem.

    >>> optimize("hgx_h100_8", "gpt3_xl", tp=[1, 2], pp=1, top=1).best["tp"] in (1, 2)
    True
    """
    if not isinstance(top, int) or top < 1:
        raise InputError(f"top={top!r}: write a whole number of 1 or more")
    document = workload_document(workload)
    case = _case(cluster, document, axes, figures.load(costs, price), unlikely)
    tried, single = axes_by_key(axes)
    auto = {key for key, value in single.items() if value == AUTO and key != "parallelism.dp"}
    auto |= set(free({*single, *tried}))
    fixed = {key: value for key, value in single.items() if key not in auto}
    space = SweepSpace(tried, fixed, frozenset(), tuple(sorted(auto)))
    return OptimizeResult(best_of(case, space, objective(goal, target), top))


def plan(
    workload: WorkloadLike,
    *,
    tokens: float | str,
    days: float | None = None,
    budget: float | str | None = None,
    nodes: int | None = None,
    gpu: str | Sequence[str] = "h100",
    nic: str | Sequence[str] | None = None,
    oversubscription: float | Sequence[float] | None = None,
    topology: ClusterLike = TOPOLOGY,
    blocking: bool = False,
    reliability: str | Path | None = None,
    goal: str | None = None,
    pareto: bool = False,
    unlikely: bool = False,
    price: float | None = None,
    costs: str | Path | None = None,
    **overrides: object,
) -> PlanResult:
    """Find the best cluster and split that train on `tokens` tokens ("15T" or 15e12) in time, as `clustersim plan` does.

    At least one limit is compared: `days` of the whole run, `budget` in USD, or `nodes` without spares. `gpu`, `nic` and
    `oversubscription` are the kinds of cluster to compare, each a value or a list. `topology` is the cluster whose number of
    nodes is varied. With `blocking`, steps wait while a checkpoint is written. `reliability` and `costs` are files that replace
    the defaults. `goal` is minimized: "rent" (default with `days`), "owned", "gpus", "energy" or "soonest" (default). `pareto`
    also finds all plans that no other beats. `unlikely` includes splits that are unlikely to fit. `price` is in USD per GPU-hour.
    `overrides` are keys that all clusters share. Raises ClustersimError with the problem, or with what would be possible.

    >>> planned = plan("gpt3_xl", tokens=1e9, nodes=1, tp=1, pp=1, recompute="none", micro_batch=4)
    >>> planned.nodes
    1
    """
    axes = {"cluster.gpu": gpu, "cluster.nic": nic, "fabric.oversubscription": oversubscription}
    compared = {key: value for key, value in axes.items() if value is not None}
    several = {key: list(value) if isinstance(value, list | tuple) else [value] for key, value in compared.items()}
    total = amount("tokens=", tokens) if isinstance(tokens, str) else tokens
    usd = amount("budget=", budget) if isinstance(budget, str) else budget
    request = plan_request(total, days, usd, nodes, by_key(overrides), several, blocking, goal, pareto)
    document = workload_document(workload)
    case = _case(topology, document, overrides, figures.load(costs, price), unlikely)
    planner = Planner(case, load_reliability(reliability))
    result = answer(planner, request)
    return PlanResult(replace(result, changes=tuple(changes(planner, result))))


def _case(
    cluster: ClusterLike, workload: Document, keywords: Iterable[str], costs: figures.Figures, unlikely: bool
) -> SweepInputs:
    """Return the inputs of a search. keywords: names that error messages use for their keys. unlikely: whether to
    include splits that are unlikely to fit into memory."""
    named = places(workload, keywords)
    return SweepInputs(cluster_document(cluster), unbuilt(workload), places=named, costs=costs, unlikely=unlikely)
