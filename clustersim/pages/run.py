"""The page of a run: step time and its uncertainty, where time goes, and what would shorten the step."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from clustersim.config.results import Manifest
from clustersim.costs.bill import rates, step_costs
from clustersim.costs.figures import load
from clustersim.figures.kernels import kernels
from clustersim.pages.network import memory, network
from clustersim.pages.published import nearest
from clustersim.pages.shell import page
from clustersim.pages.timeline import timeline
from clustersim.report.folded_time import folded_time
from clustersim.report.result import ranks_per_stage
from clustersim.report.terminal import NAMES
from clustersim.simulation import StepResult

SCRIPTS = (
    *("words.js", "common.js", "plot.js", "headline.js", "stacked.js", "breakdown.js", "what_ifs.js", "spans.js"),
    *("timeline_view.js", "timeline_paint.js", "step_timeline.js", "memory.js", "picture.js", "network.js"),
    *("kernels.js", "report.js"),
)
STYLES = ("base.css", "report.css")


def run_page(result: StepResult, command: str, manifest: Manifest, why: Mapping[str, object] | None = None) -> str:
    """Return the page as HTML. `command` reproduces the result; `manifest` has its inputs and versions.

    `why` is the output of `clustersim explain --json`. Without it the page names the command that adds what-ifs.
    """
    title = f"{result.summary['name']} on {result.summary['cluster']['name']}"
    return page(title, SCRIPTS, STYLES, run_data(result, command, manifest, why))


def run_data(
    result: StepResult, command: str, manifest: Manifest, why: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the JSON data that the page draws."""
    summary = result.summary
    step = summary["expected_step_time_s"]
    costs = summary.get("costs") or step_costs(rates(result.topology, load()), step, summary["tokens_per_s"] * step)
    return {
        "summary": {key: value for key, value in summary.items() if key != "trace"},
        "names": NAMES,
        "costs": {key: costs[f"{key}_per_1t_tokens"] for key in ("usd", "usd_owned", "kwh", "usd_power")},
        "why": why and {key: why[key] for key in ("bottlenecks", "what_ifs")},
        "published": nearest(result.topology, result.job),
        "ranks": _ranks(result),
        "timeline": timeline(result),
        "memory": memory(result, folded_time(result.record, result.job.parallelism.pp)),
        "network": network(result),
        "kernels": kernels(result)._asdict(),
        "command": command,
        "manifest": manifest.model_dump(
            include={"clustersim", "inputs", "options", "versions", "seed"}, exclude_unset=True
        ),
        "gpu": result.topology.gpu.name,
    }


def _ranks(result: StepResult) -> dict[str, object]:
    """Return the breakdowns of the classes of ranks (`parts`, in s, columns `names`), and the class of each rank.

    `of` are pairs [class, number of consecutive ranks]; `width` is the ranks per pipeline rank.
    """
    names = list(dict.fromkeys(name for part in result.parts for name in part))
    cell_of = result.plan.network.cells.ranks.of.tolist()
    return {
        "names": names,
        "parts": [[round(part.get(name, 0.0), 9) for name in names] for part in result.parts],
        "first": result.plan.first.tolist(),
        "size": result.plan.size.tolist(),
        "width": ranks_per_stage(result.summary),
        "of": [[cell, len(list(ranks))] for cell, ranks in groupby(cell_of)],
    }
