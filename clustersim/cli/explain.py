"""`clustersim explain RESULT`: why a step takes as long as it does, and what would make it shorter."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clustersim.cli.answer import look, print_json
from clustersim.cli.options import Json, MachineOption, Plugins, Quiet, on_machine
from clustersim.cli.progress import progressing
from clustersim.parallel.options import change_words

if TYPE_CHECKING:
    from clustersim.explain.explanation import Explanation
    from clustersim.question import StepQuestion
    from clustersim.simulation import Progress, StepResult


def explain(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="The folder that `clustersim run` wrote.")],
    machine: MachineOption = None,
    plugins: Plugins = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say where the critical path of a result goes, which link is its bottleneck, and what would make the step shorter.

    Every what-if is simulated: its step is that of a run with the flags beside it.
    """
    from clustersim.files import keeping_inputs
    from clustersim.question import StoredRun

    with progressing(quiet or as_json) as progress, keeping_inputs():
        stored = StoredRun.of(result)
        again, question = stored.again(progress), stored.question
        if machine:
            changed = on_machine(machine, question.topology, question.overrides)
            question = replace(question, overrides=changed, machine=machine)
        found = Explained.of(question, progress, None if machine else again)
    if as_json:
        print_json("explain", found.facts)
    elif not quiet:
        typer.echo("\n".join(found.text))


@dataclass(frozen=True, slots=True)
class Explained:
    """An explanation as commands print it."""

    found: Explanation
    question: StepQuestion
    """The run that is explained."""

    @classmethod
    def of(cls, question: StepQuestion, progress: Progress, known: StepResult | None = None) -> Explained:
        """Explain a run; known: its result, where it was simulated already. Raises InputError."""
        from clustersim.explain.explanation import explain as explained

        return cls(explained(question, progress, known), question)

    @property
    def facts(self) -> dict[str, Any]:
        """It as plain data, each what-if with its flags and its command."""
        plain, question = self.found.facts(), self.question.of_what_ifs
        for one in plain["what_ifs"]:
            one["flags"] = _flags(one["changes"])
            one["run"] = shlex.join(question.changed(one["changes"]).words) if one["changes"] else None
        return plain

    @property
    def text(self) -> list[str]:
        """It as lines for a terminal."""
        from clustersim.explain.text import lines

        return lines(self.found, _flags, look())


def _flags(changes: Mapping[str, object]) -> str:
    return shlex.join(change_words(changes))
