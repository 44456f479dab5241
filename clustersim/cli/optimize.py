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
from clustersim.cli.sweep import best_lines, likely, point_table
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
    given = {key for key, value in changes.items() if value is not None} | written.keys()
    asked = space({**changes, **dict.fromkeys(free(given), "auto")}, written)
    asked = replace(asked, fixed=options.on_machine(machine, topology, asked.fixed, asked.axes))
    wanted = objective_of(objective, target)
    with output.progress() as progress, keeping_inputs() as read:
        progress("load")
        case = load(Files(str(topology), str(workload), read, engine, prices.figures()), unlikely)

        def tell(done: int, left: int, gap: float | None) -> None:
            better = "" if gap is None else f", none better by more than {gap:.1%}"
            progress(f"simulate: {done} done, at most {left:,} left{better}")

        found = answer(case, asked, wanted, top, tell, Limits(stop, trials or math.inf))
    words = StepQuestion(topology, workload, engine=engine, machine=machine).commands(asked.by_set)
    near = nearest_to(case, found.best[0].point)
    output.show(
        "optimize",
        lambda: _fields(found, words) | {"nearest_run": near},
        lambda: [*_lines(found, words), str(near["said"]), *filter(None, [untried(case, asked)])],
    )
    if stop.interrupted:
        raise typer.Exit(INTERRUPTED[0])


def _fields(found: SearchResult, words: PointCommand) -> dict[str, Any]:
    """Return the best splits, each with its command and its loss to the best, and counts of other splits, as JSON data."""
    from clustersim.optimization.why import why

    rows = [
        {
            **one.row,
            "run": shlex.join(words(one.point)),
            "same": [shlex.join(words(point)) for point in one.same],
            "why": "" if place == 0 else why(found.best[0].row, one.row, found.goal),
        }
        for place, one in enumerate(found.best)
    ]
    counts: dict[str, float] = {"points": found.points, "points_simulated": found.simulated}
    counts |= {"points_bounded": found.bounded, "points_same": found.twins}
    counts |= {} if found.gap is None else {"points_open": found.open_points, "gap": found.gap}
    reasons = {f"points_{name.replace('does not fit', 'not_fitting')}": n for name, n in found.refused.counts.items()}
    return {"objective": found.goal, **counts, **reasons, "best_run": rows[0]["run"], "rows": rows}


def _lines(found: SearchResult, words: PointCommand) -> list[str]:
    """Return the best splits as a table, the command of the best, why it is the best, and counts of other splits."""
    from clustersim.optimization.why import same, why
    from clustersim.report.terminal import wrapped

    points = [one.point for one in found.best]
    rows = [{**one.row, "run": shlex.join(words(one.point))} for one in found.best]
    lines = [*point_table(rows, points, True, found.goal), *best_lines(words(points[0])), *likely(rows)]
    reasons = []
    for place, one in enumerate(found.best):
        behind = [why(found.best[0].row, one.row, found.goal)] if place else []
        if said := "; ".join([*behind, *filter(None, [same(one)])]):
            reasons += wrapped(f"{place + 1}. {said}", "  ", "   ")
    lines += ["why it is the best:", *reasons, ""] if reasons else []
    found_of = f"{found.simulated:,} of {found.points:,} points were simulated"
    out = [f"{found_of}; {found.bounded:,} are worse by a lower bound"]
    out += [f"{found.twins:,} take the same step as one of these"] if found.twins else []
    names = {"does not fit": "are not likely to fit"}
    out += [f"{n:,} {names.get(name, name)}" for name, n in found.refused.counts.items()]
    such = [f"  {kind}, such as: {why}" for kind, why in found.refused.examples.items() if kind != "does not fit"]
    if found.gap is not None:
        many = plural(found.open_points, "point was", "points were")
        better = f"none is better than the first by more than {found.gap:.1%}"
        such.append(f"ended early: {many} not reached, of which {better}")
    return [*lines, ", ".join(out), *such]
