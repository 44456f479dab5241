"""`clustersim run TOPOLOGY WORKLOAD`: simulate one training step."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clustersim.cli import options
from clustersim.cli.answer import amount_text, emphasis
from clustersim.errors import InputError, OutOfMemoryError
from clustersim.files import keeping_inputs

if TYPE_CHECKING:
    from clustersim.config.results import Manifest
    from clustersim.explain.explanation import Explanation
    from clustersim.parallel.job import Job
    from clustersim.question import StepQuestion
    from clustersim.simulation import Progress, StepResult
    from clustersim.topology.model import Topology


def run(
    topology: options.TopologyFile,
    workload: options.WorkloadOrModel,
    changes: options.RunChanges,
    *,
    machine: options.MachineOption = None,
    no_fold: options.NoFold = False,
    engine: options.EngineName = "simpy",
    ignore_memory: options.IgnoreMemory = False,
    flops: Annotated[Literal["causal", "full"], "Count causal attention half, or in full."] = "causal",
    out: Annotated[Path | None, "Folder of the result; default results/TOPOLOGY-WORKLOAD-OPTIONS."] = None,
    force: options.Force = False,
    no_save: options.NoSave = False,
    draws: Annotated[int | None, "Draw N steps whose GPUs differ as cluster.jitter says.", "N", {"min": 1}] = None,
    cost: Annotated[bool, "Say what the step costs in dollars, kWh and CO2."] = False,
    prices: options.PriceOptions,
    why: Annotated[bool, "Say what its critical path is, and what would make the step shorter."] = False,
    html: Annotated[bool, "Write report.html with the result: a page for a browser; --why adds what-ifs."] = False,
    timeline: Annotated[Path | None, "Draw the timeline, also as .png or .pdf.", "FILE.svg"] = None,
    output: options.FullOutput,
) -> None:
    """Simulate one training step and say how long it takes, why, and whether it fits."""
    from clustersim.question import StepQuestion
    from clustersim.report import names
    from clustersim.report.store import check_target, folder_for, question_of

    if output.brief and output.verbose:
        raise InputError("--brief and --verbose exclude each other; give one of them")
    changed = {**changes, **({"cluster.jitter.draws": draws} if draws else {})}
    if timeline:
        from clustersim.figures.files import check

        check("--timeline", timeline, (topology, workload))
    if html and no_save:
        raise InputError("--html: the page lies in the folder of the result; leave --no-save out")
    if out and not no_save:
        check_target(out)
    target: Path | None = None
    with output.progress() as progress, keeping_inputs() as files:
        progress("load")
        wanted = options.on_machine(machine, topology, changed)
        how = not no_fold, ignore_memory, flops == "full", engine
        question = StepQuestion(topology, workload, wanted, *how, machine)
        job = question.job
        progress("build")
        cluster = question.cluster
        identity = question_of("run", question.parts, files, question.stored)
        if not no_save:
            flags = {"unfolded": no_fold, "ignore-memory": ignore_memory, "flops-full": flops == "full"}
            flags[f"engine-{engine}"] = engine != "simpy"
            target = folder_for(identity, out, names.default([*question.parts.values()], changed, flags), force)
            if timeline and target.resolve() in timeline.resolve().parents:
                what = "lies in the folder of the result, which is replaced whole; choose another place"
                raise InputError(f"--timeline {timeline}: {what}")
        result = _simulated(question, cluster, job, progress)
        _add_costs(result, cost, prices)
        explained = None
        if why:
            from clustersim.explain.explanation import explained as explain

            explained = explain(question, progress, result, prices.figures())
        if target:
            from clustersim.report.result import save

            progress("save")
            page = {"report.html": _page(result, question, identity, explained)} if html else {}
            parts = result.summary, result.parts, result.record, result.facts.memory
            target = save(target, *parts, identity, force, page)
    if timeline:
        from clustersim.figures import charts
        from clustersim.figures.files import write

        write(timeline, charts.timeline(result))
    summary = result.summary | ({"why": explained.facts()} if explained else {})
    output.show_saved("run", summary, lambda: _lines(result, explained, output), target)


def _simulated(question: StepQuestion, cluster: Topology, job: Job, progress: Progress) -> StepResult:
    """Return the result of a step. Raises OutOfMemoryError, with advice on what would fit, if the job does not."""
    from clustersim.simulation import Simulator

    hint = " (--engine auto takes less time)" if question.engine == "simpy" else ""
    simulator = Simulator(cluster)
    try:
        return question.answer(simulator, job, lambda step: progress(step + hint * step.startswith("simulate")))
    except OutOfMemoryError as error:
        from clustersim.optimization.fit import advice, remedies

        progress("fit")
        larger = remedies(simulator, job, lambda nodes: question.changed({"cluster.nodes": nodes}).cluster)
        error.advice = advice(larger)
        raise


def _add_costs(result: StepResult, wanted: bool, prices: options.Prices) -> None:
    """Add the costs of the step to its summary if `wanted`, or if prices are given."""
    if (figures := prices.figures()) or wanted:
        from clustersim.costs.bill import rates, step_costs
        from clustersim.costs.figures import load

        costs, step = rates(result.topology, figures or load()), result.summary["expected_step_time_s"]
        result.summary["costs"] = step_costs(costs, step, result.summary["tokens_per_s"] * step)


def _page(result: StepResult, question: StepQuestion, identity: Manifest, why: Explanation | None) -> str:
    """Return the HTML page of a result with its manifest (`identity`), and with its what-ifs if `why` is given."""
    from clustersim.pages.run import run_page

    return run_page(result, shlex.join(question.words), identity, why.facts() if why else None)


def _lines(result: StepResult, explained: Explanation | None, output: options.CommandOutput) -> Iterator[str]:
    """Yield the text of a result in the detail that `output` sets, with its costs and explanation, if any."""
    from clustersim.report import terminal

    yield from terminal.lines(result.summary, result.seconds, output.verbose, emphasis(), output.brief)
    if output.verbose:
        from clustersim.report.result import stages_of

        yield from ("", *terminal.timeline(result.record, stages_of(result.plan, result.summary)))
    if "costs" in result.summary:
        costs = result.summary["costs"]
        yield from ("", "what it costs")
        for what, key in (("a step", "step"), ("10^12 tokens", "1t_tokens")):
            money = [(costs[f"usd_per_{key}"], "USD rented"), (costs[f"usd_owned_per_{key}"], "owned")]
            dollars = [f"{amount_text(value, 2)} {words}" for value, words in money if value is not None]
            kwh, power, co2 = (costs[f"{name}_per_{key}"] for name in ("kwh", "usd_power", "co2_kg"))
            energy = f"{amount_text(kwh, 1)} kWh for {amount_text(power, 2)} USD, {amount_text(co2, 1)} kg CO2e"
            yield f"  {what:<13} {', '.join([*dollars, energy])}"
    if explained:
        from clustersim.explain.text import lines

        yield from ("", *lines(explained, emphasis()))
