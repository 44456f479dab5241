"""`clustersim optimize TOPOLOGY WORKLOAD`: the best of all legal splits, proved, with reasons."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.cli import options
from clustersim.cli.answer import PointCommand
from clustersim.cli.main import INTERRUPTED
from clustersim.cli.sweep import best_lines, likely_lines, point_table
from clustersim.files import keeping_inputs
from clustersim.units import plural

if TYPE_CHECKING:
    from clustersim.optimization.search import SearchResult


def optimize(
    topology: options.TopologyFile,
    workload: options.WorkloadOrModel,
    changes: options.SweptKeys,
    *,
    settings: options.Settings = None,
    machine: options.MachineOption = None,
    objective: Annotated[options.ObjectiveName, "Minimize this per token; gpus: those for --target."] = "soonest",
    target: Annotated[float | None, "Tokens/s that --objective gpus must reach.", "TOKENS/S"] = None,
    top: Annotated[int, "Number of best splits to find.", {"min": 1, "max": 1000}] = 5,
    trials: Annotated[int | None, "Largest number of simulations.", {"min": 1, "max": 1_000_000}] = None,
    within: options.Within = None,
    unlikely: options.Unlikely = False,
    engine: options.EngineName = "auto",
    prices: options.PriceOptions,
    output: options.SearchOutput,
) -> None:
    """Find the best split of a model on a cluster, over all legal degrees and options, and say why it is the best.

    Tried are all legal values of tp, pp, ep, expert_tp, micro-batch, recompute, schedule, vpp, zero and overlap that a named
    framework has, and those of cp that leave 2,048 tokens or more of a sequence together; options fix one or list some, as in
    sweep. Each split likely fits and has the overlap that suits it best. What a lower bound proves to be worse is not simulated.
    With --within, --trials or Ctrl-C the search ends with the best so far, and says how much better the rest may be.
    """
    from clustersim.optimization.answer import answer, untried
    from clustersim.optimization.objective import objective as objective_of
    from clustersim.optimization.search import Limits, Stop, free
    from clustersim.pages.published import nearest_to
    from clustersim.question import StepQuestion
    from clustersim.sweeps.axes import space
    from clustersim.sweeps.evaluate import Files, load

    output.check_file(topology, workload)
    written, stop = options.by_key(settings), Stop(interruptible=True, within=within)
    set_keys = {key for key, value in changes.items() if value is not None} | written.keys()
    requested = space({**changes, **dict.fromkeys(free(set_keys), "auto")}, written)
    requested = replace(requested, fixed=options.on_machine(machine, topology, requested.fixed, requested.axes))
    goal = objective_of(objective, target)
    with output.progress() as progress, keeping_inputs() as read:
        progress("load")
        case = load(Files(str(topology), str(workload), read, engine, prices.figures()), unlikely)

        def tell(done: int, left: int, gap: float | None) -> None:
            """Show the splits simulated and left, and the gap."""
            better = "" if gap is None else f", none better by more than {gap:.1%}"
            progress(f"simulate: {done} done, at most {left:,} left{better}")

        result = answer(case, requested, goal, top, tell, Limits(stop, trials or math.inf))
    words = StepQuestion(topology, workload, engine=engine, machine=machine).commands(requested.by_set)
    near = nearest_to(case, result.best[0].point)
    output.show(
        "optimize",
        lambda: _fields(result, words) | {"nearest_run": near},
        lambda: [*_lines(result, words), str(near["said"]), *filter(None, [untried(case, requested)])],
    )
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED[0])


def _fields(result: SearchResult, words: PointCommand) -> dict[str, Any]:
    """Return the JSON data of `optimize`: `objective`, `points`, `points_simulated` and other counts, `best_run`, `rows`.

    A row is a split with `run` (command), `same` (commands of equal steps) and `why` it is worse. `points_open` and `gap` are
    there only if the search ended early. words: returns the command of a point.
    """
    from clustersim.optimization.why import why

    rows = [
        {
            **split.row,
            "run": shlex.join(words(split.point)),
            "same": [shlex.join(words(point)) for point in split.same],
            "why": "" if place == 0 else why(result.best[0].row, split.row, result.goal),
        }
        for place, split in enumerate(result.best)
    ]
    counts: dict[str, float] = {"points": result.points, "points_simulated": result.simulated}
    counts |= {"points_bounded": result.bounded, "points_same": result.twins}
    counts |= {} if result.gap is None else {"points_open": result.open_points, "gap": result.gap}
    reasons = {f"points_{name.replace('does not fit', 'not_fitting')}": n for name, n in result.refused.counts.items()}
    return {"objective": result.goal, **counts, **reasons, "best_run": rows[0]["run"], "rows": rows}


def _lines(result: SearchResult, words: PointCommand) -> list[str]:
    """Return the best splits as a table, commands by `words`, why the first is the best, and counts of other splits."""
    from clustersim.optimization.why import same, why
    from clustersim.report.terminal import wrapped

    points = [split.point for split in result.best]
    rows = [{**split.row, "run": shlex.join(words(split.point))} for split in result.best]
    lines = [*point_table(rows, points, True, [result.goal]), *best_lines(words(points[0])), *likely_lines(rows)]
    reasons = []
    for place, split in enumerate(result.best):
        behind = [why(result.best[0].row, split.row, result.goal)] if place else []
        if reason := "; ".join([*behind, *filter(None, [same(split)])]):
            reasons += wrapped(f"{place + 1}. {reason}", "  ", "   ")
    lines += ["why it is the best:", *reasons, ""] if reasons else []
    found_of = f"{result.simulated:,} of {result.points:,} points were simulated"
    out = [f"{found_of}; {result.bounded:,} are worse by a lower bound"]
    out += [f"{result.twins:,} take the same step as one of these"] if result.twins else []
    names = {"does not fit": "are not likely to fit"}
    out += [f"{n:,} {names.get(name, name)}" for name, n in result.refused.counts.items()]
    such = [f"  {kind}, such as: {why}" for kind, why in result.refused.examples.items() if kind != "does not fit"]
    if result.gap is not None:
        many = plural(result.open_points, "point was", "points were")
        better = f"none is better than the first by more than {result.gap:.1%}"
        such.append(f"ended early: {many} not reached, of which {better}")
    return [*lines, ", ".join(out), *such]
