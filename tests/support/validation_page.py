"""What `scripts/update-validation` writes of a validation: Markdown for docs and README, a picture, and the shipped table."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clustersim.figures.canvas import svg
from clustersim.report.calibration import WORDS
from clustersim.validate import drawing
from clustersim.validate.page import known_errors, sentence, tables
from clustersim.validate.runs import Run
from clustersim.validate.statistics import FEWEST, compared

SUPPORT = Path(__file__).parent
FIRST_CONTACTS = SUPPORT / "first_contacts.csv"
"""Forecasts of new publishers made before their runs were examined; this file is only appended to."""
FEW = 40
"""Number of runs of a cell below which its errors are not shown."""
Found = Mapping[str, Any]
"""Content of `clustersim validate --json`."""


def complete_runs(data: Path) -> list[Path]:
    """Return the files of wholly published runs: those of the folder `data` and those collected at a first contact."""
    names = ("calibration", "dev", "open", "open_4")
    return [*(data / f"training_runs_{name}.csv" for name in names), SUPPORT / "first_contact_runs.csv"]


def partial_runs(data: Path) -> list[Path]:
    """Return the files of runs whose sources leave a part of the configuration open, as `complete_runs`."""
    names = ("open_partial", "open_4_partial")
    return [*(data / f"training_runs_{name}.csv" for name in names), SUPPORT / "first_contact_runs_partial.csv"]


def publishers(found: Found) -> str:
    """Return, as Markdown, the main result and the errors by publisher."""
    several = {name: one for name, one in found["groups"]["publisher"].items() if one["runs"] >= FEWEST}
    rows = [[name, *_figures(one), *known_errors(found, name)] for name, one in several.items()]
    if others := [one for name, one in found["groups"]["publisher"].items() if name not in several]:
        rows.append([f"{len(others)} with fewer", *_figures(_together(others)), "", ""])
    return f"{sentence(found)}\n\n{_table(('publisher', *SHORT, 'left out', 'in sample'), rows)}"


def _together(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the combined figures of several groups."""
    runs, bounded = (sum(one[count] for one in each) for count in ("runs", "with_interval"))
    means = {name: sum(one["runs"] * one[name] for one in each) / runs for name in ("mean_error", "bias")}
    inside = sum(one["with_interval"] * (one["inside"] or 0) for one in each) / bounded if bounded else None
    return {"runs": runs, **means, "inside": inside}


def first_contacts() -> str:
    """Return, as Markdown, the record of forecasts for publishers that were made before their runs were examined."""
    with FIRST_CONTACTS.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    shown = [[*row[:4], f"{row[4]}%", f"{float(row[5]):+.1f}%", f"{row[6]}%"] for row in rows]
    return _table(head, shown)


def cells(found: Found) -> str:
    """Return, as Markdown, the errors by cell with at least FEW runs, and the runs that were not simulated."""
    several = {name: one for name, one in found["groups"]["cell"].items() if one["runs"] >= FEW}
    refused = ", ".join(f"{count} {kind}" for kind, count in found["refused"].items())
    table = _errors("GPU, precision, tensor parallelism, sequence, scale", several)
    return f"{table}\n\nNot simulated: {refused}." if refused else table


def peers(found: Found) -> str:
    """Return, as Markdown, the errors of other tools and ours on the runs that both forecast."""
    return _only(found, "Others on the same runs")


def ablations(found: Found) -> str:
    """Return, as Markdown, the errors without changes and with each part changed."""
    return _errors("one part changed", {"none": found["in_sample"], **found["ablations"]})


def mappings(found: Found) -> str:
    """Return, as Markdown, the errors of all and of the sound mappings, their ranking, and verdicts on memory."""
    titles = ("Mappings of which many were late", "Ranking of mappings", "Does it fit?")
    parts, fit = [_only(found, title) for title in titles], found["fit"]
    if fit and fit["memory_mean_error"] is not None:
        size, bias = 100 * fit["memory_mean_error"], 100 * fit["memory_bias"]
        parts.append(f"Peak memory: mean error {size:.1f} %, bias {bias:+.1f} %.")
    return "\n\n".join(parts)


def intervals(table: Mapping[str, Any]) -> str:
    """Return, as Markdown, the share of each group's steps inside intervals that were made without the step's publisher."""
    low, high = (100 * (math.exp(sign * table["bound"]) - 1) for sign in (-1, 1))
    head = (
        f"{100 * table['inside_when_left_out']:.0f} % of {table['rows']:,} runs of {len(table['seen'])} publishers lie inside. "
        f"An interval is {low:+.0f} to {high:+.0f} %, and wider where a step is unlike all published ones."
    )
    rows = [
        [WORDS[name].format(group), str(runs), f"{100 * inside / runs:.0f}%"]
        for name in WORDS
        for group, (runs, inside) in table["groups"][name].items()
        if runs >= FEW
    ]
    return f"{head}\n\n{_table(('published steps', 'runs', 'inside'), rows)}"


def memory(found: Found) -> str:
    """Return, as Markdown, the errors of peak memory."""
    peaks = found["memory"]
    return (
        f"{peaks['compared']} of {peaks['peaks']} peaks compared: mean error {100 * peaks['mean_error']:.2f} %, "
        f"worst {100 * peaks['worst_error']:.1f} %, bias {100 * peaks['bias']:+.1f} %."
    )


def picture(found: Found) -> str:
    """Return predicted against measured seconds as an SVG file."""
    return svg(drawing.scatter(compared(found["runs"])))


SHORT = ("runs", "mean", "bias", "inside")


def _figures(errors: Mapping[str, Any]) -> list[str]:
    """Return the figures of a group as text: number of runs, mean error, bias, share inside the interval."""
    inside = "none" if errors["inside"] is None else f"{100 * errors['inside']:.0f}%"
    return [str(errors["runs"]), f"{100 * errors['mean_error']:.1f}%", f"{100 * errors['bias']:+.1f}%", inside]


def _errors(title: str, groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table of the errors of groups. title: heading of the column with their names."""
    return _table((title, *SHORT), [[name, *_figures(one)] for name, one in groups.items()])


def _only(found: Found, title: str) -> str:
    """Return the page's table with a title; "" if the validation does not have it."""
    return next((_table(head, rows) for name, head, rows in tables(found, found["runs"]) if name == title), "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


EACH = 4
"""Largest number of runs per source."""
LONGEST = 4_000
"""Largest number of passes of a run, so that each takes seconds."""


def chosen(runs: Sequence[Run], outcomes: Mapping[str, Mapping[str, Any]]) -> Iterator[Run]:
    """Yield the runs of the table: for every source that is simulated, EACH runs at equal steps through it."""
    found: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if outcomes[run.id]["status"] == "ok" and _passes(run) <= LONGEST:
            found[run.publisher].append(run)
    for several in found.values():
        count = min(len(several), EACH)
        yield from (several[k * len(several) // count] for k in range(count))


def _passes(run: Run) -> int:
    """Return the number of forward passes of all stages of a replica."""
    return (run.global_batch or 0) // ((run.dp or 1) * (run.micro_batch or 1)) * (run.pp or 1)
