"""What weights say of themselves, as tables of text: for a terminal and for the model card alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from clustersim.lab.neusight_constants import constants, speeds
from clustersim.predictors.uncertainty import EDGES
from clustersim.predictors.weights_file import Weights
from clustersim.units import seconds

Meta = Mapping[str, Any]
FIGURES = ("mean", "median", "p90")


class WeightsTable(NamedTuple):
    """A table; columns whose number is below `names` hold names, the others figures."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    names: int = 2


def percent(value: float | None) -> str:
    """Return a share as text, such as `6.2 %`; nothing for None."""
    return "" if value is None else f"{100 * value:.1f} %"


def overview(meta: Meta) -> WeightsTable:
    """Return a row a class: what it learned, its error on unseen GPUs and the worst of them, and what is known beside."""
    header = ("class", "kernels", "GPUs", "unseen GPUs", "worst", "with a scalar", "own GPU", "coverage", "widened")
    return WeightsTable("mean absolute errors", header, [_overview(meta, kind) for kind in meta["errors"]], 1)


def _overview(meta: Meta, kind: str) -> tuple[str, ...]:
    errors, learned = meta["errors"][kind], meta["learned"][kind]
    unseen = {gpu: entry for gpu, entry in errors.items() if entry["unseen"]}
    worst = max(unseen, key=lambda gpu: float(unseen[gpu]["mean"]), default=None)
    plain, widened = _coverage(meta, kind)
    return (
        kind,
        f"{learned['rows']:,}",
        str(len(learned["gpus"])),
        percent(average(entry["mean"] for entry in unseen.values())),
        f"{percent(unseen[worst]['mean'])} {worst}" if worst else "",
        percent(average(entry.get("scalar", {}).get("mean") for entry in unseen.values())),
        percent(average(entry["mean"] for entry in meta.get("own", {}).get(kind, {}).values())),
        percent(plain),
        percent(widened),
    )


def average(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known, None when none is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _coverage(meta: Meta, kind: str) -> tuple[float | None, float | None]:
    found = meta.get("coverage", {}).get(kind)
    return (found.get("plain"), found.get("widened")) if isinstance(found, Mapping) else (found, None)


def errors(meta: Meta, others: Mapping[str, Meta] | None = None) -> WeightsTable:
    """Return a row a class and GPU: errors on held-out kernels, with one measured scalar, and the means of `others`."""
    others = others or {}
    header = ("class", "GPU", "new", "mean", "median", "90th", ">20 GFLOP", "bias", "scalar", "kernels", *others)
    rows = []
    for kind, found in meta["errors"].items():
        for gpu, entry in found.items():
            theirs = (percent(other["errors"].get(kind, {}).get(gpu, {}).get("mean")) for other in others.values())
            scalar = percent(entry.get("scalar", {}).get("mean"))
            rows.append(
                (
                    kind,
                    gpu,
                    "GPU" if entry["unseen"] else "kernels",
                    *_row(entry),
                    scalar,
                    f"{entry['count']:,}",
                    *theirs,
                )
            )
    return WeightsTable("errors on kernels left out of training", header, rows, 3)


def _row(entry: Mapping[str, float]) -> tuple[str, ...]:
    return (*(percent(entry.get(key)) for key in (*FIGURES, "large")), f"{entry['bias']:.2f}")


def wide(meta: Meta) -> WeightsTable:
    """Return a row a GPU and data type: errors on products whose sides are all 256 or more, GPU's generation left out."""
    header = ("class", "GPU", "type", "mean", "median", "90th", "bias", "scalar", "median", "90th")
    rows = [
        (kind, gpu, dtype, *(percent(part[key]) for key in FIGURES), f"{part['bias']:.2f}", *_scalar(part))
        for kind, found in meta["errors"].items()
        for gpu, entry in found.items()
        for dtype, part in entry.get("wide", {}).items()
    ]
    return WeightsTable("products with sides of 256 and more, the GPU's generation left out", header, rows, 3)


def _scalar(part: Mapping[str, Any]) -> Iterator[str]:
    yield from (percent(part.get("scalar", {}).get(key)) for key in FIGURES)


def own(meta: Meta) -> WeightsTable:
    """Return a row a class and GPU: errors on shapes held out where the GPU itself was measured."""
    header = ("class", "GPU", "mean", "median", "90th", ">20 GFLOP", "bias", "kernels")
    rows = [
        (kind, gpu, *_row(entry), f"{entry['count']:,}")
        for kind, found in meta.get("own", {}).items()
        for gpu, entry in found.items()
    ]
    return WeightsTable("measured GPUs, shapes held out", header, rows)


def intervals(meta: Meta) -> WeightsTable:
    """Return a row a class: the 80 % interval of measured / forecast by the length of a kernel, and what widens it."""
    short, long = (seconds(edge) for edge in EDGES)
    header = ("class", "GPU", f"below {short}", f"to {long}", "longer", "power", "coverage", "widened")
    rows = []
    for kind, found in meta.get("intervals", {}).items():
        for key, label in (("new", "new"), ("seen", "measured")):
            if key in found:
                cells = (f"{low:.2f} to {high:.2f}" for low, high in found[key])
                new = (f"{found.get('widen', 1.0):.2f}", *map(percent, _coverage(meta, kind)))
                rows.append((kind, label, *cells, *(new if key == "new" else ("", "", ""))))
    return WeightsTable("80 % intervals of measured / forecast", header, rows)


def learned(weights: Weights) -> WeightsTable:
    """Return a row a constant that all GPUs share; classes with the same ones stand together."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for kind, parameters in sorted(weights.classes.items()):
        groups.setdefault(tuple(constants(kind, parameters)), []).append(kind)
    rows = [
        (", ".join(kinds), one.name, f"{one.value:.4g}", one.unit, one.text)
        for found, kinds in sorted(groups.items(), key=lambda item: item[1])
        for one in found
    ]
    return WeightsTable("learned constants", ("class", "constant", "value", "unit", "meaning"), rows, 5)


def boards(weights: Weights) -> WeightsTable:
    """Return a row a GPU: the speed of its matrix units by data type, where 1 is what its datasheet promises."""
    found = {board: value for parameters in weights.classes.values() for board, value in speeds(parameters).items()}
    types = sorted({dtype for _, dtype in found})
    rows = [
        (gpu, *(f"{found[gpu, dtype]:.3f}" if (gpu, dtype) in found else "" for dtype in types))
        for gpu in sorted({gpu for gpu, _ in found})
    ]
    return WeightsTable("speed of measured GPUs, of what the datasheet promises", ("GPU", *types), rows, 1)


def sources(meta: Meta) -> WeightsTable:
    """Return a row a table that was learned from, with the start of its SHA-256."""
    return WeightsTable(
        "data", ("table", "SHA-256"), [(name, f"{digest}…") for name, digest in sorted(meta["data"].items())]
    )


def rows(meta: Meta) -> WeightsTable:
    """Return a row a class: how many kernels it learned from, of which GPUs."""
    found = [(kind, f"{facts['rows']:,}", ", ".join(facts["gpus"])) for kind, facts in meta["learned"].items()]
    return WeightsTable("learned from", ("class", "kernels", "GPUs"), found, 3)


def markdown(table: WeightsTable) -> str:
    """Return a table in Markdown; columns without a single entry are left out."""
    kept = [i for i, _ in enumerate(table.header) if any(row[i] for row in table.rows)]
    rule = ["---" if i < table.names else "---:" for i in kept]
    lines: Sequence[Sequence[str]] = [
        [table.header[i] for i in kept],
        rule,
        *([row[i] for i in kept] for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
