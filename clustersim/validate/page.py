"""The page of a validation: one HTML file without requests, in the colours of the reader's choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from clustersim.figures.canvas import FAINT, GRID, INK, PAPER, Canvas, svg
from clustersim.units import duration
from clustersim.validate import drawing
from clustersim.validate.evaluate import Outcome
from clustersim.validate.statistics import GROUPS, compared, worst
from clustersim.version import __version__

TITLES = {
    "publisher": "By publisher",
    "cell": "By GPU, precision, tensor parallelism, sequence and scale",
    "gpu": "By GPU",
    "framework": "By framework",
    "gpus": "By number of GPUs",
    "launching": "By host-bound share (what launching kernels takes of the forecast, at 12 us each)",
    "parallelism": "By parallelism (degrees above 1)",
    "precision": "By precision",
}
STYLE = Path(__file__).parent / "page.css"
THEME = (
    *(("fill", PAPER, "paper"), ("fill", drawing.BAND, "soft")),
    *(("stroke", GRID, "faint"), ("stroke", FAINT, "dim"), ("stroke", INK, "ink")),
)
"""(attribute, colour in pictures, variable of page.css that replaces it), for readers who prefer a dark page."""
TableRows = Sequence[Sequence[str]]


def page(result: Mapping[str, Any], outcomes: Sequence[Outcome], title: str) -> str:
    """Return the page as HTML; equal outcomes give equal text. result: of `report.report`. title: words after `validate`."""
    body = "\n".join(_sections(result, outcomes))
    theme = [f'svg [{name}="{colour}"] {{ {name}: var(--{variable}) }}\n' for name, colour, variable in THEME]
    style = STYLE.read_text(encoding="utf-8") + "".join(theme)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>clustersim validate: {escape(title)}</title>\n<style>\n{style}</style>\n"
        f"<h1>Forecasts against measured steps</h1>\n{body}\n"
        f"<footer><p>clustersim {__version__}, <code>clustersim validate {escape(title)}</code></p></footer>\n</html>\n"
    )


def _sections(result: Mapping[str, Any], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the sections of the page as HTML: main result, charts, worst runs, runs not simulated, tables."""
    rows = compared(outcomes)
    yield f'<p class="answer">{escape(sentence(result))}</p>'
    if rows:
        yield from _pictures(result, rows)
        yield from _worst(rows)
    for title, head, cells in tables(result, outcomes):
        yield f"<h2>{escape(title)}</h2>"
        yield _table(head, cells)


def sentence(result: Mapping[str, Any]) -> str:
    """Return the main result: errors and coverage of strangers' runs, then of runs that were used."""
    total = result["stranger"]
    if not total["runs"]:
        return f"None of {result['runs_read']} runs could be compared."
    mean, median, tail, bias = (
        100 * total[key] for key in ("publisher_mean_error", "median_error", "p90_error", "bias")
    )
    known = total["with_interval"]
    inside = f" {100 * total['inside']:.0f} % lie inside their interval (it promises 80 %)." if known else ""
    left_out, in_sample = (100 * result[name]["publisher_mean_error"] for name in ("left_out", "in_sample"))
    return (
        f"{total['runs']} of {result['runs_read']} runs of {total['publishers']} publishers compared, each as a stranger's: "
        f"without all that was read from its publisher or is used by it alone. Mean error over publishers {mean:.1f} %; over "
        f"runs median {median:.1f} %, one in ten above {tail:.0f} %, bias {bias:+.1f} %.{inside} Left out of constants alone: "
        f"{left_out:.1f} %. In sample: {in_sample:.1f} %."
    )


def _pictures(result: Mapping[str, Any], rows: Sequence[Outcome]) -> Iterator[str]:
    """Yield the scatter of times, and for each grouping the errors of at most 25 groups, as HTML."""
    yield "<h2>Predicted against measured</h2>"
    yield '<p class="dim">Solid: equal. Dashed: 10 % off, and fainter 30 %. Below the line the forecast is too fast.</p>'
    yield _inline(drawing.scatter(rows))
    for name, group_of in GROUPS.items():
        errors: defaultdict[str, list[float]] = defaultdict(list)
        for row in rows:
            errors[group_of(row)].append(row["error"])
        shown = list(result["groups"][name])[:25]
        yield f"<h2>{TITLES[name]}</h2>"
        yield _inline(drawing.spread({group: errors[group] for group in shown}))
        yield _table(HEAD, [[group, *figures(result["groups"][name][group])] for group in shown])


