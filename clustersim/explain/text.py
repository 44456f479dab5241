"""An explanation as a person reads it: the critical path in a few lines, the bottleneck link, and what-ifs by what they gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from clustersim.explain.explanation import Bottleneck, Explanation
from clustersim.report.terminal import NAMES, PLAIN, Emphasis, Look, folded, printable
from clustersim.units import duration, scaled

WrittenChanges = Callable[[Mapping[str, object]], str]
"""Returns what a command line says to change keys."""
FEW = 4
"""Shares that a line names; the rest is summed."""
_LEAST = 5e-5
_JOINED = "\N{NO-BREAK SPACE}%"


def lines(found: Explanation, flags: WrittenChanges, look: Look = PLAIN) -> list[str]:
    """Return an explanation as lines of text; look: what emphasis the output can show."""
    head = f"{printable(found.summary['name'])} on {printable(found.summary['cluster']['name'])}: "
    step = look.strong(duration(found.step_time))
    return [
        *folded(f"{head}a step of {step}, which is the sum of its critical path:"),
        *_path(found),
        *_bottlenecks(found, look.strong),
        "",
        *_outcomes(found, flags, look),
        "",
        *_rests_on(found),
    ]


def _path(found: Explanation) -> Iterator[str]:
    path, total = found.summary["critical_path"], found.step_time
    kinds = ((NAMES.get(kind, kind).partition(" (")[0], s) for kind, s in found.summary["critical_path_s"].items())
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
    said = [f"{what} {100 * seconds / total:.1f} %" for what, seconds in rows[:FEW]]
    rest = sum(seconds for _, seconds in rows[FEW:])
    said += [f"{len(rows) - FEW} more {100 * rest / total:.1f} %"] if len(rows) > FEW else []
    return _whole(f"{name:<9}  {'; '.join(said)}")


def _whole(sentence: str) -> list[str]:
    """Return a sentence in indented lines that part no number from its sign of percent."""
    return [line.replace(_JOINED, " %") for line in folded(sentence.replace(" %", _JOINED), "  ")]


def link(row: Mapping[str, Any]) -> str:
    """Return a row of the critical path by link in words: with both ends, and how many are like it."""
    if not row["link"]:
        return str(row["what"])
    others = row["links"] - 1
    like = f" and {others:,} like it" if others and not row["slow"] else ""
    slow = f", slow at {scaled(row['capacity_bytes_per_s'], 'B/s')}" if row["slow"] else ""
    return printable(f"{row['link']} ({row['from']} to {row['to']}{slow}){like}")


def _rank(row: Mapping[str, Any]) -> str:
    others = f" and {row['ranks'] - 1:,} like it" if row["ranks"] > 1 else ""
    return f"rank {row['rank']}{others} (pipeline rank {row['pipeline_rank']})"


def _bottlenecks(found: Explanation, strong: Emphasis) -> list[str]:
    if not found.bottlenecks:
        return folded("bottleneck none: no link slows the critical path", "  ")
    first, *others = found.bottlenecks
    more = f"; then {', '.join(_wins(one, found.step_time) for one in others)}" if others else ""
    said = f"{strong(link(first.share))}: {lifted(first)} the step takes {duration(first.step_time)}"
    return _whole(f"bottleneck {said}{_gain(found.step_time - first.step_time, found.step_time)}{more}")


def lifted(one: Bottleneck) -> str:
    """Return in words what of a link is otherwise: `with NIC × 2`, or that it is never short."""
    return f"with {one.what_if}" if one.what_if else "were it never short,"


def _wins(one: Bottleneck, step: float) -> str:
    return f"{one.share['link']}{_gain(step - one.step_time, step)}"


def _gain(gain: float, step: float) -> str:
    return f" ({_signed(-gain / step)} %)"


def _signed(share: float) -> str:
    """Return a change in percent; one that cannot be seen has no sign."""
    text = f"{100 * share:+.1f}"
    return text if float(text) else "0.0"


def _rests_on(found: Explanation) -> Iterator[str]:
    yield "what the answer rests on"
    for one in found.rests_on:
        own = f"± {100 * one.spread:.2g} % → ± {100 * one.effect:.2g} % of the step"
        yield from _whole(f"{printable(one.constant.name)}: {own}; {one.source}")


def _outcomes(found: Explanation, flags: WrittenChanges, look: Look) -> Iterator[str]:
    step = found.step_time
    had = [(one, one.step_time) for one in found.outcomes if one.step_time is not None]
    width = max((len(one.name) for one, _ in had), default=0)
    yield f"{'what if':<{width + 2}}  {'the step':>9}  {'change':>8}  made by"
    for place, (one, seconds) in enumerate(had):
        name = look.strong(f"{one.name:<{width}}") if place == 0 and seconds < step else f"{one.name:<{width}}"
        change = (look.good if seconds < step else look.bad)(f"{_signed(seconds / step - 1):>6} %")
        yield f"  {name}  {duration(seconds):>9}  {change}  {flags(one.changes) if one.changes else one.reason}"
    for one, _ in had:
        if one.changes and one.reason:
            yield from folded(f"{one.name}: {one.reason}", "  ")
    without = [one for one in found.outcomes if one.step_time is None]
    if without:
        yield from ("", "not to be had")
    for one in without:
        yield from folded(f"{one.name}: {one.reason}", "  ")
