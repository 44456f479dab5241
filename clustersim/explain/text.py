"""Explanations and comparisons as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from clustersim.config.overrides import as_text
from clustersim.explain.differences import Comparison
from clustersim.explain.explanation import Bottleneck, Explanation
from clustersim.explain.trace_comparison import TraceComparison, TraceRow
from clustersim.optimization.neighbours import WhatIf
from clustersim.parallel.options import change_words
from clustersim.report.table import table
from clustersim.report.terminal import NAMES, PLAIN, Emphasis, Look, printable, wrapped
from clustersim.units import dollars, duration, plural, scaled

FEW = 4
"""Largest number of shares in a line; the rest is summed."""
_LEAST = 5e-5
_JOINED = "\N{NO-BREAK SPACE}%"


def lines(explained: Explanation, look: Look = PLAIN) -> list[str]:
    """Return an explanation as lines of text. look: emphasis that the output supports."""
    head = f"{printable(explained.summary['name'])} on {printable(explained.summary['cluster']['name'])}: "
    step = look.strong(duration(explained.step_time))
    return [
        *wrapped(f"{head}a simulated step of {step}, the sum of its critical path:"),
        *_path(explained),
        *_bottlenecks(explained, look.strong),
        "",
        *_outcomes(explained, look),
        "",
        *_rests_on(explained),
    ]


def _path(explained: Explanation) -> Iterator[str]:
    """Yield lines on the critical path's time by kind, stream, link and rank, largest share first."""
    path, total = explained.summary["critical_path"], explained.step_time
    kinds = ((NAMES.get(kind, kind).partition(" (")[0], s) for kind, s in explained.summary["critical_path_s"].items())
    cuts = {
        "kind": kinds,
        "stream": path["by_stream_s"].items(),
        "link": ((link(row), row["path_s"]) for row in path["by_link"]),
        "rank": ((_rank(row), row["path_s"]) for row in path["by_rank"]),
    }
    for name, shares in cuts.items():
        rows = sorted(((what, s) for what, s in shares if s > _LEAST * total), key=lambda row: -row[1])
        yield from _line(f"by {name}", rows, total)


def _line(name: str, rows: Sequence[tuple[str, float]], total: float) -> list[str]:
    """Return a line of the largest FEW shares of `total` in percent, and the rest. rows: (name, seconds)."""
    shares = [f"{what} {100 * seconds / total:.1f} %" for what, seconds in rows[:FEW]]
    rest = sum(seconds for _, seconds in rows[FEW:])
    shares += [f"{len(rows) - FEW} more {100 * rest / total:.1f} %"] if len(rows) > FEW else []
    return _whole(f"{name:<9}  {'; '.join(shares)}")


def _whole(sentence: str) -> list[str]:
    """Return a sentence in indented lines that keep numbers and their percent signs together."""
    return [line.replace(_JOINED, " %") for line in wrapped(sentence.replace(" %", _JOINED), "  ")]


def link(row: Mapping[str, Any]) -> str:
    """Return a row of the path by link in words: name, both ends, rate if slow, number of identical links; else what it is."""
    if not row["link"]:
        return str(row["what"])
    others = row["links"] - 1
    equal = f" and {others:,} like it" if others and not row["slow"] else ""
    slow = f", slow at {scaled(row['capacity_bytes_per_s'], 'B/s')}" if row["slow"] else ""
    return printable(f"{row['link']} ({row['from']} to {row['to']}{slow}){equal}")


def _rank(row: Mapping[str, Any]) -> str:
    """Return a row of the critical path by rank in words."""
    others = f" and {row['ranks'] - 1:,} like it" if row["ranks"] > 1 else ""
    return f"rank {row['rank']}{others} (pipeline rank {row['pipeline_rank']})"


def _bottlenecks(explained: Explanation, strong: Emphasis) -> list[str]:
    """Return lines on the links that limit the step, and the step without each limit."""
    if not explained.bottlenecks:
        return wrapped("bottleneck none: no link slows the critical path", "  ")
    first, *others = explained.bottlenecks
    step = explained.step_time
    also = ", ".join(f"{other.share['link']}{_gain(step - other.step_time, step)}" for other in others)
    more = f"; then {also}" if others else ""
    limit = f"{strong(link(first.share))}: {lifted(first)} the step takes {duration(first.step_time)}"
    return _whole(f"bottleneck {limit}{_gain(step - first.step_time, step)}{more}")


