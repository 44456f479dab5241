"""Terminal output of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np

from clustersim.arrays import Floats
from clustersim.engine.program import COMPUTE, UPDATE, Span
from clustersim.engine.record import Record
from clustersim.predictors.uncertainty import interval_text
from clustersim.report.folded_time import FoldedTime, folded_time
from clustersim.report.table import NARROWEST, terminal_width
from clustersim.report.trace import spans_of_cells
from clustersim.report.verdicts import WORDS, band, verdict
from clustersim.units import duration, gibibytes, plural, scaled, seconds

COLUMNS, ROWS = 72, 16
LETTERS = ".FBWo-"
"""Letter of each part in the timeline. A column shows the longest part; `LEGEND` explains letters."""
LEGEND = "F forward, B backward, W weight gradients, o update, - communication waited for, . bubble"
_OF = {"F": 1, "B": 2, "I": 2, "W": 3}


def timeline(record: Record, stage_of: Sequence[int]) -> list[str]:
    """Return the timeline as text: the first class of ranks of each pipeline rank, at most `ROWS`. `stage_of` is by rank cell."""
    first = dict(reversed([(stage, cell) for cell, stage in enumerate(stage_of)]))
    stages = sorted(first)
    places = dict.fromkeys(np.linspace(0, len(stages) - 1, min(len(stages), ROWS)).round().astype(int).tolist())
    shown = {first[stages[place]]: stages[place] for place in places}
    spans = spans_of_cells(record.spans, shown)
    fold = folded_time(record, len(stages))
    width = (record.end - fold.left_out) / COLUMNS
    count = f", {len(shown)} of {len(stages)} pipeline ranks" if len(shown) < len(stages) else ""
    omitted = f"; at | {fold.periods * fold.microbatches:,} microbatches like those before are left out"
    name = max(len(str(stage)) for stage in shown.values())
    rows = sorted(shown.items(), key=lambda row: row[1])
    return [
        f"timeline, a column is {duration(width)}{count}{omitted if fold.periods else ''}",
        *(f"  pp {stage:>{name}}  {_row(spans[cell], width, fold)}" for cell, stage in rows),
        f"  {LEGEND}",
    ]


def _row(spans: Sequence[Span], width: float, fold: FoldedTime) -> str:
    """Return the line of a class of ranks from its spans: a letter per `width` seconds, `|` where periods are left out."""
    spent = np.zeros((len(LETTERS), COLUMNS))
    starts = np.array([span.start for span in spans])
    moved = (starts - fold.folded(starts)).tolist()
    for span, shown, by in zip(spans, fold.shown(starts).tolist(), moved, strict=True):
        kind = _kind(span)
        if kind and width and shown:
            _add(spent[kind], (span.start - by) / width, (span.end - by) / width)
    spent[0] = np.maximum(1.0 - spent[1:].sum(axis=0), 0.0)
    letters = "".join(LETTERS[kind] for kind in spent.argmax(axis=0).tolist())
    cut = int(fold.cut / width) if fold.periods else COLUMNS
    return f"{letters[:cut]}{'|' * bool(fold.periods)}{letters[cut:]}"


def _kind(span: Span) -> int:
    """Return the index into `LETTERS` of a span; 0 if the timeline does not show it."""
    if span.stream == "wait":
        return 5
    if span.stream != COMPUTE:
        return 0
    return 4 if span.kind in UPDATE else _OF.get(span.kind, 0)


def _add(row: Floats, begin: float, end: float) -> None:
    """Add to each column of `row` the part of it that the interval from `begin` to `end`, in columns, covers."""
    first, last = int(begin), min(int(end), COLUMNS - 1)
    edges = np.clip(np.arange(first, last + 2), begin, end)
    row[first : last + 1] += np.diff(edges)


NAMES = {
    "compute": "compute",
    "tp": "tensor-parallel communication",
    "pp": "pipeline communication",
    "dp": "data-parallel communication",
    "ep": "expert-parallel communication",
    "cp": "context-parallel communication",
    "optimizer": "gradient norm and optimizer",
    "model": "reduction of the gradient norm",
    "amax": "reduction of largest values in fp8",
    "host": "waiting for the host",
    "bubble": "bubble (waiting for other ranks)",
}

SOURCES = {
    "measured": "of a short burst's rate, measured on this GPU",
    "law": "of a short burst's rate, from this GPU's power and not measured",
    "given": "of a short burst's rate, as given",
}
"""Words for the sources of a clock's share that readers must know."""


Emphasis = Callable[[str], str]


