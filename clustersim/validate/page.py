"""The page of a validation: one HTML file without requests, in the colours of the reader's choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from clustersim.figures.canvas import Canvas, svg
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
TableRows = Sequence[Sequence[str]]


def page(found: Mapping[str, Any], outcomes: Sequence[Outcome], title: str) -> str:
    """Return the page of the result of `report`; equal outcomes give equal text."""
    body = "\n".join(_sections(found, outcomes))
    style = STYLE.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>clustersim validate: {escape(title)}</title>\n<style>\n{style}</style>\n"
        f"<h1>Forecasts against measured steps</h1>\n{body}\n"
        f"<footer><p>clustersim {__version__}, <code>clustersim validate {escape(title)}</code></p></footer>\n</html>\n"
    )


def _sections(found: Mapping[str, Any], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the parts of the page as HTML."""
    rows = compared(outcomes)
    yield f'<p class="answer">{escape(sentence(found))}</p>'
    if rows:
        yield from _pictures(found, rows)
        yield from _worst(rows)
    for title, head, cells in tables(found, outcomes):
        yield f"<h2>{escape(title)}</h2>"
        yield _table(head, cells)


def sentence(found: Mapping[str, Any]) -> str:
    """Return the main result: errors and coverage of strangers' runs, then of runs that were used."""
    every = found["stranger"]
    if not every["runs"]:
        return f"None of {found['runs_read']} runs could be compared."
    mean, median, tail, bias = (
        100 * every[key] for key in ("publisher_mean_error", "median_error", "p90_error", "bias")
    )
    known = every["with_interval"]
    inside = f" {100 * every['inside']:.0f} % lie inside their interval (it promises 80 %)." if known else ""
    left_out, in_sample = (100 * found[name]["publisher_mean_error"] for name in ("left_out", "in_sample"))
    return (
        f"{every['runs']} of {found['runs_read']} runs of {every['publishers']} publishers compared, each as a stranger's: "
        f"without all that was read from its publisher or is used by it alone. Mean error over publishers {mean:.1f} %; over "
        f"runs median {median:.1f} %, one in ten above {tail:.0f} %, bias {bias:+.1f} %.{inside} Left out of constants alone: "
        f"{left_out:.1f} %. In sample: {in_sample:.1f} %."
    )


def _pictures(found: Mapping[str, Any], rows: Sequence[Outcome]) -> Iterator[str]:
    """Yield the scatter of times, and for each grouping the errors of at most 25 groups, as HTML."""
    yield "<h2>Predicted against measured</h2>"
    yield '<p class="dim">Solid: equal. Dashed: 10 % off, and fainter 30 %. Below the line the forecast is too fast.</p>'
    yield _inline(drawing.scatter(rows))
    for name, of in GROUPS.items():
        errors: defaultdict[str, list[float]] = defaultdict(list)
        for one in rows:
            errors[of(one)].append(one["error"])
        shown = list(found["groups"][name])[:25]
        yield f"<h2>{TITLES[name]}</h2>"
        yield _inline(drawing.spread({group: errors[group] for group in shown}))
        yield _table(HEAD, [[group, *figures(found["groups"][name][group])] for group in shown])


def _inline(canvas: Canvas) -> str:
    """Return a picture as part of the page, in which an SVG element needs no namespace."""
    return svg(canvas).replace(' xmlns="http://www.w3.org/2000/svg"', "")


HEAD = ("", "runs", "mean", "median", "90th", "bias", "inside the interval")


def figures(errors: Mapping[str, Any]) -> list[str]:
    """Return the figures of a group as text."""
    inside = (
        f"{100 * errors['inside']:.0f} % of {errors['with_interval']}" if errors["with_interval"] else "no interval"
    )
    shares = (f"{100 * errors[key]:.1f} %" for key in ("mean_error", "median_error", "p90_error"))
    return [str(errors["runs"]), *shares, f"{100 * errors['bias']:+.1f} %", inside]


PUBLISHERS = ("publisher", *HEAD[1:], "left out", "in sample")


def publishers(found: Mapping[str, Any]) -> TableRows:
    """Return the errors by publisher as a stranger, and, if they differ, left out of constants only and in sample."""
    return [[name, *figures(one), *known_errors(found, name)] for name, one in found["groups"]["publisher"].items()]


def known_errors(found: Mapping[str, Any], publisher: str) -> list[str]:
    """Return a publisher's mean errors, left out of constants only and in sample; blank if equal to the previous figure."""
    kinds = (found["groups"]["publisher"], found["publishers_left_out"], found["publishers_in_sample"])
    means = [kind[publisher]["mean_error"] for kind in kinds]
    return ["" if own == before else f"{100 * own:.1f}%" for before, own in pairwise(means)]


WORST = ("run", "model", "on", "measured", "predicted", "80 %", "error", "launching", "where the forecast goes")
LAUNCHING = (
    "Launching: the share of the forecast that a CPU needs to launch its kernels one by one, 12 us each; not in it."
)