def lifted(bottleneck: Bottleneck) -> str:
    """Return the change of a bottleneck in words: `with NIC × 2`, or unlimited rate."""
    return f"with {bottleneck.what_if}" if bottleneck.what_if else "were it never short,"


def _gain(gain: float, step: float) -> str:
    """Return the change of the step in percent as text, such as ` (-3.1 %)`. gain: seconds less."""
    return f" ({_signed(-gain / step)} %)"


def _signed(share: float) -> str:
    """Return a change, a share of the step, in percent as text, without a sign if it rounds to zero."""
    text = f"{100 * share:+.1f}"
    return text if float(text) else "0.0"


def _rests_on(explained: Explanation) -> Iterator[str]:
    """Yield lines on the constants whose spread changes the step most."""
    yield "what the answer rests on"
    for item in explained.rests_on:
        effect = f"± {100 * item.spread:.2g} % → ± {100 * item.effect:.2g} % of the step"
        yield from _whole(f"{printable(item.constant.name)}: {effect}; {item.source}")


def _outcomes(explained: Explanation, look: Look) -> Iterator[str]:
    """Yield the table of what-ifs with a step, then those that only make it longer, then impossible ones."""
    step = explained.step_time
    had = [(case, case.step_time) for case in explained.outcomes if case.step_time is not None]
    longer = [f"{case.name} {_signed(seconds / step - 1)} %" for case, seconds in had if case.free and seconds > step]
    rows = [(case, seconds) for case, seconds in had if not case.free or seconds <= step]
    width = max((len(case.name) for case, _ in rows), default=0)
    yield f"{'what if':<{width + 2}}  {'the step':>9}  {'change':>8}  made by"
    for place, (case, seconds) in enumerate(rows):
        name = look.strong(f"{case.name:<{width}}") if place == 0 and seconds < step else f"{case.name:<{width}}"
        change = (look.good if seconds < step else look.bad)(f"{_signed(seconds / step - 1):>6} %")
        yield f"  {name}  {duration(seconds):>9}  {change}  {_made_by(case, seconds < step)}"
    if longer:
        yield from _whole(f"free, and longer: {'; '.join(longer)}")
    without = [case for case in explained.outcomes if case.step_time is None]
    if without:
        yield from ("", "not possible")
    for case in without:
        yield from wrapped(f"{case.name}: {case.reason}", "  ")


def _made_by(case: WhatIf, shorter: bool) -> str:
    """Return the options that apply a what-if, after `free` if it is that and `shorter`, or the change in price."""
    dearer = f"{'+' if case.usd > 0 else ''}{dollars(case.usd)} USD: " if case.usd else ""
    price = "free: " if shorter and case.free else dearer
    return price + shlex.join(change_words(case.changes))


WIDE = 44
"""Largest number of characters of a value."""
COLUMN = 20
"""Largest number of characters of a column heading."""
_BEFORE, _LONG = 12, 10_000
"""Number of characters shown before the first difference of values, and of a value that are compared."""
_LEAST_CHANGE = 1e-4


def plain(value: object, most: int = WIDE) -> str:
    """Return a value of a file as safe text: one line, printable, cut to `most` characters."""
    text = printable("-" if value is None else as_text(value))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def compared(comparison: Comparison, strong: Emphasis = str) -> list[str]:
    """Return a comparison as lines: the step, differing inputs, where time goes."""
    times = [result.summary.step_time_s for result in comparison.results]
    names, labels = [plain(result.name) for result in comparison.results], _labels(comparison)
    titles = [f"{a}  {b}" for a, b in zip(labels, names, strict=True)] if labels[0] == "1" != names[0] else names
    width, text = max(map(len, titles)), []
    for name, time in zip(titles, times, strict=True):
        change = "" if time == times[0] else f"  {100 * (time / times[0] - 1):+.1f} %"
        text.append(f"{name:<{width}}  simulated {strong(duration(time))}{change}")
    rows = [(f"  {plain(key, 2 * WIDE)}", *_values(values)) for key, values in comparison.differences.items()]
    differ = ["what differs", *table(rows, "<")] if rows else ["nothing in the inputs differs"]
    return [*text, "", *differ, *_seconds(comparison)]


