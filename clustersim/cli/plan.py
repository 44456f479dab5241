"""`clustersim plan`: nodes, split and cost of a training run; `clustersim goodput`: the share of its time that is progress."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.cli import options
from clustersim.cli.answer import PointCommand, amount_text, print_json
from clustersim.cli.main import INTERRUPTED
from clustersim.cli.sweep import best_lines, doubt_lines, is_doubtful
from clustersim.errors import InputError
from clustersim.files import keeping_inputs
from clustersim.report.table import table
from clustersim.units import dollars, plural, scaled, seconds

if TYPE_CHECKING:
    from clustersim.planning.answer import Answer, Change
    from clustersim.planning.planner import TrainingPlan
    from clustersim.planning.reliability import Goodput
    from clustersim.planning.request import PlanRequest
    from clustersim.sweeps.space import Point

GPU = "h100"
"""Default GPU of a plan."""
FABRIC = ("cluster.nic", "fabric.oversubscription")
"""Keys of clusters besides their GPUs over which plans are compared."""
WEIGHED = {"owned": ("usd_owned", "USD owned"), "energy": ("kwh", "kWh")}
"""{objective: (quantity in which changes are compared, its unit)}; all others in rent"""
_BEYOND = {"days": "too late", "budget": "too dear", "nodes": "too large"}
"""Mark of a change that misses each limit."""
REPLICA, PARAMETERS = 128, 25e6
"""GPUs of a replica, and default parameters per GPU: those of Llama 3 405B on 16,384 H100 (arXiv:2407.21783, table 4)."""


def plan(
    workload: options.WorkloadFile,
    *,
    tokens: Annotated[str, "Tokens of the run, such as 15T.", "N"],
    days: Annotated[float | None, "Largest number of days of the run."] = None,
    budget: Annotated[str | None, "Largest cost in USD, such as 20M.", "USD"] = None,
    nodes: Annotated[int | None, "Largest number of nodes, without spares.", {"min": 1}] = None,
    objective: Annotated[
        options.ObjectiveName | None, "Minimize this; default: rent with --days, else soonest."
    ] = None,
    pareto: Annotated[bool, "List all plans that no other beats in all quantities."] = False,
    gpu: Annotated[str | None, f"GPUs to compare: types of node; default {GPU}.", options.RUN["gpu"].values] = None,
    nic: Annotated[str | None, "Line rates of NICs to compare.", options.RUN["nic"].values] = None,
    oversubscription: Annotated[
        str | None, "Oversubscriptions of the leaves to compare.", options.RUN["oversubscription"].values
    ] = None,
    topology: Annotated[Path | None, "Cluster, without its node count; default rail_optimized."] = None,
    settings: options.Setting = None,
    machine: options.MachineOption = None,
    global_batch: Annotated[int | None, "Sequences per step; default: the best number.", {"min": 1}] = None,
    blocking: options.Blocking = False,
    within: options.Within = None,
    reliability: options.ReliabilityFile = None,
    unlikely: options.Unlikely = False,
    prices: options.PriceOptions,
    output: options.SearchOutput,
) -> None:
    """Find the best cluster and split that train on the given tokens in time, failures, checkpoints and spares included.

    Every kind of cluster is sized for itself, with the batch that is best: from the workload's to the one that
    reaches the lowest loss with these tokens. Steps are simulated, and failures event by event.
    With --within or Ctrl-C the search ends with the best plan so far, and says how much better others may be.
    """
    from dataclasses import replace

    from clustersim.config.shipped import find
    from clustersim.optimization.search import Stop
    from clustersim.pages.published import nearest_to
    from clustersim.planning.answer import answer, changes
    from clustersim.planning.planner import Planner
    from clustersim.planning.reliability import load as load_reliability
    from clustersim.planning.request import TOPOLOGY, amount, plan_request
    from clustersim.question import StepQuestion
    from clustersim.sweeps.evaluate import Files, load
    from clustersim.sweeps.space import words

    output.check_file(workload)
    stop = Stop(interruptible=True, within=within)
    axes = {"cluster.gpu": gpu, "cluster.nic": nic, "fabric.oversubscription": oversubscription}
    fixed = options.overrides({"training.global_batch": global_batch, **axes}, settings)
    if gpu is None and not fixed.keys() & {"cluster.gpu", "cluster.node"}:
        axes["cluster.gpu"] = fixed["cluster.gpu"] = GPU
    written = {key: str(fixed.pop(key)) for key, text in axes.items() if text is not None}
    compared = {key: words(key.rpartition(".")[2], text) for key, text in written.items()}
    where = find("topologies", topology or TOPOLOGY)
    fixed = options.on_machine(machine, where, fixed, compared)
    usd = amount("--budget", budget, "20M or 1.5B") if budget else None
    request = plan_request(amount("--tokens", tokens), days, usd, nodes, fixed, compared, blocking, objective, pareto)
    with output.progress() as progress, keeping_inputs() as read:
        progress("plan")
        case = load(Files(str(where), str(workload), read, costs=prices.figures()), unlikely)
        planner = Planner(
            case, load_reliability(reliability), show=lambda *now: progress(_progress_text(*now)), stop=stop
        )
        result = answer(planner, request)
        command = StepQuestion(where, workload, engine="auto", machine=machine).commands()
        near = nearest_to(case, result.plans[0][1].point)
        output.say(*_lines(result, command, workload.stem, "ended early: " if stop.due else ""), str(near["said"]), "")
        others: list[Change] = []
        for change in changes(planner, result) if output.out or output.as_json or not output.quiet else ():
            line = _change_text(result.request, result.plans[0][1], change)
            if line:  # a plan is shown while others are searched
                output.say(f"  {line}" if others else f"what a change is worth:\n  {line}")
            others.append(change)
        if output.out or output.as_json:
            result = replace(result, changes=tuple(others))
            print_json("plan", _fields(result, command) | {"nearest_run": near}, output.out, output.as_json)
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED[0])


def _progress_text(sought: str, done: int, left: int) -> str:
    """Return the progress message: the kind of plan in progress, and the number of splits simulated and left."""
    return f"look for {sought}: {plural(done, 'split', 'splits')} simulated so far, at most {left:,} more may be better"


def _fields(result: Answer, command: PointCommand) -> dict[str, Any]:
    """Return the JSON data of `plan`. command: returns the command of a point, as words.

    Keys: the request (`tokens`, `days`, `budget_usd`, `nodes`), `objective`, `plans` and `pareto` (`_plan_fields`), `without`:
    kinds of clusters and `why` they have no plan, `batches`, `played_days`, and `changes` with the `plan` of each.
    """
    request = result.request
    front = zip(result.winners, result.front, strict=True)
    return {
        "tokens": request.tokens,
        "days": request.days,
        "budget_usd": request.budget,
        "nodes": request.nodes,
        "objective": result.goal,
        "plans": [_plan_fields(plan, command) for _, plan in result.plans],
        "pareto": [{"best_by": goals, **_plan_fields(plan, command)} for goals, (_, plan) in front],
        "without": [{**kind, "why": why} for kind, why in result.without],
        "batches": result.batches,
        "played_days": result.played._asdict(),
        "changes": [
            {
                "what": change.what,
                "free": change.free,
                "plan": change.plan and _plan_fields(change.plan, command),
                "misses": change.misses,
            }
            for change in result.changes
        ],
    }


def _plan_fields(plan: TrainingPlan, command: PointCommand) -> dict[str, Any]:
    """Return the JSON data of a plan. command: returns the command of a point, as words.

    Size and cost of the run: `nodes` (without `spares`), `spares`, `gpus` (with a rank), `days`, `usd` and `usd_owned` (None
    without a price), `kwh`, `co2_kg`. Losses: `progress` (fraction of time not lost to checkpoints, restarts and repeated work),
    `slowest_replica` (its step time over the mean), `goodput` (`progress` / `slowest_replica`), `mtti_s` (mean time between
    interruptions), `checkpoint_interval_s`, `checkpoint_bytes`, `checkpoint_blocking_s` (how long each stops the step),
    `restart_s`. Search: `points` considered, `points_simulated`, `gap` (largest fraction by which another plan may be better;
    None if the search is complete). `step`: row of the simulated step. `run`: command that simulates it.
    """
    share, saved = plan.goodput, plan.goodput.checkpoint
    size = {"nodes": plan.nodes, "spares": share.spares, "gpus": plan.row["ranks"], "days": plan.days}
    took = {key: getattr(plan, key) for key in ("usd", "usd_owned", "kwh", "co2_kg")}
    lost = {"goodput": share.share, "progress": share.progress, "mtti_s": share.mtti}
    kept = {"checkpoint_interval_s": share.interval, "checkpoint_bytes": saved.size}
    rest = {"checkpoint_blocking_s": saved.blocking, "restart_s": share.restart, "slowest_replica": share.slowest}
    points = {"points": plan.screened, "points_simulated": plan.tried, "gap": plan.gap}
    return size | took | lost | kept | rest | points | {"step": plan.row, "run": shlex.join(command(plan.point))}


def _lines(result: Answer, command: PointCommand, workload: str, ended: str) -> Iterator[str]:
    """Yield the plans as a table, why some clusters have none, and failures, checkpoints and the command of the best plan.

    command: returns the command of a point, as words. workload: name in the heading. ended: prefix of the lines on how much
    better other plans may be, such as `ended early: `, or "".
    """
    from clustersim.planning.batches import BATCH, most_tokens
    from clustersim.planning.request import BEST
    from clustersim.report.terminal import wrapped

    request, best = result.request, result.plans[0][1]
    goal = f": the {BEST[result.goal]} plan" if request.objective or result.goal != request.goal else ""
    most, tokens = (scaled(amount, "").strip() for amount in (most_tokens(request.tokens), request.tokens))
    yield from (f"{workload}, {tokens} tokens, within {request.limits_text}{goal}", "", *_table(result.plans))
    if not all(BATCH in kind for kind, _ in result.plans):
        *others, last = map(str, result.batches)
        chosen = f"the best of {', '.join(others)} and {last}" if others else "the workload's"
        sentence = f"batch: {chosen}, a larger one where none of these has a plan; beyond {most} tokens a step learns less from "
        yield from ("", *wrapped(f"{sentence}{tokens} (Li et al. 2025); --global-batch N compares all at one", "", ""))
    yield from ("", *(f"  {why}" for _, why in result.without))
    for kind, plan in result.plans if request.goal == "rent" else ():
        if plan.usd is None:
            yield f"  {_cluster(kind, ())} has the fewest GPUs, as its price is unknown; add --price"
    if result.front:
        yield "no plan that was found beats these in GPUs, days, money and energy:"
        yield from (*_table(result.front, [", ".join(goals) for goals in result.winners]), "")
    share, point = best.goodput, best.goodput.checkpoint
    yield f"a failure every {seconds(share.mtti)} takes {seconds(share.restart)} and the work since the last checkpoint"
    size, every = scaled(point.size, "B"), seconds(share.interval)
    yield f"a checkpoint of {size} every {every} stops the step for {seconds(point.blocking)}"
    yield f"the slowest replica of {best.row['dp']} takes {share.slowest - 1:.2%} longer than their mean"
    mean, deviation, failures = result.played
    yield f"played with its failures ({failures:,.1f} in the mean): {mean:.2f} days, ± {deviation:.2f}"
    yield f"{best.tried} of {plural(best.screened, 'split', 'splits')} on all numbers of nodes were simulated"
    for row, (_, plan) in enumerate(result.plans, 1):
        if plan.gap is not None:
            yield f"{ended}no plan on such a cluster is better than row {row} by more than {plan.gap:.1%}"
    yield from ("", *best_lines(command(best.point)))


def _table(plans: Sequence[tuple[Point, TrainingPlan]], notes: Sequence[str] = ()) -> list[str]:
    """Return a table of (kind of cluster, plan), one per row. notes: objectives by which each is the best; [] for no column."""
    names = "GPU,nodes,GPUs,spares,split,batch,step,MFU,goodput,days,USD,owned,MWh,t CO2e"
    head = ["", *names.split(","), "best by" if notes else ""]
    differ = [key for key in FABRIC if len({str(kind.get(key)) for kind, _ in plans}) > 1]
    cells = [head]
    for place, (kind, plan) in enumerate(plans):
        row, step, kilos = plan.row, seconds(plan.row["expected_step_time_s"]), (plan.kwh / 1e3, plan.co2_kg / 1e3)
        chunks = f" vpp {row['vpp']}" if row["vpp"] > 1 else ""
        split = f"{'! ' if is_doubtful(row) else ''}tp {row['tp']} pp {row['pp']} dp {row['dp']}{chunks}"
        spares = str(plan.goodput.spares)
        size = [f"{place + 1}.", _cluster(kind, differ), f"{plan.nodes:,}", f"{row['ranks']:,}", spares]
        speed = [str(row["global_batch"]), step, f"{row['mfu']:.1%}", f"{plan.goodput.share:.1%}"]
        money = ["-" if usd is None else dollars(usd) for usd in (plan.usd, plan.usd_owned)]
        rest = [amount_text(plan.days, 1), *money, *(amount_text(kilo, 0 if kilo >= 10 else 1) for kilo in kilos)]
        cells.append([*size, split, *speed, *rest, notes[place] if notes else ""])
    return [*table(cells), *doubt_lines([plan.row for _, plan in plans])]


def _cluster(kind: Point, differ: Sequence[str]) -> str:
    """Return the GPU, else the node, of a kind of cluster, and its values of the keys `differ`, as text."""
    suffixes = {"fabric.oversubscription": ":1"}
    others = [f"{kind[key]}{suffixes.get(key, '')}" for key in differ if key in kind]
    return ", ".join([str(kind.get("cluster.gpu", kind.get("cluster.node"))), *others])


def _change_text(request: PlanRequest, best: TrainingPlan, change: Change) -> str:
    """Return the plan of a change in words: nodes, days, difference in cost and step; "" for a free one that saves no time."""
    money, plan = change.request.budget != request.budget, change.plan  # another budget gives the fastest plan
    if plan is None:
        return f"{change.what}: no plan was found{', whatever the deadline' if money else ''}"
    step = plan.row["step_time_s"] / best.row["step_time_s"] - 1
    if change.free and step >= 0:
        return ""
    late = money and "days" in change.misses
    text = f"{change.what}: {'free: ' if change.free else ''}"
    text += f"none within {request.days:g} days, the fastest has " if late else ""
    text += f"{plural(plan.nodes, 'node', 'nodes')}, {amount_text(plan.days, 1)} days"
    name, unit = WEIGHED.get(request.goal, ("usd", "USD"))
    if (new := getattr(plan, name)) is not None and (old := getattr(best, name)) is not None:
        text += f", {'+' if new >= old else ''}{dollars(new - old)} {unit}"
    if (batch := plan.row["global_batch"]) != best.row["global_batch"]:
        text += f", batches of {batch}"
    elif plan.nodes == best.nodes:
        text += f", step {step:+.1%}"
    return text + "".join(f", {_BEYOND[name]}" for name in change.misses if not (late and name == "days"))


def goodput(
    *,
    step: Annotated[str, "Time of a step if nothing disturbs it, such as 5s.", "TIME"],
    nodes: Annotated[int, "Number of nodes of the job.", {"min": 1, "max": 1_000_000}],
    gpu: Annotated[str, "The GPU: a type of node."] = "h100",
    parameters: Annotated[str | None, "Parameters of the model, such as 405B; default 25 million a GPU.", "N"] = None,
    rack: Annotated[int, "Nodes per rack, which fail together.", {"min": 1, "max": 10_000}] = 4,
    blocking: options.Blocking = False,
    reliability: options.ReliabilityFile = None,
    output: Annotated[options.CommandOutput, ("as_json",)],
) -> None:
    """Print how much of a run's time is progress on a cluster with failures: checkpoints, restarts, spares and storage to buy."""
    from clustersim.config.shipped import find
    from clustersim.planning import reliability as rules
    from clustersim.planning.request import amount
    from clustersim.topology.build import load as build

    how, length = rules.load(reliability), options.quantity("--step", step, "time")
    if not length:
        raise InputError(f"--step {step}: write a time above 0, such as 5s")
    node = build(find("topologies", "rail_optimized"), {"cluster.gpu": gpu, "cluster.nodes": 1})
    gpus = nodes * node.gpus
    held = amount("--parameters", parameters, "405B") if parameters else PARAMETERS * gpus
    copies = max(1, gpus // REPLICA)

    def at(times: float) -> Goodput:
        """Return the goodput with storage that is `times` as fast."""
        return rules.goodput(rules.faster(how, times), nodes, gpus, held, copies, not blocking)

    result = at(1.0)
    domains = rules.rack_spares(how, result, nodes, rack)
    storage = rules.enough_storage(how, at) * gpus
    fields = rules.fields(result, domains, length, gpus, storage)
    cluster = nodes, gpus, node.gpu.name
    output.show("goodput", lambda: fields, lambda: rules.lines(result, domains, length, cluster, storage, how))