def _worst(rows: Sequence[Outcome]) -> Iterator[str]:
    """Yield the table of the outcomes that are farthest off, as HTML."""
    farthest = worst(rows)
    used = {part for one in farthest for part, seconds in one["breakdown_s"].items() if seconds}
    yield "<h2>The ten farthest off</h2>"
    yield f'<div class="legend">{drawing.parts_legend(used.__contains__)}</div>'
    yield _table(WORST, [far(one) for one in farthest], (1, 2), [_inline(drawing.bar(one)) for one in farthest])
    yield f"<p class='dim'>{LAUNCHING}</p>"


def far(one: Outcome) -> list[str]:
    """Return the cells of an outcome below WORST, without its picture."""
    split = f"tp {one['tp']} pp {one['pp']} dp {one['dp']}, microbatch {one['micro_batch'] or '?'}"
    times = (duration(one[key]) for key in ("measured_s", "predicted_s"))
    shares = (f"{100 * one['error']:+.1f} %", f"{100 * one['launching']:.0f} %")
    inside = "none" if one["low_s"] is None else f"{duration(one['low_s'])} to {duration(one['high_s'])}"
    return [one["id"], one["model"], f"{one['num_gpus']} × {one['gpu']}, {split}", *times, inside, *shares]


def tables(found: Mapping[str, Any], outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Sequence[str], TableRows]]:
    """Yield (title, head, rows) of the tables that only some validations have."""
    if found["ablations"]:
        rows = [["as it is", *figures(found["in_sample"]), ""]]
        rows += [[name, *figures(e), _moved(e)] for name, e in found["ablations"].items() if e["runs"]]
        yield "What each part buys", ("one part changed", *HEAD[1:], "forecasts moved"), rows
    if found["peers"]:
        rows = [
            [name, str(one["runs"]), *(f"{100 * one[key]:.1f} %" for key in ("mean_error", "ours"))]
            for name, one in found["peers"].items()
        ]
        yield "Others on the same runs", ("tool", "runs", "its mean error", "clustersim's"), rows
    sound = found["sound"]
    if sound:
        rows = [["all", *figures(found["left_out"])], ["sound ones", *figures(sound)]]
        yield "Mappings of which many were late", ("runs", *HEAD[1:]), rows
    if several := sound["sweeps"] if sound else found["sweeps"]:
        head = ("sweep", "mappings", "mean", "median", "bias", "Spearman", "regret of the first pick")
        yield "Ranking of mappings", head, [_sweep(one) for one in several]
    if fit := found["fit"]:
        kinds = [("ran", "ran_and_fits", "ran: said to fit likely")]
        kinds += [("crashed", "crashed_and_does_not_fit", "crashed or out of memory: said not to, or not to run")]
        kinds += [("first_picks", "first_picks_ran", "first picks that likely fit, one a sweep: ran")]
        rows = [[words, str(fit[n]), _share(fit[right], fit[n])] for n, right, words in kinds]
        yield "Does it fit?", ("", "runs", "forecast right"), rows
    if memory := found["memory"]:
        rows = [[one["id"], one["model"], f"{one['measured_gib']:.2f}", *_peak(one)] for one in memory["runs"]]
        yield "Peak memory, GiB", ("run", "model", "measured", "predicted", "error"), rows
    if found["refused"]:
        rows = [[kind, str(n), example(outcomes, kind)] for kind, n in found["refused"].items()]
        yield "Not simulated", ("reason", "runs", "such as"), rows


def _moved(errors: Mapping[str, Any]) -> str:
    """Return the number of forecasts moved by a change and the largest move, such as `23, by up to 0.02 %`."""
    most = 100 * errors["moved_most"]
    return f"{errors['moved']}, by up to {most:.{2 if most < 1 else 0}f} %" if errors["moved"] else "none"


def _sweep(one: Mapping[str, Any]) -> list[str]:
    """Return the cells of a sweep in the table of rankings."""
    name = f"{one['publisher']}: {one['model']} on {one['num_gpus']} × {one['gpu']}"
    rank = "" if one["spearman"] is None else f"{one['spearman']:.2f}"
    sizes = (f"{100 * one[key]:.1f} %" for key in ("mean_error", "median_error"))
    return [name, str(one["runs"]), *sizes, f"{100 * one['bias']:+.1f} %", rank, f"{100 * one['regret']:.1f} %"]


def _share(part: int, whole: int) -> str:
    """Return a count and its share of a whole, such as `3 (75 %)`."""
    return f"{part} ({100 * part / whole:.0f} %)" if whole else "0"


def _peak(one: Mapping[str, Any]) -> tuple[str, str]:
    """Return the predicted GiB of a peak and its error, or the reason why there is none."""
    if one["error"] is None:
        return "", one["reason"]
    return f"{one['predicted_gib']:.2f}", f"{100 * one['error']:+.1f} %"


def example(outcomes: Sequence[Outcome], kind: str) -> str:
    """Return the first run refused for a kind of reason, and the reason."""
    one = next(one for one in outcomes if one["reason_kind"] == kind)
    return f"{one['id']}: {one['reason']}"


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