def _values(values: Sequence[object]) -> list[str]:
    """Return values as text; long ones with equal beginnings are shown from their first difference."""
    cut = [plain(value) for value in values]
    if len(set(cut)) > 1:
        return cut
    full = [plain(value, _LONG) for value in values]
    differ = next((i for i, letters in enumerate(zip(*full, strict=False)) if len(set(letters)) > 1), len(full[0]))
    same = max(differ - _BEFORE, 0)
    return [f"…{text[same : same + WIDE - 2]}{'…' if len(text) > same + WIDE - 2 else ''}" for text in full]


def _seconds(comparison: Comparison) -> Iterator[str]:
    """Yield tables of the parts that differ between results by more than _LEAST_CHANGE of the step."""
    titles = {
        "breakdown_s": "where the seconds went, mean of ranks",
        "critical_path_s": "where the seconds went, critical path",
        "by_link": "critical path by link",
    }
    for what, title in titles.items():
        shares = comparison.seconds(what)
        total = comparison.results[0].summary.step_time_s
        kept = {
            name: values for name, values in shares.items() if max(map(abs, _changes(values))) > _LEAST_CHANGE * total
        }
        if kept:
            order = sorted(kept.items(), key=lambda pair: -max(map(abs, _changes(pair[1]))))
            rows = [(f"  {plain(NAMES.get(name, name), 2 * WIDE)}", *_cells(values)) for name, values in order]
            first, *others = _labels(comparison)
            head = [first, *(cell for name in others for cell in (name, "change"))]
            yield from ("", *table([(title, *head), *rows], "<>"))


def _changes(values: Sequence[float]) -> list[float]:
    return [value - values[0] for value in values[1:]]


def _labels(comparison: Comparison) -> list[str]:
    """Return the column headings: the results' folders; the differing part of long ones, or numbers if that is long too."""
    paths = [Path(result.name).parts for result in comparison.results]
    above = _alike([path[:-1] for path in paths])
    names = ["/".join(path[above:]) for path in paths]
    if max(map(len, names)) > COLUMN:
        words = [name.split("-") for name in names]
        same = min(_alike(words), *(len(name_words) - 1 for name_words in words))
        names = [f"…{'-'.join(name_words[same:])}" for name_words in words] if same else names
    return list(map(plain, names)) if max(map(len, names)) <= COLUMN else [str(i + 1) for i in range(len(names))]


def _alike(rows: Iterable[Sequence[str]]) -> int:
    """Return the number of leading words that are equal in all rows."""
    return sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, zip(*rows, strict=False)))


def _cells(values: Sequence[float]) -> list[str]:
    """Return texts: the first duration, then each other with its signed change, "" if equal."""
    first, *others = values
    changes = [
        "" if other == first else f"{'-' if other < first else '+'}{duration(abs(other - first))}" for other in others
    ]
    return [duration(first), *(c for pair in zip(map(duration, others), changes, strict=True) for c in pair)]


def trace_lines(comparison: TraceComparison, strong: Emphasis = str) -> list[str]:
    """Return the comparison of a forecast with a trace as lines."""
    trace = comparison.trace
    marked = (
        f"the mean of {plural(trace.steps, 'marked step', 'marked steps')}"
        if trace.steps
        else "no ProfilerStep mark: all of it is one step"
    )
    what = "kernels of a GPU" if trace.on_gpu else "operators of a CPU, as it has no kernels of a GPU"
    text = [f"rank {comparison.rank} of the forecast and the trace: {what}; {marked}"]
    cells = [["", "forecast", "trace", "trace / forecast"]]
    for section, rows in comparison.rows.items():
        if rows:
            cells += [[section, "", "", ""], *map(_row, rows)]
    text += table(cells, "<>")
    streams = sorted(trace.by_stream.items(), key=lambda pair: -pair[1])
    longest = "; ".join(f"{plain(name, 20)} {duration(seconds)}" for name, seconds in streams[:6])
    text += ["", *wrapped(f"streams of the trace: {longest}")]
    text += wrapped(f"gaps: {trace.gaps} a step, the longest {duration(trace.longest_gap)}")
    return [*text, *wrapped("a kernel of NCCL in a trace waits for its peers inside; the forecast counts that as idle")]


def _row(row: TraceRow) -> list[str]:
    """Return the cells of a row: name, durations of forecast and trace, ratio; `-` for none."""
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    return [
        f"  {plain(row.name)}",
        *(duration(seconds) if seconds else "-" for seconds in (row.forecast, row.trace)),
        ratio,
    ]
