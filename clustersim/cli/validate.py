"""`clustersim validate FILE.csv …`: simulate measured runs and report the errors of the forecasts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from clustersim.cli.options import CommandOutput, EngineName, Force, Workers
from clustersim.cli.progress import cores, tracked
from clustersim.files import keeping_inputs
from clustersim.report.table import table
from clustersim.writing import unwritable

Outcomes = list[dict[str, Any]]


def validate(
    files: Annotated[list[Path] | None, "Measured runs; default: the shipped published runs.", "FILE.csv …"] = None,
    *,
    ablate: Annotated[
        list[str] | None,
        "Also with one part changed: predictor=roofline|linear|habitat, "
        "fabric=ideal, host=ideal, clocks=boost, nccl=ring|tree.",
        "PART=VALUE|…",
    ] = None,
    memory: Annotated[Path | None, "Measured peaks of memory: columns id and allocated_gib.", "FILE.csv"] = None,
    workers: Workers = None,
    engine: EngineName = "auto",
    out: Annotated[Path | None, "Folder of the result; default results/validate-FILES."] = None,
    calibrate: Annotated[Path | None, "Write the table of intervals from these runs, and use it.", "TABLE.json"] = None,
    force: Force = False,
    output: Annotated[CommandOutput, ("as_json", "quiet", "plugins")],
) -> None:
    """Simulate measured training steps with defaults alone, and compare the times, the memory and the ranking."""
    from clustersim.report.names import default
    from clustersim.report.store import folder_for, question_of
    from clustersim.validate import log, peaks
    from clustersim.validate.page import page
    from clustersim.validate.report import report
    from clustersim.validate.run import STRANGER, UNSEEN, ablations, load, simulate
    from clustersim.validate.runs import PUBLISHED

    paths, changes = files or [PUBLISHED], ablations(ablate or ())
    with keeping_inputs() as read:
        runs = load(paths)
        if memory:
            peaks.read(memory, [run.id for run in runs])
        parts = {f"runs {i}": path for i, path in enumerate(paths, 1)}
        options: dict[str, Any] = {"ablations": ["=".join(change) for change in changes]}
        options |= {"engine": engine} if engine != "auto" else {}
        question = question_of("validate", parts, read, options)
        target = folder_for(
            question, out, default(["validate", *paths], {}, {f"engine-{engine}": engine != "auto"}), force
        )
        with log.opened(target, question, force) as kept:
            show = partial(tracked, silent=output.silent)
            results = simulate(runs, changes, workers or cores(), kept, show, engine)
            outcomes, unseen, strangers = results[None], results[UNSEEN], results[STRANGER]
            title = " ".join(path.name for path in paths)
            if calibrate:
                outcomes, unseen, strangers = _calibrated(calibrate, (outcomes, unseen, strangers), title)
            changed = {"=".join(change): results[change] for change in changes}
            peak = peaks.compare(memory, outcomes) if memory else None
            figures = report(outcomes, changed, peak, unseen, strangers)
            kept.finish(strangers, page(figures, strangers, title))
    every = {"runs": strangers, "runs_left_out": unseen, "runs_in_sample": outcomes, "folder": str(kept.shown)}
    where = f"written to {kept.shown}/ (open report.html in a browser)"
    output.show("validate", lambda: figures | every, lambda: [*_lines(figures, strangers), "", where])


def _calibrated(path: Path, several: Sequence[Outcomes], title: str) -> list[Outcomes]:
    """Write a table of intervals; return outcomes with these. several: in sample, left out, strangers'. Raises InputError."""
    from clustersim.report.store import write_json
    from clustersim.validate.calibrate import recalibrated, table

    _, unseen, strangers = several
    intervals = table(strangers, unseen)
    try:
        write_json(path, {"command": f"clustersim validate {title} --calibrate {path.name}", **intervals})
    except OSError as error:
        raise unwritable(path, error) from error
    return [recalibrated(each, intervals) for each in several]


def _lines(figures: Mapping[str, Any], outcomes: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Yield the errors over all runs, publishers and groups as text, and why runs were not simulated."""
    from clustersim.validate.page import PUBLISHERS, WORST, publishers, sentence, tables, worst_cells
    from clustersim.validate.statistics import worst

    yield sentence(figures)
    farthest = ("Farthest off", WORST[:-1], [worst_cells(row) for row in worst(outcomes)])
    for title, head, rows in (farthest, ("By publisher", PUBLISHERS, publishers(figures)), *tables(figures, outcomes)):
        if rows:
            yield from ("", title, *table([head, *rows], "<>"))