def _inline(canvas: Canvas) -> str:
    """Return a picture as part of the page, in which an SVG element needs no namespace."""
    return svg(canvas).replace(' xmlns="http://www.w3.org/2000/svg"', "")


HEAD = ("", "runs", "mean", "median", "90th", "bias", "inside the interval")


def figures(errors: Mapping[str, Any]) -> list[str]:
    """Return the cells of a group below HEAD, without its name. errors: result of `statistics.errors` with at least one run."""
    inside = (
        f"{100 * errors['inside']:.0f} % of {errors['with_interval']}" if errors["with_interval"] else "no interval"
    )
    shares = (f"{100 * errors[key]:.1f} %" for key in ("mean_error", "median_error", "p90_error"))
    return [str(errors["runs"]), *shares, f"{100 * errors['bias']:+.1f} %", inside]


PUBLISHERS = ("publisher", *HEAD[1:], "left out", "in sample")


def publishers(result: Mapping[str, Any]) -> TableRows:
    """Return the rows below PUBLISHERS of a `report`: errors as a stranger, and if they differ, left out and in sample."""
    return [[name, *figures(row), *known_errors(result, name)] for name, row in result["groups"]["publisher"].items()]


def known_errors(result: Mapping[str, Any], publisher: str) -> list[str]:
    """Return a publisher's mean error without its constants only, and in sample, as text.

    Blank if equal to the figure before: the error as a stranger, or without its constants.
    """
    kinds = (result["groups"]["publisher"], result["publishers_left_out"], result["publishers_in_sample"])
    means = [kind[publisher]["mean_error"] for kind in kinds]
    return ["" if mean == before else f"{100 * mean:.1f}%" for before, mean in pairwise(means)]


WORST = ("run", "model", "on", "measured", "predicted", "80 %", "error", "launching", "where the forecast goes")
LAUNCHING = (
    "Launching: the share of the forecast that a CPU needs to launch its kernels one by one, 12 us each; not in it."
)


def _worst(rows: Sequence[Outcome]) -> Iterator[str]:
    """Yield the table of the ten outcomes with the largest errors, as HTML."""
    farthest = worst(rows)
    used = {part for row in farthest for part, seconds in row["breakdown_s"].items() if seconds}
    yield "<h2>The ten farthest off</h2>"
    yield f'<div class="legend">{drawing.parts_legend(used.__contains__)}</div>'
    yield _table(WORST, [worst_cells(row) for row in farthest], (1, 2), [_inline(drawing.bar(row)) for row in farthest])
    yield f"<p class='dim'>{LAUNCHING}</p>"


def worst_cells(row: Outcome) -> list[str]:
    """Return the cells of an outcome below WORST, without its picture."""
    split = f"tp {row['tp']} pp {row['pp']} dp {row['dp']}, microbatch {row['micro_batch'] or '?'}"
    times = (duration(row[key]) for key in ("measured_s", "predicted_s"))
    shares = (f"{100 * row['error']:+.1f} %", f"{100 * row['launching']:.0f} %")
    inside = "none" if row["low_s"] is None else f"{duration(row['low_s'])} to {duration(row['high_s'])}"
    return [row["id"], row["model"], f"{row['num_gpus']} × {row['gpu']}, {split}", *times, inside, *shares]


