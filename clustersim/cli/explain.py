"""`clustersim explain RESULT`: the causes of a step's time, and changes that would shorten it."""

from __future__ import annotations

from dataclasses import replace

from clustersim.cli.answer import look
from clustersim.cli.options import MachineOption, ResultFolder, StandardOutput, on_machine


def explain(result: ResultFolder, *, machine: MachineOption = None, output: StandardOutput) -> None:
    """Say where the critical path of a result goes, which link is its bottleneck, and what would make the step shorter.

    Every what-if is simulated: its step is that of `run` with the flags next to it.
    """
    from clustersim.explain.explanation import explained
    from clustersim.explain.text import lines
    from clustersim.question import StoredRun

    stored = StoredRun.of(result)
    with output.progress() as progress, stored.holding():
        again, question = stored.again(progress), stored.question
        if machine:
            changed = on_machine(machine, question.parts["topology"], question.overrides)
            question = replace(question, overrides=changed, machine=machine)
        found = explained(question, progress, None if machine else again)
    output.show("explain", found.facts, lambda: lines(found, look()))