class Look(NamedTuple):
    """Emphasis of text in a terminal."""

    strong: Emphasis = str
    """Emphasis of the most important values."""
    good: Emphasis = str
    """Emphasis of good results, such as a job that fits."""
    doubtful: Emphasis = str
    """Emphasis of doubtful results and warnings."""
    bad: Emphasis = str
    """Emphasis of bad results, such as a job that does not fit."""


PLAIN = Look()
WIDTH = 100
"""Width in columns at which sentences are wrapped, if the terminal is not narrower."""


def lines(
    summary: dict[str, Any], took: float, verbose: bool = False, look: Look = PLAIN, brief: bool = False
) -> list[str]:
    """Return the summary as lines of text: the three main figures, where time goes, and caveats.

    `took` is the wall time of the simulation in seconds. `verbose` adds memory by kind, links and errors of kernel times. `look`
    is the emphasis that the output supports. `brief` limits it to the main figures and warnings.
    """
    if brief:
        return [*_head(summary, look, False)[:4], *_warned(summary, look)]
    if verbose:
        known = [_memory(summary), link_lines(summary), _how(summary, took)]
    else:
        interval = summary["step_time_interval"].split(" (")[0].split("; ")[0]
        kernels = f"kernels: {summary['predictor']['name']}; interval: {interval}"
        known = [[*wrapped(kernels), *left_out(summary)]]
    return paragraphs(
        _head(summary, look, verbose), _warned(summary, look), breakdown_lines(summary), *known, _settings(summary)
    )


def paragraphs(*parts: list[str]) -> list[str]:
    """Return the lines of all parts with an empty line between two parts. Parts without lines are left out."""
    return [line for part in parts if part for line in (*part, "")][:-1]


def _settings(summary: dict[str, Any]) -> list[str]:
    """Return the lines on settings that neither file nor command line gave, and on ignored arguments of Megatron."""
    ignored = summary.get("ignored_arguments", {})
    names = {
        "assumed": summary.get("assumed"),
        "ignored, no effect on the time of a step": ignored.get("no_effect"),
        "ignored, not modelled": ignored.get("not_modelled"),
    }
    return [line for what, listed in names.items() if listed for line in wrapped(f"{what}: {', '.join(listed)}")]