def tables(result: Mapping[str, Any], outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Sequence[str], TableRows]]:
    """Yield (title, head, rows) of the tables that only some validations have."""
    if result["ablations"]:
        rows = [["as it is", *figures(result["in_sample"]), ""]]
        rows += [[name, *figures(e), _moved(e)] for name, e in result["ablations"].items() if e["runs"]]
        yield "What each part buys", ("one part changed", *HEAD[1:], "forecasts moved"), rows
    if result["peers"]:
        rows = [
            [name, str(row["runs"]), *(f"{100 * row[key]:.1f} %" for key in ("mean_error", "ours"))]
            for name, row in result["peers"].items()
        ]
        yield "Others on the same runs", ("tool", "runs", "its mean error", "clustersim's"), rows
    sound = result["sound"]
    if sound:
        rows = [["all", *figures(result["left_out"])], ["sound ones", *figures(sound)]]
        yield "Mappings of which many were late", ("runs", *HEAD[1:]), rows
    if several := sound["sweeps"] if sound else result["sweeps"]:
        head = ("sweep", "mappings", "mean", "median", "bias", "Spearman", "regret of the first pick")
        yield "Ranking of mappings", head, [_sweep_cells(row) for row in several]
    if fit := result["fit"]:
        kinds = [("ran", "ran_and_fits", "ran: said to fit likely")]
        kinds += [("crashed", "crashed_and_does_not_fit", "crashed or out of memory: said not to, or not to run")]
        kinds += [("first_picks", "first_picks_ran", "first picks that likely fit, one a sweep: ran")]
        rows = [[words, str(fit[n]), _share(fit[right], fit[n])] for n, right, words in kinds]
        yield "Does it fit?", ("", "runs", "forecast right"), rows
    if memory := result["memory"]:
        rows = [[row["id"], row["model"], f"{row['measured_gib']:.2f}", *_peak_cells(row)] for row in memory["runs"]]
        yield "Peak memory, GiB", ("run", "model", "measured", "predicted", "error"), rows
    if result["refused"]:
        rows = [[kind, str(n), example(outcomes, kind)] for kind, n in result["refused"].items()]
        yield "Not simulated", ("reason", "runs", "such as"), rows


def _moved(errors: Mapping[str, Any]) -> str:
    """Return the forecasts moved and the largest move, such as `23, by up to 0.02 %`. errors: with the result of `moved`."""
    most = 100 * errors["moved_most"]
    return f"{errors['moved']}, by up to {most:.{2 if most < 1 else 0}f} %" if errors["moved"] else "none"


def _sweep_cells(sweep: Mapping[str, Any]) -> list[str]:
    """Return the cells of a sweep, a result of `ranking.sweeps`, in the table of rankings."""
    name = f"{sweep['publisher']}: {sweep['model']} on {sweep['num_gpus']} × {sweep['gpu']}"
    rank = "" if sweep["spearman"] is None else f"{sweep['spearman']:.2f}"
    sizes = (f"{100 * sweep[key]:.1f} %" for key in ("mean_error", "median_error"))
    return [name, str(sweep["runs"]), *sizes, f"{100 * sweep['bias']:+.1f} %", rank, f"{100 * sweep['regret']:.1f} %"]


def _share(part: int, total: int) -> str:
    """Return a count and its share of `total`, such as `3 (75 %)`; `0` if `total` is 0."""
    return f"{part} ({100 * part / total:.0f} %)" if total else "0"


def _peak_cells(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the predicted GiB of a memory peak and its error, or "" and the reason why there is no forecast."""
    if row["error"] is None:
        return "", row["reason"]
    return f"{row['predicted_gib']:.2f}", f"{100 * row['error']:+.1f} %"


def example(outcomes: Sequence[Outcome], kind: str) -> str:
    """Return `ID: reason` of the first run that was refused for a kind of reason."""
    row = next(row for row in outcomes if row["reason_kind"] == kind)
    return f"{row['id']}: {row['reason']}"


def _table(
    head: Sequence[str], rows: TableRows, texts: Container[int] = (), pictures: Iterable[str] = repeat("")
) -> str:
    """Return a table as HTML. texts: indices of columns of text, besides the first. pictures: the last cell of each row."""

    def cells(tag: str, row: Sequence[str]) -> str:
        """Return a row of cells, `td` or `th`."""
        each = (f"<{tag}{' class=text' if i in texts else ''}>{escape(text)}</{tag}>" for i, text in enumerate(row))
        return "".join(each)

    lines = (
        f"<tr>{cells('td', row)}{picture and f'<td>{picture}</td>'}</tr>"
        for row, picture in zip(rows, pictures, strict=False)
    )
    return f"<div class='wide'><table><tr>{cells('th', head)}</tr>{''.join(lines)}</table></div>"