def _rows(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return (name, value) pairs, at least one, as lines. Values are in a second column, where long ones continue below."""
    width = max(len(name) for name, _ in pairs)
    return [line for name, value in pairs for line in wrapped(f"{name:<{width}}  {value}", "  ", " " * (width + 2))]


def _head(summary: dict[str, Any], look: Look, verbose: bool) -> list[str]:
    """Return the lines on job and cluster, step time, throughput, memory, idle GPUs, batch and clocks."""
    cluster = summary["cluster"]
    speed = f"{summary['tokens_per_s']:,.0f} tokens/s, {summary['tokens_per_s_per_gpu']:,.1f} a GPU"
    peak = f"{summary['peak_tflops_per_gpu']:.0f} ({summary['parallelism']['precision']})"
    interval = interval_text(summary["step_time_low_s"], summary["step_time_high_s"])
    rows = [
        ("step time", look.strong(duration(summary["expected_step_time_s"])) + interval),
        *_jitter(summary),
        ("throughput", f"{look.strong(speed)}, MFU {100 * summary['mfu']:.1f} %"),
        *_fits(summary["memory"], look),
        *_idle(summary),
        ("batch", _batch(summary["parallelism"])),
        *_clocks(summary),
    ]
    if verbose:
        rows.append(("model FLOP", f"{summary['model_tflops_per_gpu']:.1f} TFLOP/s a GPU, of {peak}"))
    return [
        f"{printable(summary['name'])} on {printable(cluster['name'])}: {_gpus(summary)}, {_layout(summary['parallelism'])}",
        *_rows(rows),
    ]


def _jitter(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the (name, value) line on drawn steps; nothing if none were drawn."""
    if jitter := summary.get("jitter"):
        half, most = (duration(jitter[f"step_time_{name}_s"]) for name in ("p50", "p99"))
        yield (
            "jitter",
            f"half of {plural(jitter['draws'], 'step', 'steps')} take at most {half}, 99 of 100 at most {most}",
        )


def degrees(split: dict[str, Any]) -> str:
    """Return the degrees `tp`, `cp`, `pp` and `dp` of a job in words, such as `tp 4 × pp 2 × dp 8`; cp only if above 1."""
    cp = f" × cp {split['cp']}" if split["cp"] > 1 else ""
    return f"tp {split['tp']}{cp} × pp {split['pp']} × dp {split['dp']}"


def _layout(split: dict[str, Any]) -> str:
    """Return the parallel degrees of a job with its schedule, such as `tp 4 × pp 2 × dp 8 (ep 8), 1f1b`."""
    ep = f" (ep {split['ep']})" if split["ep"] > 1 else ""
    chunks = f" × {split['vpp']} chunks" if split["vpp"] > 1 else ""
    return f"{degrees(split)}{ep}, {split['schedule']}{chunks}"


def _batch(split: dict[str, Any]) -> str:
    """Return the global batch of a job and its microbatches in words."""
    sequences = plural(split["global_batch"], "sequence", "sequences")
    return (
        f"{sequences} of {split['seq']:,} tokens, in {plural(split['microbatches'], 'microbatch', 'microbatches')} "
        f"of {split['micro_batch']} a replica"
    )


def _fits(memory: dict[str, Any], look: Look) -> Iterator[tuple[str, str]]:
    """Yield the (name, value) lines on whether the job likely fits, the basis of that, and the memory of hosts."""
    colours, need, have = (look.good, look.doubtful, look.bad), memory["peak_bytes"], memory["capacity_bytes"]
    judgement = verdict(need, have)
    words = look.strong(dict(zip(WORDS, colours, strict=True))[judgement](WORDS[judgement]))
    yield "memory", f"{words}, {gibibytes(need)} of {gibibytes(have)} ({100 * need / have:.0f} %)"
    yield "", band(need, have).text
    if "host_bytes" in memory:
        used, capacity = gibibytes(memory["host_bytes"]), gibibytes(memory["host_capacity_bytes"])
        yield "hosts", f"{used} of {capacity} of a node's own memory"


def _idle(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the (name, value) lines on idle GPUs: their number, their cost, and a split that would use them."""
    idle, gpus = summary["idle"], summary["cluster"]["gpus"]
    if idle["gpus"]:
        cost = f"{summary['tokens_per_s_per_owned_gpu']:.1f} tokens/s for each of the {gpus} owned"
        yield "idle", f"{idle['gpus']} of {gpus} GPUs ({100 * idle['share']:.1f} %): {cost}"
        if idle["suggestion"]:
            yield "", f"{idle['suggestion']['options']} uses {idle['suggestion']['gpus']} of {gpus}"


def _clocks(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the (name, value) line on the share of the burst rate that GEMMs sustain, and its source, if that is in SOURCES."""
    shares = summary["predictor"]["clock_shares"]
    if shares_text := [
        f"{k} products at {100 * v['share']:.0f} % {SOURCES[v['source']]}"
        for k, v in shares.items()
        if v["source"] in SOURCES
    ]:
        yield "clocks", ", ".join(shares_text)


def _warned(summary: dict[str, Any], look: Look) -> list[str]:
    """Return the warnings of a summary as lines."""
    return [look.doubtful(line) for warning in summary["warnings"] for line in wrapped(f"warning: {warning}")]


def printable(text: str) -> str:
    """Return text as one line without characters that move the cursor or change the writing direction."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def columns() -> int:
    """Return the width of text: that of the terminal, at most `WIDTH`, which is also the default."""
    return int(max(min(WIDTH, terminal_width()), NARROWEST))


def wrapped(sentence: str, indent: str = "", under: str = "  ") -> list[str]:
    """Return a sentence in lines of at most `columns()`. Lines after the first are indented by `under` more."""
    return wrap(sentence, columns(), initial_indent=indent, subsequent_indent=indent + under, break_on_hyphens=False)


def _gpus(summary: dict[str, Any]) -> str:
    """Return the GPUs of a job in words, such as `96 of 128 × h100-sxm`."""
    cluster, ranks = summary["cluster"], summary["simulated"]["ranks"]
    every, used = cluster["gpus"], "" if ranks == cluster["gpus"] else f"{ranks} of "
    pools = cluster.get("pools", [{"gpu": cluster["gpu"], "gpus": every}])
    return used + " + ".join(f"{pool['gpus']} × {pool['gpu']}" for pool in pools)


def breakdown_lines(summary: dict[str, Any]) -> list[str]:
    """Return the lines on where time goes: the mean of all ranks, and the critical path, which alone shortens the step."""
    mean, path, total = summary["breakdown_s"], summary["critical_path_s"], summary["step_time_s"]
    names = [k for k in dict.fromkeys([*mean, *path]) if max(mean.get(k, 0.0), path.get(k, 0.0)) > 1e-9 * total]
    cells = [(NAMES.get(k, k), *(_part(parts.get(k), total) for parts in (mean, path))) for k in names]
    width = max(len(name) for name, _, _ in cells)
    return [
        f"{'where the step goes':<{width + 2}}  {'mean of ranks':>18}   {'critical path':>18}",
        *(f"  {name:<{width}}  {of_mean}   {of_path}".rstrip() for name, of_mean, of_path in cells),
        *software_lines(summary),
    ]


def software_lines(summary: dict[str, Any]) -> list[str]:
    """Return the lines on the level and interval of published steps over the simulated time; [] without an interval."""
    level, low, high = (summary.get(key) for key in ("software_level", "step_time_low_s", "step_time_high_s"))
    if not level or None in (low, high):
        return []
    simulated = summary["step_time_s"]
    least, likely, most = (f"{100 * (r - 1):+.0f}" for r in (low / simulated, level["factor"], high / simulated))
    typical = f"not modelled; typical of {plural(level['publishers'], 'publisher', 'publishers')}: {likely} %"
    return wrapped(f"{typical}, 80 %: {least} to {most} % of the simulated {duration(simulated)}", "  ")


def _part(seconds: float | None, total: float) -> str:
    """Return a part of a step as seconds and percent of `total`; empty if it is unknown."""
    return "" if seconds is None else f"{duration(seconds):>9}  {100 * seconds / total:5.1f} %"


def _memory(summary: dict[str, Any]) -> list[str]:
    """Return the memory by kind of the pipeline rank with the highest peak, as lines."""
    ranks = summary["memory"]["by_pipeline_rank"]
    peak = max(ranks, key=lambda rank: rank["total_bytes"])
    kinds = [(k.removesuffix("_bytes"), f"{gibibytes(v):>10}") for k, v in peak.items() if k != "total_bytes" and v]
    return [f"memory of pipeline rank {ranks.index(peak)}, the fullest", *_rows(kinds)]


def link_lines(summary: dict[str, Any]) -> list[str]:
    """Return the busiest link of each tier, those that limit the critical path first."""
    links = summary["busiest_links"]
    if not links:
        return ["no link carried anything"]
    rows = [
        (
            f"{link['link']}: {link['from']} to {link['to']}",
            f"{scaled(link['bytes'], 'B'):>9}  {100 * link['utilization']:5.1f} %"
            + (f", limits {duration(link['limiting_s'])}" if link["limiting_s"] > 1e-9 else ""),
        )
        for link in links
    ]
    head = "busiest link of each tier, and its share of the step; those first that limit the critical path"
    return [*wrapped(head), *_rows(rows)]


def left_out(summary: dict[str, Any]) -> list[str]:
    """Return the lines that name the first effects that are not modelled, and how to list the rest."""
    first, *others = summary["not_modelled"]
    more = f", and {len(others)} more" if others else ""
    return wrapped(f"not modelled: {first}{more}; --verbose has these and the errors of kernels")


def _how(summary: dict[str, Any], took: float) -> list[str]:
    """Return the lines on what was simulated and its basis; `took` is the wall time in seconds."""
    cluster = summary["cluster"]
    cables = f"{cluster['cables']:,} cables, {cluster['links']:,} directed links or bundles"
    interval = wrapped(f"interval of the step time: {summary['step_time_interval']}")
    return [simulated(summary, took), cables, *basis(summary, [summary["predictor"]], interval)]


def simulated(summary: dict[str, Any], took: float, length: str = "") -> str:
    """Return the line on the simulated ranks and events; `took` is the wall time in seconds, `length` what it covers."""
    s = summary["simulated"]
    classes = plural(s["rank_classes"], "class", "classes")
    return f"simulated {s['ranks']:,} ranks as {classes}{length}; {s['events']:,} events in {seconds(took)}"


def basis(summary: dict[str, Any], predictors: Sequence[dict[str, Any]], interval: Sequence[str] = ()) -> list[str]:
    """Return the lines on the errors of kernel times, the clocks, and what is not modelled. Equal lines appear once.

    `predictors` are of the jobs; `interval` are the lines on the interval of the step time.
    """
    lines = list[str]()
    for name in dict.fromkeys(p["name"] for p in predictors):
        lines.append(f"kernel times by {name}; error on held-out kernels:")
        errors = dict.fromkeys(error for p in predictors if p["name"] == name for error in p["error"])
        lines += [line for error in errors for line in wrapped(error, "  ")]
    clocks = dict.fromkeys(f"clocks: {p['clocks']}" for p in predictors)
    missing = "not modelled: " + "; ".join(summary["not_modelled"])
    return [*lines, *interval, *(line for sentence in (*clocks, missing) for line in wrapped(sentence))]
